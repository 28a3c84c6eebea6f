"""The input Jacobian against dense autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gapscope.measures.input_jacobian_norm import input_jacobian_norm
from support.cases import CASES


@pytest.fixture(params=["fully connected", "convolutional"])
def case(request) -> tuple[nn.Module, Tensor]:
    network, samples = CASES[request.param].make(11, dtype=torch.float64)
    return network.train(), samples.inputs


def dense_norms(network: nn.Module, x: Tensor, space: str) -> Tensor:
    was_training = network.training
    network.eval()

    def outputs(one: Tensor) -> Tensor:
        raw = network(one[None])[0]
        return raw.softmax(0) if space == "probabilities" else raw

    norms = torch.stack([torch.func.jacrev(outputs)(one).norm() for one in x])  # type: ignore[arg-type]
    network.train(was_training)
    return norms.detach()


@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_equals_the_dense_jacobian(case, space):
    network, x = case
    norms = dense_norms(network, x, space)
    measured = input_jacobian_norm(network, x, space=space)
    assert measured.exact
    assert measured == pytest.approx(norms.mean().item(), rel=1e-12)


def test_saturated_probabilities_keep_their_small_derivatives():
    network, x = nn.Linear(48, 2), torch.randn(11, 48, dtype=torch.float64)
    with torch.no_grad():
        network.bias.copy_(torch.tensor([40.0, 0.0]))
    expected = dense_norms(network.double(), x, "probabilities").mean().item()
    assert expected < 1e-15
    assert input_jacobian_norm(network.float(), x.float(), space="probabilities") == pytest.approx(
        expected, rel=1e-3
    )
