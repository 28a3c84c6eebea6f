"""A mapping of one tensor is answered as the tensor: in checks, in the search for copies, for positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.samples import as_samples


class Named(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layers(values)


def table() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator) * torch.tensor([1.0, 1, 1, 1000])
    return x, (x[:, 0] > 0).long()


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = nn.functional.interpolate(torch.rand(60, 3, 4, 4, generator=generator), size=16)
    return torch.cat([x, x[:6].flip(3)]), torch.arange(66) % 2


def outcomes(result: Any) -> dict[str, str]:
    """Return the text of every check, by its code."""
    found = {item.code: item.evidence for item in (*result.findings, *result.fine)}
    return found | {item.code: item.reason for item in result.not_checked}


@pytest.mark.parametrize("make", [table, pictures])
@pytest.mark.parametrize("with_network", [False, True])
def test_checks_of_a_mapping_of_one_tensor_are_those_of_the_tensor(
    make: Any, with_network: bool
) -> None:
    x, y = make()
    torch.manual_seed(0)
    network = None
    if with_network:
        network = Named(nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 2)))
        gs.train(network, (x / x.std(0), y), gs.TrainingSpec(epochs=3))
    codes = ["GS101", "GS105", "GS107", "GS110", "GS404"]
    plain, named = (
        gs.check(network, (data, y), test=(test, y[:50]), only=codes)
        for data, test in ((x, x[:50]), ({"values": x}, {"values": x[:50]}))
    )
    assert outcomes(named) == outcomes(plain)


def test_copies_of_pictures_in_a_mapping_are_found() -> None:
    x, y = pictures()
    results = [gs.find_label_issues(None, (data, y)) for data in (x, {"pixel_values": x})]
    assert results[0].conflicts == results[1].conflicts
    assert as_samples(({"pixel_values": x}, y)).has_one_input
    assert not as_samples(({"a": x, "b": x}, y)).has_one_input


def test_pixels_of_a_mapping_are_predicted_from_their_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, 6, 6, generator=generator)
    y = (x[:, 0] > 0).long()
    plain, named = (repr(gs.forecast_accuracy(None, (data, y))) for data in (x, {"image": x}))
    assert named == plain and "3 x 3" in plain
