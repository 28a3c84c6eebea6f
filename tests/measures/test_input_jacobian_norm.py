"""The input Jacobian against dense autograd in float64, and its probes against the exact value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.measures.input_jacobian_norm import input_jacobian_norm


def fully_connected() -> nn.Module:
    return nn.Sequential(nn.Linear(48, 12), nn.Tanh(), nn.Linear(12, 5))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 4, 4)),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


@pytest.fixture(params=[fully_connected, convolutional])
def network(request) -> nn.Module:
    torch.manual_seed(0)
    network = request.param().double()
    network(torch.randn(20, 48, dtype=torch.float64))  # running statistics that are not 0 and 1
    return network


@pytest.fixture
def x() -> Tensor:
    return torch.randn(11, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


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
def test_equals_the_dense_jacobian(network, x, space):
    norms = dense_norms(network, x, space)
    measured = input_jacobian_norm(network, x, space=space)
    assert measured.exact
    assert measured == pytest.approx(norms.mean().item(), rel=1e-12)
    squared = input_jacobian_norm(network, x, space=space, squared=True)
    assert squared == pytest.approx(norms.square().mean().item(), rel=1e-12)


@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_probes_are_unbiased_and_their_standard_error_is_their_spread(network, x, space):
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


def test_one_probe_has_a_standard_error_not_below_its_spread(network, x):
    probed = [
        input_jacobian_norm(network, x, squared=True, method="probe", generator=torch.Generator().manual_seed(seed))
        for seed in range(100)
    ]
    assert np.mean([value.standard_error or 0 for value in probed]) > 0.95 * np.std([float(value) for value in probed])


def test_saturated_probabilities_keep_their_small_derivatives(x):
    torch.manual_seed(0)
    network = nn.Linear(48, 2)
    with torch.no_grad():
        network.bias.copy_(torch.tensor([40.0, 0.0]))
    expected = dense_norms(network.double(), x, "probabilities").mean().item()
    assert expected < 1e-15
    assert input_jacobian_norm(network.float(), x.float(), space="probabilities") == pytest.approx(expected, rel=1e-3)


def test_a_probe_of_the_norm_itself_is_refused(network, x):
    with pytest.raises(InvalidInput, match="needs squared=True, because the probe of the norm itself is biased"):
        input_jacobian_norm(network, x, method="probe")
