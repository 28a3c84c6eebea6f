"""Errors of the network's own code in later passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NetworkFailed
from gapscope.inspection.network_errors import explained_errors

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 2


class _Refusing(nn.Module):
    """Raises KeyError on one sample, which is none of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        if (x == X[50]).all(1).any():
            raise KeyError("broken sample")
        return self.layers(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda network: gs.measure(network, (X, Y), measures=["accuracy"]),
        lambda network: gs.forecast_accuracy(network, (X, Y)),
        lambda network: gs.estimate_accuracy(network, (X.repeat(2, 1), Y.repeat(2))),
        lambda network: gs.out_of_sample(network, (X, Y)),
        lambda network: gs.find_label_issues(network, (X, Y)),
        lambda network: gs.embed(network, X),
        lambda network: gs.validated_accuracy(network, (X[30:], Y[30:]), (X[:30], Y[:30])),
    ],
)
def test_a_later_error_of_the_network_is_one_message(call: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(NetworkFailed, match="raised KeyError: 'broken sample'"):
        call(_Refusing().eval())


def test_errors_of_hooks_and_of_other_code_stay_as_they_are() -> None:
    network = nn.Linear(2, 2)

    def train() -> None:
        network(torch.ones(1, 3))

    with pytest.raises(ZeroDivisionError), explained_errors():
        1 / 0  # noqa: B018
    # called by a function of the user, who knows the network's errors
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught, explained_errors():
        train()
    assert not isinstance(caught.value, NetworkFailed)


def test_a_batch_of_one_sample_is_too_small_for_batch_norm() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    with pytest.raises(NetworkFailed, match="per batch or more"):
        gs.penalties.L2Penalty(0.1)(network, torch.randn(1, 5))


def test_a_network_that_returns_arrays_is_told_to_return_tensors() -> None:
    class Arrays(nn.Linear):
        def forward(self, input: torch.Tensor) -> Any:
            return super().forward(input).detach().numpy()

    with pytest.raises(InvalidInput, match="got a numpy array"):
        gs.measure(Arrays(5, 3), (torch.randn(8, 5), torch.arange(8) % 3))


@pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize(
    "call",
    [
        lambda network: gs.measure(network, (X, Y), "margin_signature"),
        lambda network: gs.functional.ntk_trace(network, X),
        lambda network: gs.embed(network, X),
        lambda network: gs.GradientSimilarityPenalty(1.0)(network, X),
        lambda network: gs.measure(network[0], (X, Y)),
    ],
    ids=["margin_signature", "ntk_trace", "embed", "penalty", "outermost"],
)
def test_a_compiled_module_is_named_as_what_it_is(call: Callable[[Any], Any]) -> None:
    compiled: Any = torch.jit.script(nn.Linear(4, 3))
    network = nn.Sequential(compiled, nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(InvalidInput, match=r"ScriptModule, .* nn\.Module"):
        call(network)
    assert gs.measure(network, (X, Y), "accuracy").values()  # needs no hooks
