"""Every call in the tables of the paper pages runs, on small networks and data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs

PAGES = sorted((Path(__file__).parents[2] / "docs" / "papers").glob("*.md"))


def calls(page: Path) -> list[str]:
    """Code in the last column of the table of equations that calls something."""
    table = page.read_text().split("## Equations\n")[1].split("\n## ")[0]
    cells = [
        line.strip().strip("|").split(" | ")[-1]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def namespace() -> dict[str, Any]:
    """The names that the tables use."""
    torch.manual_seed(0)
    data = gs.load_dataset("digits").train.subset(torch.arange(40))
    x, y = data.inputs.flatten(1), data.y
    network = nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))
    gs.train(network, (x, y), gs.TrainingSpec(epochs=2, batch_size=20))
    layers = gs.theory.fully_connected_layers(64, [30, 30], weights=1 / 30, biases=0.1)
    numbers = {"M": 20, "K": 10, "S": 1e-3, "alpha": 3.0, "gamma": 0.5, "R": 0.7, "strength": 0.01}
    arrays = {
        "noise": 0.1 * torch.randn(40, 64),
        "times": torch.linspace(0, 5, 5),
        "predictions": torch.rand(4, 40, 10),
    }
    samples = {"network": network, "x": x, "y": y, "targets": y, "data": (x, y), "layers": layers}
    return {"gs": gs, "nn": nn, "torch": torch, **numbers, **arrays, **samples}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_call_in_the_table_runs(page: Path, namespace: dict[str, Any]) -> None:
    found = calls(page)
    assert len(found) >= 4 and all(code.startswith("gs.") and "(" in code for code in found)
    for code in found:
        assert eval(code, namespace) is not None, code
