"""Gradient neighbours against a dense computation and counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.measures.gradient_neighbours import gradient_neighbours


def test_neighbours_are_the_most_similar_gradients_of_a_dense_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 4, generator=generator), torch.arange(20) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    parameters = list(network.parameters())
    rows = []
    for sample in x:
        outputs = network(sample[None])[0]
        gradients = [torch.autograd.grad(output, parameters, retain_graph=True) for output in outputs]
        rows.append(torch.stack([torch.cat([part.flatten() for part in gradient]) for gradient in gradients]))
    jacobian = torch.stack(rows).flatten(1).double()
    similarity = torch.nn.functional.cosine_similarity(jacobian[:, None], jacobian[None], dim=2).fill_diagonal_(-2)
    assert torch.equal(gradient_neighbours(network.train(), x, y, neighbours=5).neighbours, similarity.topk(5).indices)
    assert network.training


def test_a_sample_without_a_gradient_is_nobodys_first_neighbour() -> None:
    network = nn.Linear(2, 1, bias=False)
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 0.0], [1.0, 0.2]])
    neighbours = gradient_neighbours(network, x, torch.tensor([0, 0, 0, 0]), neighbours=2).neighbours
    assert 2 not in neighbours[[0, 1, 3]]


def test_agreement_and_conflict_by_hand() -> None:
    # two directions; the last sample of each has the other's label
    x = torch.tensor([[1.0, 0.0], [1.0, 0.01], [1.0, 0.02], [0.0, 1.0], [0.01, 1.0], [0.02, 1.0]])
    y = torch.tensor([0, 0, 1, 1, 1, 0])
    network = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(5 * torch.eye(2))  # the network finds class 0 in the first direction, 1 in the second
    result = gradient_neighbours(network, x, y, neighbours=2, voters=2)
    assert result.conflict == pytest.approx(2 / 6)  # the two odd ones
    assert result.votes.sum(1).tolist() == [1.0] * 6
    assert result.votes[2].tolist() == [1.0, 0.0]
    assert result.scalars() == {"agreement": result.agreement, "conflict": result.conflict}
