"""Section: training curves by the setting that separates the gaps most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from gapscope.leaderboard.association import MAX_LEVELS
from gapscope.report.figures import ALARM, training_curves
from gapscope.report.pool_view import PoolView
from gapscope.results.formatting import pluralize, setting_name, setting_order, setting_value
from gapscope.results.records import Record


def correlation_ratio(groups: Sequence[str], gaps: Sequence[float]) -> float:
    """Return the fraction of the gap's variance that lies between groups.

    >>> gaps = [1.0, 1.0, 2.0, 2.0]
    >>> correlation_ratio(["a", "a", "b", "b"], gaps), correlation_ratio(["a", "b", "a", "b"], gaps)
    (1.0, 0.0)
    """
    import pandas

    values = pandas.Series(gaps)
    total = float(values.var(ddof=0))
    between = float(values.groupby(list(groups)).transform("mean").var(ddof=0))
    return between / total if total > 0 else 0.0


def _grouping(view: PoolView, records: Sequence[Record]) -> str | None:
    """Return the setting with two or a few values that explains most of the gap's variance."""
    ratios: dict[str, float] = {}
    gaps = [record.gap for record in records]
    for column in view.varied:
        groups = [setting_value(view.table.at[record.id, column]) for record in records]
        if column != "seed" and 2 <= len(set(groups)) <= MAX_LEVELS:
            ratios[column] = correlation_ratio(groups, gaps)
    best = max(ratios, key=lambda column: ratios[column], default=None)
    if best is not None and ratios[best] > 0:
        return best
    return None


def _has(record: Record, key: str) -> bool:
    return any(key in row for row in record.history)


def curves(view: PoolView) -> dict[str, Any]:
    """Return training curves of finished networks, grouped by the most informative setting."""
    records = [record for record in view.finished if _has(record, "epoch")]
    has_accuracy = any(_has(record, "train_accuracy") for record in records)
    score = "accuracy" if has_accuracy else "loss"
    records = [record for record in records if _has(record, f"train_{score}")]
    if not records:
        return {"figures": []}
    # more than 120 curves cannot be told apart
    selected = records[:: math.ceil(len(records) / 120)]
    column = _grouping(view, selected)
    scores = (f"train_{score}", f"test_{score}")
    groups: dict[str, dict[str, list[dict[str, float]]]] = {}
    settings = {
        record.id: view.table.at[record.id, column] if column else None for record in selected
    }
    for record in sorted(selected, key=lambda record: setting_order(settings[record.id])):
        label = "all networks"
        if column:
            label = f"{setting_name(column)} {setting_value(settings[record.id])}"
        groups.setdefault(label, {})[view.describe(record.id)] = [
            {key: float(row[key]) for key in ("epoch", *scores, ALARM) if key in row}
            for row in record.history
            if "epoch" in row
        ]
    histories = [history for group in groups.values() for history in group.values()]
    rows = [row for history in histories for row in history]
    values = [row[key] for row in rows for key in scores if math.isfinite(row.get(key, math.nan))]
    top = 1.0
    if values and score != "accuracy":
        top = float(numpy.quantile(values, 0.99)) * 1.05
    figures = [
        {
            "title": label,
            "count": pluralize(len(histories), "network"),
            "figure": training_curves(histories, score, label, top or 1.0),
        }
        for label, histories in groups.items()
    ]
    return {
        "figures": figures,
        "score": score,
        "plotted": len(selected),
        "of": len(records),
        "setting": setting_name(column) if column else "",
        "alarms": any(row.get(ALARM, 0) >= 1 for row in rows),
    }
