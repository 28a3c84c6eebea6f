"""Path norms against enumerated paths, and the Fisher-Rao norm against a closed form."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.measures.path_norms import fisher_rao_norm, path_norm

DOUBLE = torch.float64


def enumerated(weights: list[Tensor], biases: list[Tensor]) -> float:
    """Sum over every path from an input, or from a bias, of the squared product of what it passes."""
    weights, biases = [w.detach() for w in weights], [b.detach() for b in biases]
    total = 0.0
    for start in range(len(weights)):
        sizes = [len(weight) for weight in weights[start:]]
        for path in itertools.product(range(weights[start].shape[1]), *map(range, sizes)):
            product = 1.0
            for weight, (source, target) in zip(
                weights[start:], itertools.pairwise(path), strict=True
            ):
                product *= float(weight[target, source])
            total += (
                product**2 if start == 0 else (product * float(biases[start - 1][path[0]])) ** 2
            )
    return total + float(biases[-1].square().sum())


def test_all_paths_of_a_small_network() -> None:
    network = nn.Sequential(
        nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2), nn.LeakyReLU(), nn.Linear(2, 2)
    ).double()
    layers = [network[0], network[2], network[4]]
    expected = enumerated([layer.weight for layer in layers], [layer.bias for layer in layers])  # type: ignore[misc]
    assert path_norm(network, torch.zeros(1, 2, dtype=DOUBLE)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_its_linear_map_in_evaluation_mode(affine: bool) -> None:
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, affine=affine), nn.ReLU(), nn.Linear(4, 2)
    ).double()
    if affine:
        nn.init.normal_(network[1].weight), nn.init.normal_(network[1].bias)  # type: ignore[arg-type]
    network.train()(torch.randn(50, 3, dtype=DOUBLE) + 1)
    network.eval()
    first, norm, last = (network.get_submodule(name) for name in ("0", "1", "3"))
    assert (
        isinstance(first, nn.Linear)
        and isinstance(norm, nn.BatchNorm1d)
        and isinstance(last, nn.Linear)
    )
    assert norm.running_var is not None and norm.running_mean is not None
    scale = (norm.weight if affine else 1) / (norm.running_var + norm.eps).sqrt()
    folded = first.weight * scale[:, None]
    shift = (first.bias - norm.running_mean) * scale + (norm.bias if affine else 0)
    hidden = folded.square().sum(1) + shift**2
    expected = last.weight.square() @ hidden + last.bias.square()
    assert path_norm(network, torch.zeros(1, 3, dtype=DOUBLE)) == pytest.approx(
        float(expected.sum().detach()), rel=1e-10
    )


def test_closed_form_of_a_homogeneous_network() -> None:
    layers = [
        nn.Linear(4, 6, bias=False),
        nn.ReLU(),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    ]
    network, x, y = (
        nn.Sequential(*layers).double(),
        torch.randn(7, 4, dtype=DOUBLE),
        torch.arange(7) % 3,
    )
    outputs = network(x).detach()
    by_outputs = outputs.softmax(1) - F.one_hot(y, 3)
    expected = 3**2 * (by_outputs * outputs).sum(1).square().mean()
    assert fisher_rao_norm(network, x, y) == pytest.approx(float(expected), rel=1e-10)
