"""Rankings and rates of wrong regression targets: gapscope and cleanlab's method.

Errors are planted into three tables: gross ones (2 to 5 standard deviations are added or subtracted), swapped targets,
and targets in another unit (10 times or a tenth). Baselines are cleanlab's `CleanLearning` and out-of-fold residuals,
each with a random forest and linear regression. The rule of gapscope was chosen on seeds 1 to 3. It abstains below an
R^2 of 0.7 since seeds 3,001 and 3,002, where it listed many correct targets of tables that are predicted worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.labels.ranking import time_call
from gapscope_studies.labels.summary import METRICS, differences, flatten, scores, suspicion_of

TABLES = ("concrete", "boston_housing", "california_housing")
KINDS, RATES, SEEDS, N = ("gross", "swapped", "unit"), (0.05, 0.1, 0.2), (4001, 4002), 600
OURS = "gapscope"
OTHERS = ("cleanlab, random forest", "cleanlab, linear regression", "random forest, five folds",
          "linear regression, five folds")  # fmt: skip


def plant(
    targets: Tensor, kind: str, rate: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return targets with planted errors, and a mask of the wrong ones."""
    rows = torch.randperm(len(targets), generator=generator)[: round(rate * len(targets))]
    noisy = targets.clone()
    if kind == "swapped":
        noisy[rows] = targets[rows.roll(1)]
    else:
        sign = torch.randint(2, rows.shape, generator=generator) * 2 - 1
        size = torch.rand(rows.shape, generator=generator) * 3 + 2
        gross = targets[rows] + sign * size * targets.std()
        noisy[rows] = gross if kind == "gross" else targets[rows] * 10.0**sign
    return noisy, noisy != targets


def own_issues(x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return suspicion, flags and rate of `gs.find_label_issues`."""
    issues = gs.find_label_issues(None, (x, y[:, None]))
    suspicion, flags = suspicion_of(issues, len(y)), np.zeros(len(y), dtype=bool)
    if issues.noise is None or issues.flagged is None:
        return suspicion, flags, {"answered": False}
    flags[issues.flagged.numpy()] = True
    return (
        suspicion,
        flags,
        {"answered": True, "rate": issues.noise.rate, "high": issues.noise.high},
    )


def cleanlab_issues(
    model: Any, x: Tensor, y: Tensor, seed: int
) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Return suspicion, flags and rate of cleanlab's default `CleanLearning` for regression."""
    from cleanlab.regression.learn import CleanLearning  # pyright: ignore[reportMissingImports]

    issues = CleanLearning(model, seed=seed).find_label_issues(x.numpy(), y.numpy())
    flags = issues["is_label_issue"].to_numpy()
    return (
        -issues["label_quality"].to_numpy(),
        flags,
        {"answered": True, "rate": float(flags.mean())},
    )


def fold_residuals(
    model: Any, x: Tensor, y: Tensor, seed: int
) -> tuple[np.ndarray, None, dict[str, Any]]:
    """Return the absolute residual of each target by a model fitted to the other folds."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(5, shuffle=True, random_state=seed)
    predictions = np.asarray(cross_val_predict(model, x.numpy(), y.numpy(), cv=folds))
    return np.abs(predictions - y.numpy()), None, {}


def run_cell(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """Evaluate all methods on one table, without planted errors gapscope's rate alone."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LinearRegression

    train = gs.load_dataset(name).train
    generator = torch.Generator().manual_seed(derive_seed(seed, f"{name} {kind} {rate}"))
    rows = torch.randperm(len(train), generator=generator)[:N]
    x, (y, wrong) = (
        train.inputs[rows].double(),
        plant(train.y[rows, 0].double(), kind, rate, generator),
    )
    forest, linear = RandomForestRegressor(random_state=seed), LinearRegression()
    baselines = (
        (cleanlab_issues, forest),
        (cleanlab_issues, linear),
        (fold_residuals, forest),
        (fold_residuals, linear),
    )
    functions: dict[str, Callable[[], Any]] = {OURS: partial(own_issues, x, y)}
    if rate:
        functions |= {
            name: partial(f, model, x, y, seed)
            for name, (f, model) in zip(OTHERS, baselines, strict=True)
        }
    methods = {}
    for method, function in functions.items():
        (suspicion, flags, answer), seconds = time_call(function)
        methods[method] = (
            (scores(suspicion, wrong.numpy()) if rate else {}) | answer | {"seconds": seconds}
        )
        if flags is not None:
            methods[method] |= {
                "flagged": int(flags.sum()),
                "hits": int((flags & wrong.numpy()).sum()),
            }
    return {
        "data": name,
        "kind": kind,
        "asked": rate,
        "wrong": int(wrong.sum()),
        "n": len(y),
        "methods": methods,
    }


def lists(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return flagged targets, precision, recall and rates per method, kind and planted rate."""
    frame, rows = flatten(cells), []
    for method in (OURS, *OTHERS[:2]):
        for (kind, asked), part in frame[frame["method"] == method].groupby(
            ["kind", "asked"], sort=False
        ):
            answers = part[part["answered"]]
            if answers.empty:
                continue
            flagged, hits, wrong = (
                int(answers[name].sum()) for name in ("flagged", "hits", "wrong")
            )
            row = {
                "method": method, "kind": kind if asked else "none", "planted": asked, "cells": len(part),
                "answered": len(answers), "flagged": flagged, "precision": hits / flagged if flagged else None,
                "recall": hits / wrong if wrong else None, "mean rate": float(answers["rate"].mean()),
            }  # fmt: skip
            if method == OURS:
                row["covered"] = int((answers["wrong"] / answers["n"] <= answers["high"]).sum())
            rows.append(row)
    return rows


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores per table, kind and method, paired differences, and lists."""
    with_errors = [cell for cell in cells if cell["asked"]]
    frame, rows = flatten(with_errors), []
    for by in ("data", "kind"):
        for (value, method), part in frame.groupby([by, "method"], sort=False):
            means = {name: float(part[name].mean()) for name in (*METRICS, "seconds")}
            rows.append({"by": value, "method": method, "cells": len(part)} | means)
    pairs = [(OURS, other) for other in OTHERS]
    return {"rows": rows, "differences": differences(with_errors, pairs), "lists": lists(cells)}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cells by name, one without errors for each table and seed."""
    kinds = [(KINDS[0], 0.0), *((kind, rate) for kind in KINDS for rate in RATES)]
    return {
        f"{name} {kind} {rate} {seed}": partial(run_cell, name, kind, rate, seed)
        for name in TABLES
        for kind, rate in kinds
        for seed in SEEDS
    }
