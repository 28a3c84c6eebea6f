"""Other tensors are seen in place of a network's own, however its code comes by them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.inspection.substitution import ParameterSubstitution, cast_like, cast_network

DOUBLE = torch.float64


class Constants(nn.Module):
    """Numbers in single precision in every place but the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.plain = torch.randn(3, 3)
        self.listed = [torch.randn(3)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).float() @ self.plain + self.listed[0] + torch.ones(3) * torch.tensor(0.5)
        h = h + torch.zeros(3, dtype=torch.float32).add_(1.0)
        return h.to(torch.float32).to(self.plain.dtype)


class Pair(NamedTuple):
    first: Tensor
    second: int


def test_a_tensor_is_replaced_wherever_it_lies_among_arguments() -> None:
    given, other, apart = torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)
    substituted = ParameterSubstitution([(given, other)])
    seen: Any = substituted._seen(
        (
            given,
            [apart, (given, 1, None)],
            {"a": [given]},
            Pair(given, 2),
            OrderedDict(b=given),
            torch.Size([2]),
            "text",
        )
    )
    assert seen[0] is other and seen[1][0] is apart and seen[1][1][0] is other and seen[1][1][1:] == (1, None)
    assert seen[2]["a"][0] is other and type(seen[3]) is Pair and seen[3].first is other
    assert seen[4]["b"] is other and seen[5:] == (torch.Size([2]), "text")
    assert type(seen[5]) is torch.Size
    assert substituted._seen(torch.float32) == torch.float32
    assert ParameterSubstitution([], DOUBLE)._seen([torch.float32, torch.int64, torch.complex64]) == [
        DOUBLE, torch.int64, torch.complex128,
    ]  # fmt: skip


def test_everything_is_computed_in_the_precision_asked_for() -> None:
    network = Constants()
    x = torch.randn(4, 3, dtype=DOUBLE)
    with cast_network(network, DOUBLE):
        found = network(x)
    weight, bias = network.layer.weight.double(), network.layer.bias.double()
    expected = F.linear(x, weight, bias) @ network.plain.double() + network.listed[0].double() + 1.5
    assert found.dtype == DOUBLE
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    assert network.plain.dtype == network.layer.weight.dtype == torch.float32


def test_a_parameter_is_replaced_in_lists_closures_and_recurrent_layers() -> None:
    network: Any = nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(2, 4, 2, dtype=DOUBLE)
    doubled = [(p, 2 * p.detach()) for p in network.parameters()]
    with ParameterSubstitution(doubled):
        found = network(x)[0]
        assert torch.equal(network.weight_ih_l0 + 0, doubled[0][1])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
    torch.testing.assert_close(found, network(x)[0])


def test_writing_to_a_buffer_writes_to_its_stand_in() -> None:
    network: Any = nn.BatchNorm1d(2)
    with cast_network(network, DOUBLE):
        network(torch.randn(5, 2, dtype=DOUBLE) + 3)
        network.running_mean.add_(1.0)
    assert not bool(network.running_mean.any())


@pytest.mark.parametrize("given", [torch.complex64, torch.float32])
def test_complex_numbers_stay_complex(given: torch.dtype) -> None:
    network = nn.Linear(2, 2, dtype=given)
    with cast_network(network, DOUBLE) as substituted:
        found = network(torch.randn(3, 2, dtype=DOUBLE).to(given))
    assert found.dtype == substituted[network.weight].dtype == (torch.complex128 if given.is_complex else DOUBLE)


def test_a_tensor_is_converted_inside_a_substitution_too() -> None:
    """There it says the precision in which it is seen, not its own."""
    x = torch.ones(2)
    with ParameterSubstitution([], DOUBLE):
        converted = cast_like(x, DOUBLE)
    assert converted.dtype == DOUBLE and x.dtype == torch.float32
