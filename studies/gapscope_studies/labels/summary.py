"""Scores of rankings: means, paired differences, reliability and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from gapscope.labels.results import LabelIssues
from gapscope_studies.kit.statistics import bootstrap, mean, to_list
from gapscope_studies.kit.study import Table

METRICS = ("auroc", "average_precision", "precision_at_errors")
PAIRS = (  # our method and its baseline
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
    """Return minus the position of each sample in the ranking, NaN for canaries."""
    suspicion = np.full(n, np.nan)
    suspicion[issues.indices.numpy()] = -np.arange(len(issues.indices), dtype=float)
    return suspicion


def scores(suspicion: NDArray[np.float64], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Return AUROC, average precision, and precision among the first m for m errors (no NaN)."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    known = ~np.isnan(suspicion)
    suspicion, wrong = suspicion[known], wrong[known]
    first = np.argsort(-suspicion, kind="stable")[: wrong.sum()]
    return {
        "auroc": float(roc_auc_score(wrong, suspicion)),
        "average_precision": float(average_precision_score(wrong, suspicion)),
        "precision_at_errors": float(wrong[first].mean()),
    }


def flatten(cells: Sequence[dict[str, Any]]) -> Table:
    """Return one row per cell and method."""
    return pandas.DataFrame(
        # cells of old runs have answers with a "method"
        {**cell, **answer, "cell": number, "method": method}
        for number, cell in enumerate(cells)
        for method, answer in cell["methods"].items()
    )


def rankings(cells: Sequence[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    """Return mean scores per method (and value of `by`), with intervals over data sets."""
    rows = []
    for key, part in flatten(cells).groupby([*by, "method"], sort=False):
        row: dict[str, Any] = dict(zip((*by, "method"), key, strict=True)) | {"cells": len(part)}
        for metric in METRICS:
            several = part["data"].nunique() > 1
            row[metric] = (
                to_list(mean(part[metric], [*part["data"]]))
                if several
                else float(part[metric].mean())
            )
        rows.append(row | {"cpu_seconds": float(part["seconds"].median())})
    return rows


def differences(
    cells: Sequence[dict[str, Any]], pairs: Sequence[tuple[str, str]] = PAIRS
) -> list[dict[str, Any]]:
    """Return paired differences of scores between two methods, with intervals over data sets."""
    wide = flatten(cells).pivot(index=["cell", "data"], columns="method", values=[*METRICS])
    methods, rows = set(wide.columns.get_level_values("method")), []
    for method, baseline in pairs:
        if {method, baseline} <= methods:
            row: dict[str, Any] = {"method": method, "minus": baseline}
            for metric in METRICS:
                values = (wide[metric][method] - wide[metric][baseline]).dropna()
                row[metric] = to_list(mean(values, [*values.index.get_level_values("data")]))
                row[f"{metric}, ahead"] = f"{(values > 0).sum()} of {len(values)}"
            rows.append(row)
    return rows


def reliability(cells: Sequence[dict[str, Any]], method: str, bound: bool) -> list[dict[str, Any]]:
    """Return expected and observed precision per cut, of cells with an upper bound or without."""
    frame = flatten(cells)
    frame, rows = frame[(frame["method"] == method) & (frame["bound"] == bound)], []
    for k, name in enumerate(("default", "0.5", "0.6", "0.7", "0.8", "0.9") if len(frame) else ()):
        cuts = [
            [default, *by_precision][k]
            for default, by_precision in zip(frame["cut"], frame["cuts"], strict=True)
        ]
        table: Table = pandas.DataFrame(cuts, columns=["flagged", "expected", "wrong"]).assign(
            data=[*frame["data"]]
        )
        table = table[table["flagged"] > 0]
        if not len(table):
            continue  # no list promises this precision
        flagged, expected, wrong = table[["flagged", "expected", "wrong"]].to_numpy(float).T

        def observed(picks: NDArray[np.intp], wrong: Any = wrong, flagged: Any = flagged) -> float:
            return float(wrong[picks].sum() / flagged[picks].sum())

        rows.append(
            {
                "method": method, "rate": "upper bound" if bound else "estimate", "cut": name, "lists": len(table),
                "flagged": int(flagged.sum()),
                "expected": float((flagged * expected).sum() / flagged.sum()),
                "observed": to_list(bootstrap(observed, len(table), [*table["data"]]).within(0.0, 1.0)),
            }
        )  # fmt: skip
    return rows


def coverage(cells: Sequence[dict[str, Any]], method: str) -> list[dict[str, Any]]:
    """Return answers, 90 % coverage and mean error of the rate, per data set and in all."""
    frame = flatten(cells)
    frame, rows = frame[frame["method"] == method], []
    for data, part in [*frame.groupby("data", sort=False), ("all", frame)]:
        answers = part[part["low"].notna()]
        rows.append(
            {
                "method": method, "data": data, "cells": len(part), "answered": len(answers),
                "bounds": int(answers["bound"].sum()),
                "covered": int(answers["wrong"].between(answers["low"], answers["high"]).sum()),
                "error": float((answers["rate"] - answers["wrong"]).abs().mean()) if len(answers) else None,
            }
        )  # fmt: skip
    return rows


def summarize(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return all tables."""
    ours = [
        name
        for name in ("no network", "untrained network", "one training")
        if name in cells[0]["methods"]
    ]
    return {
        "overall": rankings(cells),
        "by_data": rankings(cells, "data"),
        "differences": differences(cells),
        "reliability": [
            row
            for name in ours
            for bound in (False, True)
            for row in reliability(cells, name, bound)
        ],
        "coverage": [row for name in ours for row in coverage(cells, name)],
    }
