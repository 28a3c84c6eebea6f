from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gapscope.measures.ntk import ntk_trace


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5)).double()


def _inputs(n: int = 12) -> torch.Tensor:
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _analytic_trace(network: nn.Module, x: torch.Tensor) -> float:
    """The closed form for ReLU networks: sum over layers of |delta|^2 (|a|^2 + 1), delta^L = I."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    activations, masks = [x], []
    for layer in layers[:-1]:
        z = layer(activations[-1])
        masks.append((z > 0).double())
        activations.append(z.relu())
    delta = torch.eye(5, dtype=x.dtype).expand(len(x), 5, 5)
    total = 0.0
    for i in reversed(range(len(layers))):
        total += float((delta.square().sum((1, 2)) * (activations[i].square().sum(1) + 1)).sum().detach())
        if i:
            delta = (delta @ layers[i].weight) * masks[i - 1][:, None]
    return total


def test_closed_form_of_a_relu_network() -> None:
    network, x = _network(), _inputs()
    trace = ntk_trace(network, x)
    assert trace.exact
    assert math.isclose(trace, _analytic_trace(network, x), rel_tol=1e-12)
    assert math.isclose(ntk_trace(network, x, reduction="mean"), trace / 60, rel_tol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["class", "rademacher", "batch_sum"])
def test_probes_converge_to_the_trace_as_their_standard_error_says(probe: str) -> None:
    network, x = _network(), _inputs()
    exact = ntk_trace(network, x)
    estimate = ntk_trace(network, x, method="probe", probe=probe, draws=400)  # type: ignore[arg-type]
    assert estimate.standard_error is not None
    assert abs(estimate - exact) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.05 * exact
    draws = [
        ntk_trace(network, x, method="probe", probe=probe, draws=4, generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        for seed in range(200)
    ]
    spread = torch.tensor(draws).std()
    typical = torch.tensor([draw.standard_error for draw in draws]).square().mean().sqrt()
    assert 0.8 < float(typical / spread) < 1.25


@pytest.mark.parametrize("probe", ["class", "rademacher", "batch_sum"])
def test_one_probe_states_an_error_that_is_not_too_small(probe: str) -> None:
    network, x = _network(), _inputs()
    exact = ntk_trace(network, x)
    draws = [
        ntk_trace(network, x, method="probe", probe=probe, generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        for seed in range(100)
    ]
    spread = math.sqrt(sum((draw - exact) ** 2 for draw in draws) / len(draws))
    typical = math.sqrt(sum((draw.standard_error or 0) ** 2 for draw in draws) / len(draws))
    assert typical > 0.9 * spread
