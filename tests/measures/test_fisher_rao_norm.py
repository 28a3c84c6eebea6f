"""Fisher-Rao norm: dense gradients of individual samples, and the closed form of homogeneous networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import CASES, each
from gapscope.base.errors import NotMeasurable
from gapscope.measures.path_norms import fisher_rao_norm

DOUBLE = torch.float64


@each()
def test_dense_gradients_of_single_samples(name: str) -> None:
    network, samples = CASES[name].make(5, dtype=DOUBLE)
    parameters = [p for p in network.parameters() if p.requires_grad]
    expected = []
    for x, y in zip(samples.inputs, samples.targets, strict=True):  # type: ignore[arg-type]
        gradients = torch.autograd.grad(F.cross_entropy(network(x[None]), y[None]), parameters)
        expected.append(sum(float((g * p.detach()).sum()) for g, p in zip(gradients, parameters, strict=True)) ** 2)
    found = fisher_rao_norm(network, samples.inputs, samples.targets)  # type: ignore[arg-type]
    assert found == pytest.approx(sum(expected) / 5, rel=1e-9)


def test_closed_form_of_a_homogeneous_network() -> None:
    layers = [
        nn.Linear(4, 6, bias=False),
        nn.ReLU(),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    ]
    network, x, y = nn.Sequential(*layers).double(), torch.randn(7, 4, dtype=DOUBLE), torch.arange(7) % 3
    outputs = network(x).detach()
    by_outputs = outputs.softmax(1) - F.one_hot(y, 3)
    expected = 3**2 * (by_outputs * outputs).sum(1).square().mean()
    assert fisher_rao_norm(network, x, y) == pytest.approx(float(expected), rel=1e-10)


def test_what_it_needs() -> None:
    with pytest.raises(NotMeasurable, match="no trainable parameters"):
        fisher_rao_norm(nn.Identity(), torch.ones(3, 2), torch.zeros(3).long())
