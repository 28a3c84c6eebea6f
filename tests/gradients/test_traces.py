from __future__ import annotations

import pytest
import torch

from gapscope.gradients.tape import record_calls
from gapscope.gradients.traces import one_hot_cotangents, per_sample_traces, square_norms
from gradients.reference import CASES, dense_jacobian, gradient_of


@pytest.mark.parametrize("name", CASES)
def test_trace_of_every_sample_is_exact(name: str) -> None:
    network, x = CASES[name].make()
    expected = dense_jacobian(network, x).square().sum((1, 2))
    torch.testing.assert_close(per_sample_traces(network, x, None, chunk_size=64)[0], expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_the_squared_norms_is_exact(name: str) -> None:
    network, x = CASES[name].make()
    jacobian = dense_jacobian(network, x, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    with record_calls(network, x) as tape:
        outputs = network(x)
    random = torch.randn(1, *outputs.shape, generator=generator, dtype=outputs.dtype)
    for weights in (random, one_hot_cotangents(outputs)):
        expected = torch.einsum("wnc,ncp->wnp", weights, jacobian).square().sum()
        value = square_norms(tape, outputs, weights, create_graph=True).sum()
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=0)
        gradient = gradient_of(expected, network)
        torch.testing.assert_close(
            gradient_of(value, network), gradient, rtol=1e-10, atol=1e-10 * float(gradient.abs().max())
        )
