"""Ranking networks: directions, intervals, the size baseline."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def sharp(scale: float) -> nn.Module:
    network = nn.Linear(5, 2, bias=False)
    with torch.no_grad():
        network.weight.zero_()
        network.weight[:, 0] = torch.tensor([-scale, scale])
    return network


NETWORKS = {"flat": sharp(0.1), "steep": sharp(3.0)}


def test_the_direction_of_each_measure_decides_the_rank() -> None:
    table = gs.compare(NETWORKS, (X, Y), ["input_jacobian_norm", "loss"])
    rows = table.to_dict("records")
    ranks = {(row["measure"], row["network"]): row["rank"] for row in rows}
    assert ranks["input_jacobian_norm", "flat"] == 1 and ranks["input_jacobian_norm", "steep"] == 2
    assert ranks["loss", "flat"] != ranks["loss", "flat"]  # NaN: no direction is known
    assert {row["measure"] for row in rows} == {"input_jacobian_norm", "loss", "parameter_count"}


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    table = gs.compare(NETWORKS, (X, Y), ["loss"], n_groups=100)
    (row,) = (row for row in table.to_dict("records") if (row["measure"], row["network"]) == ("loss", "steep"))
    losses = nn.functional.cross_entropy(NETWORKS["steep"](X), Y, reduction="none").detach().double()
    assert row["standard_error"] == pytest.approx(losses.std().item() / 200**0.5, rel=0.15)
    assert row["high"] - row["value"] == pytest.approx(1.959964 * row["standard_error"], rel=1e-4)


def test_wrong_input_gets_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="at least two networks; got 1"):
        gs.compare({"one": nn.Linear(5, 2)}, X)
    with pytest.raises(InvalidInput, match=r"n_groups must lie in \[2, 200\]; got 1"):
        gs.compare(NETWORKS, X, n_groups=1)
