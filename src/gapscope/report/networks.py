"""Section: one row for every network."""

from __future__ import annotations

import math
from typing import Any

from gapscope.report.numbers import fixed, number, setting_name, setting_value
from gapscope.report.pool_view import PoolView

MOST_CELLS = 9000


def _cell(value: Any, text: str, kind: str = "") -> dict[str, Any]:
    plain = isinstance(value, int | float) and math.isfinite(value)
    return {"text": text, "sort": f"{float(value):.10g}" if plain else str(text), "kind": kind}


def networks(view: PoolView) -> dict[str, Any]:
    """Settings, scores, gap and readings of every network, the smallest gap first.

    Args:
        view: The pool.

    Returns:
        The heads and rows of the table, and how many rows there would be (very large pools are cut off).
    """
    scores = [f"{split}_{view.gap_kind}" for split in ("train", "test")]
    names = list(view.readings)
    heads = ["network", "gap", *(name.replace("_", " ") for name in scores), *map(setting_name, view.varied), *names,
             "epochs", "seconds", "status"]  # fmt: skip
    ordered = sorted(view.records, key=lambda record: (math.isnan(record.gap), record.gap))
    most = max(20, MOST_CELLS // len(heads))
    widest = max((abs(record.gap) for record in view.finished), default=1.0) or 1.0
    rows = []
    for record in ordered[:most]:
        readings = record.readings.values()
        settings = (view.table.at[record.id, column] for column in view.varied)
        cells = [
            _cell(record.gap, fixed(record.gap), "gap"),
            *(_cell(record.scores.get(score, math.nan), fixed(record.scores.get(score))) for score in scores),
            *(_cell(value, setting_value(value)) for value in settings),
            *(_cell(readings.get(name, math.nan), number(readings.get(name))) for name in names),
            _cell(record.epochs_trained, str(record.epochs_trained)),
            _cell(record.seconds, number(record.seconds)),
            _cell(None, record.status, f"status {record.status}"),
        ]
        share = 0.0 if math.isnan(record.gap) else max(0.0, record.gap) / widest
        rows.append({"id": record.id, "cells": cells, "share": f"{100 * share:.0f}%"})
    return {"heads": heads, "rows": rows, "of": len(ordered)}
