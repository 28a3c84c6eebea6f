"""Options for tests of all measures: fixed generators, and few noise samples or steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gapscope.measures.registry import Measure
from support.scripts import load_script

# the script that writes docs/measures.md
TABLE = load_script(Path(__file__).parents[2] / "docs/measures_table.py")
HISTORY = tuple({"epoch": epoch, "train_loss": 1 / epoch} for epoch in range(1, 6))
SMALL: dict[str, dict[str, Any]] = {
    "margin_signature": {"epsilon": 0.0},
    "power_law_alpha": {"min_eigenvalues": 3},
    "hessian_top_eigenvalue": {"steps": 6, "tolerance": 0.0},
    "hessian_trace": {"probes": 2},
    "davies_bouldin_mixup": {"batch_size": 8},
    "graph_label_variation": {"neighbours": 4},
    "gradient_neighbours": {"neighbours": 5},
} | {
    f"pacbayes_{name}": {"draws": 2}
    for name in ("flatness", "norm", "distance", "magnitude_flatness")
}


def options_of(item: Measure, **given: Any) -> dict[str, Any]:
    """A generator of its own where the measure draws, and those of the given options that it knows."""
    options = {"generator": torch.Generator().manual_seed(0)} if "generator" in item.options else {}
    return options | {name: value for name, value in given.items() if name in item.options}
