"""Reentrant checkpoints hide no parameters, wherever they stand."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential

from gapscope.base.errors import ReplaceLayer
from gapscope.inspection.checkpoints import check_no_reentrant_checkpoint, direct_checkpoints
from gapscope.measures.ntk import empirical_ntk, ntk_trace
from gapscope.measures.registry import get_measure
from gapscope.penalties.gradient_norms import LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gradients.reference import Wrapped

pytestmark = pytest.mark.filterwarnings("ignore:.*requires_grad=True:UserWarning")
X, Y = (
    torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 1, 2, 0, 1, 2]),
)


def _plain(net: Any, x: Tensor) -> Tensor:
    return net.last(net.second(net.first(x)))


def _first(net: Any, x: Tensor) -> Tensor:
    return net.last(net.second(checkpoint(net.first, x, use_reentrant=True)))


def _second(net: Any, x: Tensor) -> Tensor:
    return net.last(checkpoint(net.second, net.first(x), use_reentrant=True))


def _all(net: Any, x: Tensor) -> Tensor:
    return checkpoint_sequential([net.first, net.second, net.last], 3, x, use_reentrant=True)


def _network(forward: Any) -> nn.Module:
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    return Wrapped(
        forward, first=first, second=nn.Sequential(nn.Linear(4, 4), nn.Tanh()), last=nn.Linear(4, 3)
    )


@pytest.mark.parametrize("forward", [_first, _second, _all])
def test_measures_and_penalties_equal_those_without_checkpoints(forward: Any) -> None:
    network, plain = _network(forward), _network(_plain)
    assert ntk_trace(network, X) == ntk_trace(plain, X)
    assert torch.equal(empirical_ntk(network, X), empirical_ntk(plain, X))
    for name in ("fisher_trace", "connection_sensitivity"):
        function = get_measure(name).function
        assert float(function(network, X, Y)) == float(function(plain, X, Y))
    for make in (
        lambda: GradientSimilarityPenalty(0.1, every=2),
        lambda: LossGradientPenalty(0.1, every=2),
    ):
        both = (network, make()), (plain, make())
        for _ in range(2):  # calls with the penalty and without it
            gradients = []
            for net, penalty in both:
                outputs, value = penalty.forward_with_penalty(net, X, Y)
                loss = F.cross_entropy(outputs, Y) + value
                gradients.append(torch.autograd.grad(loss, list(net.parameters())))
            assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_the_checkpoint_is_reentrant_again_afterwards() -> None:
    with pytest.raises(KeyError), direct_checkpoints():
        raise KeyError
    assert "apply" not in vars(CheckpointFunction)
    outputs = _network(_second)(X)
    with pytest.raises(ReplaceLayer, match="use_reentrant=False"):
        check_no_reentrant_checkpoint(outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with direct_checkpoints():
            assert _network(_first)(X).grad_fn is not None
