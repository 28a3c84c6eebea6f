"""Scores of rankings, and tables of them: means over data sets, paired differences, reliability, coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gapscope.labels.results import LabelIssues
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


def suspicion_of(issues: LabelIssues, n: int) -> NDArray[np.float64]:
    """Minus the margin of each sample; NaN for canaries."""
    suspicion = np.full(n, np.nan)
    suspicion[issues.indices.numpy()] = -issues.margin.numpy()
    return suspicion


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


def rankings(cells: Sequence[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Mean scores per value of `by` and method; over all cells if `by` is empty."""
    methods = list(dict.fromkeys(method for cell in cells for method in cell["methods"]))
    rows = []
    for value in dict.fromkeys(cell[by] for cell in cells) if by else [""]:
        for method in methods:
            measured = [cell for cell in cells if method in cell["methods"] and (not by or cell[by] == value)]
            if not measured:
                continue
            answers, clusters = [cell["methods"][method] for cell in measured], [cell["data"] for cell in measured]
            row: dict[str, Any] = ({by: value} if by else {}) | {"method": method, "cells": len(measured)}
            for metric in METRICS:
                values = [one[metric] for one in answers]
                row[metric] = _interval(values, clusters) if len(set(clusters)) > 1 else float(np.mean(values))
            rows.append(row | {"cpu_seconds": float(np.median([one["seconds"] for one in answers]))})
    return rows


def differences(cells: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str]] = PAIRS) -> list[dict[str, Any]]:
    """Paired differences of scores between two methods, with 95 % intervals over data sets."""
    rows = []
    for own, other in pairs:
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


def reliability(cells: Sequence[dict[str, Any]], method: str, bound: bool) -> list[dict[str, Any]]:
    """Expected and observed precision of lists cut at an expected precision, and of the default list.

    Of the cells whose rate is an upper bound only, or of the others.
    """
    answers = [(cell["methods"].get(method, {}), cell["data"]) for cell in cells]
    answers = [(one, data) for one, data in answers if one.get("cuts") and one["bound"] == bound]
    rows = []
    for k, name in enumerate(("default", "0.5", "0.6", "0.7", "0.8", "0.9") if answers else ()):
        lists = [([one["cut"], *one["cuts"]][k], data) for one, data in answers]
        lists = [(cut, data) for cut, data in lists if cut[0]]
        flagged, expected, wrong = (np.array([cut[i] for cut, _ in lists], dtype=float) for i in range(3))

        def observed(picked: NDArray[np.intp], wrong: Any = wrong, flagged: Any = flagged) -> float:
            return float(wrong[picked].sum() / flagged[picked].sum()) if len(picked) else math.nan

        result = bootstrap(observed, len(lists), [data for _, data in lists]).within(0.0, 1.0)
        rows.append(
            {
                "method": method, "rate": "upper bound" if bound else "estimate", "cut": name, "lists": len(lists),
                "flagged": int(flagged.sum()),
                "expected": float((flagged * expected).sum() / flagged.sum()) if lists else None,
                "observed": [result.value, result.low, result.high],
            }
        )  # fmt: skip
    return rows


def coverage(cells: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """Answers, coverage of the 90 % interval and mean error of the rate, per data set and over all."""
    rows = []
    for data in (*dict.fromkeys(cell["data"] for cell in cells), "all"):
        part = [cell for cell in cells if data in (cell["data"], "all") and method in cell["methods"]]
        rates = [(cell["methods"][method], cell["wrong"]) for cell in part]
        rates = [(one, wrong) for one, wrong in rates if one.get("low") is not None]
        if not part:
            continue
        rows.append(
            {
                "method": method, "data": data, "cells": len(part), "answered": len(rates),
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
