"""Scores of rankings, and tables of them: means over data sets, paired differences, reliability, coverage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapscope_studies.kit.statistics import bootstrap, mean

METRICS = ("auroc", "average_precision", "precision_at_errors")
# own method, the baseline it is compared with
PAIRS = (
    ("no network", "cleanlab, RBF"),
    ("no network", "cleanlab, five folds"),
    ("untrained network", "no network"),
    ("one training", "cleanlab, five folds"),
    ("one training", "cleanlab, one training's budget"),
    ("one training", "cleanlab, RBF"),
    ("one training", "area under the margin"),
    ("one training", "no network"),
)


def scores(suspicion: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """AUROC, average precision, and precision among the first m for m errors, of the samples without NaN."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    known = ~np.isnan(suspicion)
    suspicion, wrong = suspicion[known], wrong[known]
    first = np.argsort(-suspicion, kind="stable")[: wrong.sum()]
    return {
        "auroc": float(roc_auc_score(wrong, suspicion)),
        "average_precision": float(average_precision_score(wrong, suspicion)),
        "precision_at_errors": float(wrong[first].mean()),
    }


def _interval(values: Sequence[float], clusters: Sequence[str]) -> list[float]:
    result = mean(values, clusters)
    return [result.value, result.low, result.high]


def _row(method: str, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    answers, clusters = [cell["methods"][method] for cell in cells], [cell["data"] for cell in cells]
    row: dict[str, Any] = {"method": method, "cells": len(cells)}
    for metric in METRICS:
        values = [one[metric] for one in answers]
        row[metric] = _interval(values, clusters) if len(set(clusters)) > 1 else float(np.mean(values))
    seconds = [one["seconds"] for one in answers if one.get("seconds") is not None]
    return row | {"cpu_seconds": float(np.median(seconds)) if seconds else None}


def rankings(cells: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Mean scores per value of `by` and method; over all cells if `by` is empty."""
    methods = list(dict.fromkeys(method for cell in cells for method in cell["methods"]))
    values = list(dict.fromkeys(cell[by] for cell in cells)) if by else [""]
    rows = []
    for value in values:
        part = [cell for cell in cells if not by or cell[by] == value]
        for method in methods:
            measured = [cell for cell in part if method in cell["methods"]]
            if measured:
                rows.append(({by: value} if by else {}) | _row(method, measured))
    return rows


def differences(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Paired differences of scores between two methods, with 95 % intervals over data sets."""
    rows = []
    for own, other in PAIRS:
        both = [cell for cell in cells if {own, other} <= set(cell["methods"])]
        if not both:
            continue
        row: dict[str, Any] = {"method": own, "minus": other}
        for metric in METRICS:
            values = [cell["methods"][own][metric] - cell["methods"][other][metric] for cell in both]
            row[metric] = _interval(values, [cell["data"] for cell in both])
            row[f"{metric}, ahead"] = f"{sum(value > 0 for value in values)} of {len(values)}"
        rows.append(row)
    return rows


def reliability(cells: Iterable[dict[str, Any]], method: str, bound: bool) -> list[dict[str, Any]]:
    """Expected and observed precision of lists cut at an expected precision, and of the default list.

    Of the cells whose rate is an upper bound only, or of the others.
    """
    answers = [(cell, cell["methods"].get(method, {})) for cell in cells]
    answered = [cell for cell, one in answers if one.get("cuts") and one["bound"] == bound]
    if not answered:
        return []
    cuts = [[cell["methods"][method]["cut"], *cell["methods"][method]["cuts"]] for cell in answered]
    rows = []
    for k, name in enumerate(("default", "0.5", "0.6", "0.7", "0.8", "0.9")):
        lists = [(cut[k], cell["data"]) for cut, cell in zip(cuts, answered, strict=True) if cut[k][0]]
        flagged, expected, wrong = (np.array([one[i] for one, _ in lists], dtype=float) for i in range(3))

        def observed(picked: NDArray[np.intp], wrong: Any = wrong, flagged: Any = flagged) -> float:
            return float(wrong[picked].sum() / flagged[picked].sum()) if len(picked) else math.nan

        result = bootstrap(observed, len(lists), [data for _, data in lists])
        rows.append(
            {
                "method": method, "rate": "upper bound" if bound else "estimate", "cut": name, "lists": len(lists),
                "flagged": int(flagged.sum()),
                "expected": float((flagged * expected).sum() / flagged.sum()) if lists else None,
                "observed": [result.value, max(result.low, 0.0), min(result.high, 1.0)],
            }
        )  # fmt: skip
    return rows


def coverage(cells: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """Answers, coverage of the 90 % interval and mean error of the rate, per data set and over all."""
    rows = []
    for data in (*dict.fromkeys(cell["data"] for cell in cells), "all"):
        part = [cell for cell in cells if data in (cell["data"], "all") and method in cell["methods"]]
        if not part:
            continue
        known = [cell for cell in part if cell["methods"][method].get("low") is not None]
        rates = [(cell["methods"][method], cell["wrong"]) for cell in known]
        rows.append(
            {
                "method": method, "data": data, "cells": len(part), "answered": len(known),
                "bounds": sum(one["bound"] for one, _ in rates),
                "covered": sum(one["low"] <= wrong <= one["high"] for one, wrong in rates),
                "error": float(np.mean([abs(one["rate"] - wrong) for one, wrong in rates])) if rates else None,
            }
        )  # fmt: skip
    return rows


def summarize(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """All tables, and the cells."""
    own = [name for name in ("no network", "untrained network", "one training") if name in cells[0]["methods"]]
    return {
        "overall": rankings(cells, ""),
        "by_data": rankings(cells, "data"),
        "by_kind": rankings(cells, "kind"),
        "differences": differences(cells),
        "reliability": [row for name in own for bound in (False, True) for row in reliability(cells, name, bound)],
        "coverage": [row for name in own for row in coverage(cells, name)],
    }
