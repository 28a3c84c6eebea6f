"""Which regression targets are wrong: gapscope's leave-one-out residuals beside cleanlab's out-of-fold residuals.

    python -m gapscope_studies.labels.targets results/labels/targets.json --cells DIR

Errors are planted into three tables: gross ones (2 to 5 standard deviations are added or subtracted), swapped targets,
and targets in another unit (10 times or a tenth). cleanlab's method for regression ranks by the residual of an
out-of-fold prediction (score exp(-|r|)): here of a random forest and of linear regression, with five folds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json
from gapscope.base.randomness import derive_seed
from gapscope.pools.jobs import run_cached
from gapscope_studies.kit.light import light_json
from gapscope_studies.kit.provenance import commit
from gapscope_studies.kit.statistics import mean
from gapscope_studies.labels.summary import METRICS, scores

TABLES = ("concrete", "boston_housing", "california_housing")
KINDS, RATES, SEEDS, N = ("gross", "swapped", "unit"), (0.05, 0.1, 0.2), (1001, 1002), 600
OWN, OTHERS = "gapscope", ("random forest, five folds", "linear regression, five folds")


def plant(targets: Tensor, kind: str, rate: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Targets with errors, and which are wrong; swapped targets that are equal stay correct."""
    chosen = torch.randperm(len(targets), generator=generator)[: round(rate * len(targets))]
    noisy = targets.clone()
    if kind == "swapped":
        noisy[chosen] = targets[chosen.roll(1)]
    else:
        sign = torch.randint(2, chosen.shape, generator=generator) * 2 - 1
        size = torch.rand(chosen.shape, generator=generator) * 3 + 2
        gross = targets[chosen] + sign * size * targets.std()
        noisy[chosen] = gross if kind == "gross" else targets[chosen] * 10.0**sign
    return noisy, noisy != targets


def own_residuals(x: Tensor, y: Tensor) -> np.ndarray:
    """Suspicion by `gs.find_label_issues`."""
    issues, suspicion = gs.find_label_issues(None, (x, y[:, None])), np.empty(len(y))
    suspicion[issues.indices.numpy()] = -issues.margin.numpy()
    return suspicion


def out_of_fold_residuals(model: Any, x: Tensor, y: Tensor, seed: int) -> np.ndarray:
    """Size of the residual of each target by a model that was fitted to the other folds."""
    from sklearn.model_selection import KFold, cross_val_predict

    folds = KFold(5, shuffle=True, random_state=seed)
    return np.abs(np.asarray(cross_val_predict(model, x.numpy(), y.numpy(), cv=folds)) - y.numpy())


def run_cell(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """All methods on one table with planted errors."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.linear_model import LinearRegression

    train = gs.load_dataset(name).train
    assert train.targets is not None
    generator = torch.Generator().manual_seed(derive_seed(seed, f"{name} {kind} {rate}"))
    rows = torch.randperm(len(train), generator=generator)[:N]
    x, (y, wrong) = train.inputs[rows].double(), plant(train.targets[rows, 0].double(), kind, rate, generator)
    run: dict[str, Callable[[], np.ndarray]] = {
        OWN: partial(own_residuals, x, y),
        OTHERS[0]: partial(out_of_fold_residuals, RandomForestRegressor(random_state=seed), x, y, seed),
        OTHERS[1]: partial(out_of_fold_residuals, LinearRegression(), x, y, seed),
    }
    methods = {}
    for method, function in run.items():
        start = time.process_time()
        suspicion = function()
        methods[method] = scores(suspicion, wrong.numpy()) | {"seconds": time.process_time() - start}
    return {"data": name, "kind": kind, "asked": rate, "methods": methods}


def summarize(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean scores per table, kind and method, and paired differences with 95 % intervals over tables."""
    rows, differences = [], []
    for by in ("data", "kind"):
        for value in dict.fromkeys(cell[by] for cell in cells):
            part = [cell["methods"] for cell in cells if cell[by] == value]
            for method in (OWN, *OTHERS):
                means = {name: float(np.mean([one[method][name] for one in part])) for name in (*METRICS, "seconds")}
                rows.append({"by": value, "method": method, "cells": len(part)} | means)
    for other in OTHERS:
        row: dict[str, Any] = {"method": OWN, "minus": other}
        for metric in METRICS:
            values = [cell["methods"][OWN][metric] - cell["methods"][other][metric] for cell in cells]
            result = mean(values, [cell["data"] for cell in cells])
            row[metric] = [result.value, result.low, result.high]
            row[f"{metric}, ahead"] = f"{sum(value > 0 for value in values)} of {len(values)}"
        differences.append(row)
    return {"rows": rows, "differences": differences}


def main() -> None:
    """Run the cells that are not finished, and write the summary of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=Path, required=True, help="folder of finished cells")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {
        f"{name} {kind} {rate} {seed}": partial(run_cell, name, kind, rate, seed)
        for name in TABLES for kind in KINDS for rate in RATES for seed in SEEDS
    }  # fmt: skip
    cells = run_cached(jobs, args.cells, workers=1)
    content = {"environment": environment(), "commit": commit(), **summarize(list(cells.values()))}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(light_json(to_json(content)))


if __name__ == "__main__":
    main()
