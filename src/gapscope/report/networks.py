"""Section: one row for every network."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gapscope.report.formatting import format_fixed, format_number, setting_name, setting_value
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
