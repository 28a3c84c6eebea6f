"""Rejection of interacting samples by measures that need independent ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import NeverSupported, ReplaceLayer
from gapscope.inspection.independence import check_sample_independence, find_dependence
from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from gapscope.measures.margin_signature import margin_signature
from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.unit_sparsity import unit_sparsity
from gradients.reference import Wrapped

LABELS = torch.arange(8) % 2
MEASURES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "ntk_trace": ntk_trace,
    "ntk_trace by a probe": lambda network, x: ntk_trace(network, x, method="probe"),
    "ntk_logdet": ntk_logdet,
    "empirical_ntk": empirical_ntk,
    "input_jacobian_norm": input_jacobian_norm,
    "output_sensitivity": output_sensitivity,
    "margin_signature": lambda network, x: margin_signature(network, x, LABELS),
    "unit_sparsity": lambda network, x: unit_sparsity(network, x, LABELS),
}


def mixing(function: Callable[[Tensor], Tensor]) -> nn.Module:
    """A network whose hidden layer goes through a function of the whole batch."""
    return Wrapped(
        lambda net, x: net.head(net.act(function(net.layer(x)))),
        layer=nn.Linear(4, 6),
        act=nn.ReLU(),
        head=nn.Linear(6, 2),
    ).eval()


MIXED = {
    "batch mean": lambda h: h - h.mean(0),
    "detached scale": lambda h: h / h.detach().abs().max(),
    "standardised": lambda h: (h - h.mean(0)) / (h.std(0) + 1),
    "statistics of the batch by a function": lambda h: F.batch_norm(h, None, None, training=True),
    "dropout that never stops": lambda h: F.dropout(h, 0.5, True),
    "other samples": lambda h: h.flip(0),
}


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("mix", MIXED)
def test_every_measure_refuses(measure: str, mix: str) -> None:
    with pytest.raises(NeverSupported, match="own sample alone"):
        MEASURES[measure](mixing(MIXED[mix]), torch.randn(8, 4))


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_refuses_batch_norm_without_running_statistics(measure: str) -> None:
    layers = (
        nn.Linear(4, 4),
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(4, 2),
    )
    with pytest.raises(ReplaceLayer, match="'1' uses"):
        MEASURES[measure](nn.Sequential(*layers), torch.randn(8, 4))


def test_a_closed_branch_hides_no_mixing() -> None:
    network = mixing(MIXED["other samples"])
    nn.init.zeros_(network.get_parameter("head.weight"))
    assert find_dependence(network, torch.randn(5, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_networks_whose_samples_are_alone_pass(dtype: torch.dtype) -> None:
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 3),
    )
    network = nn.Sequential(*layers).to(dtype).eval()
    for n in (1, 2, 7):
        check_sample_independence(network, torch.randn(n, 1, 6, 6, dtype=dtype))


def test_weights_that_bear_no_perturbation_are_looked_at_as_they_are() -> None:
    network = Wrapped(
        lambda net, x: net.layer(x) * net.width.sqrt(),
        layer=nn.Linear(3, 2),
        width=nn.Parameter(torch.full((2,), 1e-9)),
    )
    assert not find_dependence(network, torch.randn(4, 3))
    mixed = Wrapped(
        lambda net, x: net.layer(x).flip(0) * net.width.sqrt(),
        layer=nn.Linear(3, 2),
        width=nn.Parameter(torch.full((2,), 1e-9)),
    )
    assert find_dependence(mixed, torch.randn(4, 3))


def test_the_same_weights_and_samples_are_looked_at_once() -> None:
    passes: list[int] = []
    network = Wrapped(
        lambda net, x: (passes.append(len(x)), net.layer(x))[1], layer=nn.Linear(3, 2)
    )
    x = torch.randn(6, 3)

    def looks() -> bool:
        passes.clear()
        assert not find_dependence(network, x)
        return bool(passes)

    assert looks() and not looks()
    x = x.clone()
    assert not looks(), "equal samples"
    x = x + 1
    assert looks() and not looks()
    with torch.no_grad():
        network.get_parameter("layer.weight").add_(1)
    assert looks() and not looks()
    network.eval()
    assert looks() and not looks()


@pytest.mark.parametrize("change", ["a hook", "a flag", "another forward pass"])
def test_a_network_that_begins_to_mix_is_looked_at_again(change: str) -> None:
    network = Wrapped(
        lambda net, x: net.layer(x).flip(0) if getattr(net, "mixes", False) else net.layer(x),
        layer=nn.Linear(3, 2),
    )
    x = torch.randn(6, 3)
    assert not find_dependence(network, x)
    if change == "a hook":
        network.register_forward_hook(lambda module, inputs, output: output.flip(0))
    elif change == "a flag":
        network.mixes = True  # type: ignore[assignment]
    else:
        network.forward = lambda x: network.layer(x).flip(0)  # type: ignore[method-assign, operator]
    assert find_dependence(network, x)


class _OnlyWholeBatches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 3:
            raise IndexError("three rows at least")
        return super().forward(x)


def test_a_network_that_fails_on_smaller_batches_is_no_network_that_mixes_samples() -> None:
    text = "on 4 samples together, and raises IndexError: three rows at least on some of them alone"
    with pytest.raises(NeverSupported, match=re.escape(text)):
        check_sample_independence(_OnlyWholeBatches(3, 2).eval(), torch.randn(8, 3))


PRECISE_HEADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "float64 head": lambda net, x: net.head(net.layer(x).double()),
    "autocast": lambda net, x: net.head(_in_bfloat16(net.layer, x).double()),
    "rounded": lambda net, x: net.head(net.layer(x).bfloat16().double()),
}


def _in_bfloat16(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layer(x)


@pytest.mark.parametrize("way", PRECISE_HEADS)
def test_outputs_may_be_more_precise_than_hidden_layers(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 64)

    def network(mixed: bool) -> nn.Module:
        def forward(net: Any, x: Tensor) -> Tensor:
            outputs = PRECISE_HEADS[way](net, x)
            return outputs + 0.3 * outputs.flip(0) if mixed else outputs

        layers = {"layer": nn.Linear(64, 256), "head": nn.Linear(256, 3).double()}
        return Wrapped(forward, **layers).eval()

    assert not find_dependence(network(False), x)
    assert find_dependence(network(True), x)


def test_the_tolerance_is_that_of_the_precision_of_a_pass() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    # 1e-5 of the other samples: rounding in float32, not in float64
    for dtype, mixes in ((torch.float32, False), (torch.float64, True)):
        network = Wrapped(
            lambda net, x: (h := net.layer(x)).double() + 1e-5 * h.flip(0),
            layer=nn.Linear(4, 3, dtype=dtype),
        )
        assert bool(find_dependence(network.eval(), x.to(dtype), perturbed=False)) == mixes
