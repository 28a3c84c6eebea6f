"""Section: training curves by the setting that separates the gaps most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from gapscope.report.figures import ALARM, training_curves
from gapscope.report.formatting import pluralize, setting_name, setting_value
from gapscope.report.pool_view import PoolView
from gapscope.results.records import Record

MOST_GROUPS = 8
MOST_NETWORKS = 120


def share_explained(groups: Sequence[str], gaps: Sequence[float]) -> float:
    """Return the fraction of the gap's variance between groups (correlation ratio; 0 if all gaps are equal).

    >>> gaps = [1.0, 1.0, 2.0, 2.0]
    >>> share_explained(["a", "a", "b", "b"], gaps), share_explained(["a", "b", "a", "b"], gaps)
    (1.0, 0.0)
    """
    values, labels = numpy.array(gaps), numpy.array(groups)
    total = ((values - values.mean()) ** 2).sum()
    between = sum(
        (labels == label).sum() * (values[labels == label].mean() - values.mean()) ** 2 for label in set(groups)
    )
    return float(between / total) if total > 0 else 0.0


def _grouping(view: PoolView, records: Sequence[Record]) -> str | None:
    """Return the setting with 2 to 8 values that explains most of the gap's variance."""
    best, most = None, 0.0
    gaps = [record.gap for record in records]
    for column in view.varied:
        groups = [setting_value(view.table.at[record.id, column]) for record in records]
        if column != "seed" and 2 <= len(set(groups)) <= MOST_GROUPS and share_explained(groups, gaps) > most:
            best, most = column, share_explained(groups, gaps)
    return best


def _has(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return any(key in row for row in rows)


def _numeric(rows: Sequence[Mapping[str, Any]], score: str) -> list[dict[str, float]]:
    keys = ("epoch", f"train_{score}", f"test_{score}", ALARM)
    return [{key: float(row[key]) for key in keys if key in row} for row in rows if "epoch" in row]


def curves(view: PoolView) -> dict[str, Any]:
    """Training curves of the finished networks, grouped by the setting that separates the gaps most."""
    records = [record for record in view.finished if _has(record.history, "epoch")]
    score = "accuracy" if any(_has(record.history, "train_accuracy") for record in records) else "loss"
    records = [record for record in records if _has(record.history, f"train_{score}")]
    if not records:
        return {"figures": []}
    drawn = records[:: math.ceil(len(records) / MOST_NETWORKS)]
    column = _grouping(view, drawn)
    groups: dict[str, dict[str, list[dict[str, float]]]] = {}
    for record in sorted(drawn, key=lambda record: _sort_key(view, record, column)):
        label = (
            f"{setting_name(column)} {setting_value(view.table.at[record.id, column])}" if column else "all networks"
        )
        groups.setdefault(label, {})[view.descriptions[record.id]] = _numeric(record.history, score)
    values = [value for rows in groups.values() for history in rows.values() for row in history
              for key, value in row.items() if key not in ("epoch", ALARM) and math.isfinite(value)]  # fmt: skip
    top = 1.0 if score == "accuracy" else float(numpy.quantile(values, 0.99)) * 1.05 if values else 1.0
    figures = [
        {
            "title": label,
            "count": pluralize(len(rows), "network"),
            "figure": training_curves(rows, score, label, top or 1.0),
        }
        for label, rows in groups.items()
    ]
    return {"figures": figures, "score": score, "drawn": len(drawn), "of": len(records),
            "setting": setting_name(column) if column else "",
            "alarms": any(row.get(ALARM, 0) >= 1 for record in drawn for row in _numeric(record.history, score))
            }  # fmt: skip


def _sort_key(view: PoolView, record: Record, column: str | None) -> tuple[bool, float, str]:
    value = view.table.at[record.id, column] if column else 0
    if isinstance(value, int | float | numpy.number):
        return False, float(value), ""
    return True, 0.0, str(value)
