"""The input Jacobian against dense autograd in float64, and its probes against the exact value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
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
    squared = input_jacobian_norm(network, x, space=space, squared=True)
    assert squared == pytest.approx(norms.square().mean().item(), rel=1e-12)


@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_probes_are_unbiased_and_their_standard_error_is_their_spread(case, space):
    network, x = case
    exact = input_jacobian_norm(network, x, space=space, squared=True)
    probed = [
        input_jacobian_norm(
            network,
            x,
            space=space,
            squared=True,
            method="probe",
            draws=4,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in range(200)
    ]
    spread = np.std([float(value) for value in probed])
    assert abs(np.mean(probed) - exact) < 4 * spread / np.sqrt(200)
    assert np.sqrt(np.mean(np.square([value.standard_error or 0 for value in probed]))) == pytest.approx(
        spread, rel=0.2
    )


def test_one_probe_has_a_standard_error_not_below_its_spread(case):
    network, x = case
    probed = [
        input_jacobian_norm(network, x, squared=True, method="probe", generator=torch.Generator().manual_seed(seed))
        for seed in range(100)
    ]
    assert np.mean([value.standard_error or 0 for value in probed]) > 0.95 * np.std([float(value) for value in probed])


def test_saturated_probabilities_keep_their_small_derivatives():
    network, x = nn.Linear(48, 2), torch.randn(11, 48, dtype=torch.float64)
    with torch.no_grad():
        network.bias.copy_(torch.tensor([40.0, 0.0]))
    expected = dense_norms(network.double(), x, "probabilities").mean().item()
    assert expected < 1e-15
    assert input_jacobian_norm(network.float(), x.float(), space="probabilities") == pytest.approx(expected, rel=1e-3)


def test_a_probe_of_the_norm_itself_is_rejected(case):
    network, x = case
    with pytest.raises(InvalidInput, match="squared=True, because"):
        input_jacobian_norm(network, x, method="probe")
