"""Sections on the networks of a pool: overview, and one row per network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy
from markupsafe import Markup

from gapscope.base.errors import MAX_NAMED
from gapscope.report.figures import gap_distribution
from gapscope.report.pool_view import MAX_SCROLLED, MAX_SHOWN, PoolView
from gapscope.results.formatting import (
    format_fixed,
    format_number,
    pluralize,
    setting_name,
    setting_order,
    setting_value,
)

# characters of a paragraph
LONGEST_MESSAGE = 400


@dataclass(frozen=True)
class _Column:
    """Column of the table of networks, with the name of its column in `records_to_pandas`."""

    name: str
    text: str
    format: Callable[[Any], str]
    numeric: bool = True
    kind: str = ""
    title: str = ""


def _columns(view: PoolView) -> list[_Column]:
    settings: list[_Column] = []
    for name in view.varied:
        values = view.all_rows[name].tolist()
        numeric = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
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
    text = column.format(value)
    is_finite = isinstance(value, int | float) and math.isfinite(value)
    kinds = ["n" if column.numeric else "", column.kind, text if column.kind == "status" else ""]
    return {
        "text": text,
        "sort": f"{float(value):.10g}" if is_finite else text,
        "kind": " ".join(filter(None, kinds)),
    }


def networks(view: PoolView) -> dict[str, Any]:
    """Return settings, scores, gap and readings per network, smallest gap first."""
    columns = _columns(view)
    # more than 9,000 cells make the page large
    n_rows = max(20, 9000 // len(columns))
    largest_gap = max((abs(record.gap) for record in view.all_finished), default=1.0) or 1.0
    table = view.all_rows.sort_values(by=["gap"], kind="stable").head(n_rows)
    names = dict.fromkeys(["name", *(column.name for column in columns)])
    table = table.reindex(columns=list(names))
    rows: list[dict[str, Any]] = []
    for key, row in zip(table.index, table.to_dict("records"), strict=True):
        share = 0.0 if math.isnan(row["gap"]) else max(0.0, row["gap"]) / largest_gap
        cells = [_cell(column, row[column.name]) for column in columns]
        name = row["name"] if isinstance(row["name"], str) else ""
        rows.append({"id": key, "name": name, "cells": cells, "share": f"{100 * share:.0f}%"})
    return {"heads": columns, "rows": rows, "of": len(view.all_records)}


def _varied(view: PoolView) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for column in view.varied:
        # a pool has many networks and few values; typed, since True == 1
        format_value = lru_cache(typed=True)(setting_value)
        values = view.all_finished_rows[column].tolist()
        counts = Counter(map(format_value, sorted(values, key=setting_order)))
        ordered = list(counts.items())[:MAX_SHOWN]
        more = max(0, len(counts) - MAX_SHOWN)
        rows.append({"name": setting_name(column), "path": column, "values": ordered, "more": more})
    return rows


def _failures(view: PoolView) -> list[dict[str, Any]]:
    """Return the networks that did not finish, grouped by message."""
    groups: dict[tuple[str, str], list[str]] = {}
    for record in view.all_records:
        if record.status != "finished":
            message = record.message or record.stopped or "no message"
            groups.setdefault((record.status, message[:LONGEST_MESSAGE]), []).append(record.id)
    return [
        {
            "status": status,
            "message": message,
            "more": max(0, len(ids) - MAX_NAMED),
            "networks": [{"id": key, "text": view.describe(key)} for key in ids[:MAX_NAMED]],
        }
        for (status, message), ids in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def overview(view: PoolView) -> dict[str, Any]:
    """Return counts, varied settings, the distribution of the gap, and unfinished networks."""
    gaps = [record.gap for record in view.all_finished]
    failures = _failures(view)
    states = Counter(record.status for record in view.all_records)
    parts = [
        f"{states[name]} {name}" for name in ("finished", "diverged", "failed") if states[name]
    ]
    reasons = Counter(
        (name, reason[:LONGEST_MESSAGE])
        for record in view.all_records
        for name, reason in record.unmeasured.items()
    )
    n = len(view.all_records)
    return {
        "counts": f"{pluralize(n, 'network')}: {', '.join(parts)}" if parts else "no networks",
        "n": n,
        "sampled": len(view.records) if len(view.records) < n else 0,
        "finished": len(gaps),
        "gap_quantiles": numpy.quantile(gaps, [0, 0.25, 0.5, 0.75, 1]).tolist()
        if gaps
        else [math.nan] * 5,
        "distribution": gap_distribution(gaps, view.gap_label) if len(gaps) >= 4 else Markup(""),
        "varied": _varied(view),
        "without_settings": view.n_without_settings,
        "failures": failures[:MAX_SCROLLED],
        "more_failures": max(0, len(failures) - MAX_SCROLLED),
        "unmeasured": reasons.most_common(MAX_SCROLLED),
    }
