"""Kernel, trace and log determinant against closed forms and each other."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.measures.ntk import LogDeterminant, empirical_ntk, ntk_logdet, ntk_trace
from gradients.reference import Wrapped, dense_jacobian
from support.cases import CASES, each

PROBES = pytest.mark.parametrize("probe", ["class", "rademacher"])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fully_connected(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1]).double()


def inputs(n: int, *shape: int) -> Tensor:
    return torch.randn(n, *shape, dtype=torch.float64, generator=seeded(1))


@pytest.mark.parametrize("head", [torch.float32, torch.bfloat16])
def test_a_network_that_casts_its_inputs_takes_those_of_the_penalty(head: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = {"first": nn.Linear(5, 8).bfloat16(), "head": nn.Linear(8, 3).to(head)}
    network = Wrapped(
        lambda net, x: net.head(torch.relu(net.first(x.bfloat16())).to(head)).float(), **layers
    )
    x = torch.randn(6, 5)
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    expected = penalty(network, x).item()
    # the products of two forms of one sum, of the same gradients
    assert float(ntk_trace(network, x)) == pytest.approx(expected, rel=1e-5)
    assert float(empirical_ntk(network, x, outputs="traced").trace()) == pytest.approx(expected)
    measured = gs.measure(network, (x, torch.arange(6) % 3), ["ntk_trace"])
    assert measured["ntk_trace"].value == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InvalidInput, match="same dtype"):
        ntk_trace(layers["first"], x)


def test_a_network_in_single_precision_is_computed_in_double_precision() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    )
    x = inputs(5, 1, 6, 6).float()
    exact = empirical_ntk(network, x, x, dtype=torch.float64)
    torch.testing.assert_close(
        exact, empirical_ntk(copy.deepcopy(network).double(), x.double()), rtol=1e-12, atol=1e-12
    )
    difference = (empirical_ntk(network, x) - exact).abs().max() / exact.abs().max()
    assert exact.dtype == torch.float64 and 1e-9 < float(difference) < 1e-5
    assert next(network.parameters()).dtype == torch.float32 and not exact.requires_grad


def test_trace_in_the_closed_form_of_a_relu_network() -> None:
    """Sum over layers of |delta|^2 (|a|^2 + 1), delta^L = I."""
    network, x = fully_connected(4, 16, 16, 5), inputs(12, 4)
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    activations, masks = [x], []
    for layer in layers[:-1]:
        z = layer(activations[-1])
        masks.append((z > 0).double())
        activations.append(z.relu())
    delta, expected = torch.eye(5, dtype=x.dtype).expand(len(x), 5, 5), 0.0
    for i in reversed(range(len(layers))):
        expected += float(
            (delta.square().sum((1, 2)) * (activations[i].square().sum(1) + 1)).sum().detach()
        )
        if i:
            delta = (delta @ layers[i].weight) * masks[i - 1][:, None]
    trace = ntk_trace(network, x)
    assert trace.exact and trace == pytest.approx(expected, rel=1e-12)


@pytest.mark.thorough
@PROBES
def test_probes_converge_to_the_trace_within_their_standard_error(probe: Any) -> None:
    network, x = fully_connected(4, 16, 16, 5), inputs(12, 4)
    exact = ntk_trace(network, x)
    estimate = ntk_trace(network, x, method="probe", probe=probe, draws=400)
    assert estimate.standard_error is not None
    assert abs(estimate - exact) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.05 * exact
    draws = [
        ntk_trace(network, x, method="probe", probe=probe, draws=4, generator=seeded(seed))
        for seed in range(200)
    ]
    spread = torch.tensor(draws).std()
    typical = torch.tensor([draw.standard_error for draw in draws]).square().mean().sqrt()
    assert 0.8 < float(typical / spread) < 1.25


@PROBES
def test_the_error_of_one_probe_is_not_too_small(probe: Any) -> None:
    network, x = fully_connected(4, 16, 16, 5), inputs(12, 4)
    exact = ntk_trace(network, x)
    draws = [
        ntk_trace(network, x, method="probe", probe=probe, generator=seeded(seed))
        for seed in range(100)
    ]
    spread = math.sqrt(sum((draw - exact) ** 2 for draw in draws) / len(draws))
    typical = math.sqrt(sum((draw.standard_error or 0) ** 2 for draw in draws) / len(draws))
    assert typical > 0.9 * spread


def test_log_determinant_rank_and_eigenvalues() -> None:
    network, x = fully_connected(4, 16, 3, activation=nn.Tanh), inputs(5, 4)
    result = ntk_logdet(network, x)
    matrix = empirical_ntk(network, x).flatten(2).flatten(0, 1)
    assert result == pytest.approx(float(torch.linalg.slogdet(matrix).logabsdet), rel=1e-10)
    assert result.rank == 15
    assert float(result.eigenvalues.sum()) == pytest.approx(ntk_trace(network, x), rel=1e-12)
    traced = ntk_logdet(network, x, outputs="traced")
    assert traced == pytest.approx(
        float(torch.logdet(empirical_ntk(network, x, outputs="traced"))), rel=1e-10
    )
    again = pickle.loads(pickle.dumps(result))
    assert again == result and torch.equal(again.eigenvalues, result.eigenvalues)


def test_a_duplicated_sample_makes_the_kernel_singular_in_both_precisions() -> None:
    network, x = fully_connected(4, 16, 3, activation=nn.Tanh), inputs(5, 4)
    twice = torch.cat([x, x[:1]])
    result = ntk_logdet(network, twice)
    assert result == -math.inf and result.rank == 15
    single = ntk_logdet(network.float(), twice.float(), dtype=None)
    assert single == -math.inf and single.rank == 15
    assert ntk_logdet(network, twice.float()) == -math.inf  # float64 unless told otherwise


def test_effective_rank() -> None:
    equal = LogDeterminant(torch.ones(4, dtype=torch.float64), 0.0)
    assert equal.effective_rank == pytest.approx(4)
    single = LogDeterminant(torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64), 1e-12)
    assert single.effective_rank == pytest.approx(1) and single == -math.inf
    assert LogDeterminant(torch.zeros(2, dtype=torch.float64), 0.0).effective_rank == 0


@each()
def test_trace_and_kernel_are_those_of_the_dense_jacobian(name: str) -> None:
    network, samples = CASES[name].make(4, dtype=torch.float64)
    jacobian = dense_jacobian(network, samples.inputs)
    expected = torch.einsum("ncp,mdp->ncmd", jacobian, jacobian)
    torch.testing.assert_close(
        empirical_ntk(network, samples.inputs), expected, rtol=1e-9, atol=1e-9
    )
    trace = ntk_trace(network, samples.inputs)
    assert abs(trace - float(jacobian.square().sum())) <= 1e-9 * float(trace) and float(trace) > 0
