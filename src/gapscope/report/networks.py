"""Sections on the networks of a pool: an overview, and one row for every network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
from markupsafe import Markup

from gapscope.report.figures import gap_distribution
from gapscope.report.formatting import format_fixed, format_number, pluralize, setting_name, setting_value
from gapscope.report.pool_view import PoolView
from gapscope.results.records import Record

MOST_CELLS = 9000


@dataclass(frozen=True)
class _Column:
    """Column of the table of networks: head, alignment, and value and text per network."""

    text: str
    numeric: bool
    value: Callable[[Record], Any]
    written: Callable[[Any], str]
    kind: str = ""
    title: str = ""


def _setting_columns(view: PoolView) -> list[_Column]:
    columns: list[_Column] = []
    for name in view.varied:
        numeric = all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in view.whole[name].tolist()
        )
        columns.append(_Column(setting_name(name), numeric, partial(_setting, view, name), setting_value))
    return columns


def _setting(view: PoolView, name: str, record: Record) -> Any:
    return view.setting(record.id, name)


def _columns(view: PoolView) -> list[_Column]:
    def score(name: str) -> _Column:
        return _Column(name.replace("_", " "), True, lambda record: record.scores.get(name, math.nan), format_fixed)

    def reading(name: str) -> _Column:
        return _Column(
            name,
            True,
            lambda record: record.readings.values().get(name, math.nan),
            format_number,
            title=view.titles[name],
        )

    return [
        _Column("gap", True, lambda record: record.gap, format_fixed, kind="gap"),
        score(f"train_{view.gap_kind}"),
        score(f"test_{view.gap_kind}"),
        *_setting_columns(view),
        *map(reading, view.readings),
        _Column("epochs", True, lambda record: record.epochs_trained, setting_value),
        _Column("seconds", True, lambda record: record.seconds, format_number),
        _Column("status", False, lambda record: record.status, str, kind="status"),
    ]


def _cell(column: _Column, record: Record) -> dict[str, str]:
    value = column.value(record)
    text = column.written(value)
    plain = isinstance(value, int | float) and math.isfinite(value)
    kinds = ["n" if column.numeric else "", column.kind, text if column.kind == "status" else ""]
    return {"text": text, "sort": f"{float(value):.10g}" if plain else text, "kind": " ".join(filter(None, kinds))}


def networks(view: PoolView) -> dict[str, Any]:
    """Settings, scores, gap and readings per network, smallest gap first (very large pools are cut off)."""
    columns = _columns(view)
    ordered = sorted(view.all_records, key=lambda record: (math.isnan(record.gap), record.gap))
    most = max(20, MOST_CELLS // len(columns))
    widest = max((abs(record.gap) for record in view.all_finished), default=1.0) or 1.0
    rows: list[dict[str, Any]] = []
    for record in map(view.complete, ordered[:most]):
        share = 0.0 if math.isnan(record.gap) else max(0.0, record.gap) / widest
        cells = [_cell(column, record) for column in columns]
        rows.append(
            {"id": record.id, "name": record.spec.get("name", ""), "cells": cells, "share": f"{100 * share:.0f}%"}
        )
    return {"heads": columns, "rows": rows, "of": len(ordered)}


LONGEST_MESSAGE = 400
MOST_VALUES = 12
MOST_TROUBLES = 50
SHOWN = 5
# fewer gaps than these have no distribution worth a figure
FEWEST_BARS = 4


def _varied(view: PoolView) -> list[dict[str, Any]]:
    table = view.whole.loc[[record.id for record in view.all_finished]]
    rows: list[dict[str, Any]] = []
    for column in view.varied:
        # each different value is put into words once; True is not 1
        values: list[Any] = table[column].tolist()
        found: Counter[tuple[str, Any]] = Counter((type(value).__name__, value) for value in values)
        counts: Counter[str] = Counter()
        for (_, value), count in found.items():
            counts[setting_value(value)] += count
        ordered = sorted(counts.items(), key=lambda item: _order(item[0]))
        values = [{"value": value, "count": count} for value, count in ordered[:MOST_VALUES]]
        rows.append(
            {"name": setting_name(column), "path": column, "values": values, "more": max(0, len(ordered) - MOST_VALUES)}
        )
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
    troubles: list[dict[str, Any]] = []
    for (status, message), ids in groups.items():
        shown = [{"id": key, "text": view.descriptions[key]} for key in ids[:SHOWN]]
        troubles.append({"status": status, "message": message, "networks": shown, "more": len(ids) - len(shown)})
    return sorted(troubles, key=lambda trouble: -len(trouble["networks"]) - trouble["more"])


def _unmeasured(view: PoolView) -> list[dict[str, Any]]:
    reasons: Counter[tuple[str, str]] = Counter()
    for record in view.all_records:
        reasons.update((name, reason[:LONGEST_MESSAGE]) for name, reason in record.unmeasured.items())
    return [{"measure": name, "reason": reason, "count": count} for (name, reason), count in reasons.most_common(50)]


def overview(view: PoolView) -> dict[str, Any]:
    """Counts, varied settings, the distribution of the gap, and networks that did not finish."""
    gaps, troubles = [record.gap for record in view.all_finished], _troubles(view)
    states = Counter(record.status for record in view.all_records)
    parts = [f"{states[name]} {name}" for name in ("finished", "diverged", "failed") if states[name]]
    quartiles = numpy.quantile(gaps, [0.25, 0.5, 0.75]).tolist() if gaps else [numpy.nan] * 3
    return {
        "counts": f"{pluralize(len(view.all_records), 'network')}: {', '.join(parts)}" if parts else "no networks",
        "n": len(view.all_records),
        "drawn": len(view.records) if len(view.records) < len(view.all_records) else 0,
        "finished": len(view.all_finished),
        "gap_low": format_fixed(min(gaps, default=numpy.nan)),
        "gap_high": format_fixed(max(gaps, default=numpy.nan)),
        "gap_median": format_fixed(quartiles[1]),
        "gap_quartiles": f"{format_fixed(quartiles[0])} and {format_fixed(quartiles[2])}",
        "distribution": gap_distribution(gaps, view.gap_label) if len(gaps) >= FEWEST_BARS else Markup(""),
        "varied": _varied(view),
        "troubles": troubles[:MOST_TROUBLES],
        "other_troubles": max(0, len(troubles) - MOST_TROUBLES),
        "unmeasured": _unmeasured(view),
    }
