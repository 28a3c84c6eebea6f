"""Sections on the networks of a pool: an overview, and one row for every network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from markupsafe import Markup

from gapscope.report.figures import gap_distribution
from gapscope.report.formatting import format_fixed, format_number, pluralize, setting_name, setting_value
from gapscope.report.pool_view import PoolView

MAX_CELLS = 9000
LONGEST_MESSAGE = 400
MAX_VALUES = 12
MAX_PROBLEMS = 50
SHOWN = 5
# fewer gaps than these have no distribution worth a figure
MIN_BARS = 4


@dataclass(frozen=True)
class _Column:
    """Column of the table of networks, taken from a column of `records_to_pandas`."""

    name: str
    text: str
    written: Callable[[Any], str]
    numeric: bool = True
    kind: str = ""
    title: str = ""


def _columns(view: PoolView) -> list[_Column]:
    settings: list[_Column] = []
    for name in view.varied:
        values = view.whole[name].tolist()
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        settings.append(_Column(name, setting_name(name), setting_value, numeric))
    scores = [f"{split}_{view.gap_kind}" for split in ("train", "test")]
    return [
        _Column("gap", "gap", format_fixed, kind="gap"),
        *(_Column(name, name.replace("_", " "), format_fixed) for name in scores),
        *settings,
        *(_Column(name, name, format_number, title=view.titles[name]) for name in view.readings),
        _Column("epochs_trained", "epochs", setting_value),
        _Column("seconds", "seconds", format_number),
        _Column("status", "status", str, numeric=False, kind="status"),
    ]


def _cell(column: _Column, value: Any) -> dict[str, str]:
    text = column.written(value)
    plain = isinstance(value, int | float) and math.isfinite(value)
    kinds = ["n" if column.numeric else "", column.kind, text if column.kind == "status" else ""]
    return {"text": text, "sort": f"{float(value):.10g}" if plain else text, "kind": " ".join(filter(None, kinds))}


def networks(view: PoolView) -> dict[str, Any]:
    """Settings, scores, gap and readings per network, smallest gap first."""
    columns = _columns(view)
    most = max(20, MAX_CELLS // len(columns))
    widest = max((abs(record.gap) for record in view.all_finished), default=1.0) or 1.0
    shown = view.whole.sort_values(by=["gap"], kind="stable").head(most)
    shown = shown.reindex(columns=list(dict.fromkeys(["name", *(column.name for column in columns)])))
    rows: list[dict[str, Any]] = []
    for key, row in zip(shown.index, shown.to_dict("records"), strict=True):
        share = 0.0 if math.isnan(row["gap"]) else max(0.0, row["gap"]) / widest
        cells = [_cell(column, row[column.name]) for column in columns]
        name = row["name"] if isinstance(row["name"], str) else ""
        rows.append({"id": key, "name": name, "cells": cells, "share": f"{100 * share:.0f}%"})
    return {"heads": columns, "rows": rows, "of": len(view.all_records)}


def _varied(view: PoolView) -> list[dict[str, Any]]:
    table = view.whole.loc[[record.id for record in view.all_finished]]
    rows: list[dict[str, Any]] = []
    for column in view.varied:
        # each different value is formatted once, by type and value: True == 1
        values: list[Any] = table[column].tolist()
        result = Counter((type(value).__name__, value) for value in values)
        counts: Counter[str] = Counter()
        for (_, value), count in result.items():
            counts[setting_value(value)] += count
        ordered = sorted(counts.items(), key=lambda item: _order(item[0]))
        more = max(0, len(ordered) - MAX_VALUES)
        rows.append({"name": setting_name(column), "path": column, "values": ordered[:MAX_VALUES], "more": more})
    return rows


def _order(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text.replace(",", "").replace("−", "-")), text
    except ValueError:
        return True, 0.0, text


def _troubles(view: PoolView) -> list[dict[str, Any]]:
    """Networks that did not finish, those with the same message together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for record in view.all_records:
        if record.status != "finished":
            message = record.message or record.stopped or "no message"
            groups.setdefault((record.status, message[:LONGEST_MESSAGE]), []).append(record.id)
    return [
        {"status": status, "message": message, "more": max(0, len(ids) - SHOWN),
         "networks": [{"id": key, "text": view.describe(key)} for key in ids[:SHOWN]]}
        for (status, message), ids in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]  # fmt: skip


def overview(view: PoolView) -> dict[str, Any]:
    """Counts, varied settings, the distribution of the gap, and networks that did not finish."""
    gaps, troubles = [record.gap for record in view.all_finished], _troubles(view)
    states = Counter(record.status for record in view.all_records)
    parts = [f"{states[name]} {name}" for name in ("finished", "diverged", "failed") if states[name]]
    reasons = Counter(
        (name, reason[:LONGEST_MESSAGE]) for record in view.all_records for name, reason in record.unmeasured.items()
    )
    n = len(view.all_records)
    return {
        "counts": f"{pluralize(n, 'network')}: {', '.join(parts)}" if parts else "no networks",
        "n": n,
        "drawn": len(view.records) if len(view.records) < n else 0,
        "finished": len(gaps),
        "gap_quantiles": numpy.quantile(gaps, [0, 0.25, 0.5, 0.75, 1]).tolist() if gaps else [math.nan] * 5,
        "distribution": gap_distribution(gaps, view.gap_label) if len(gaps) >= MIN_BARS else Markup(""),
        "varied": _varied(view),
        "troubles": troubles[:MAX_PROBLEMS],
        "other_troubles": max(0, len(troubles) - MAX_PROBLEMS),
        "unmeasured": reasons.most_common(50),
    }
