"""Curvature: dense Hessians, dense per-sample gradients, and the closed form of Langevin dynamics."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import CASES, each
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.measures.curvature import (
    fisher_trace,
    hessian_density,
    hessian_top_eigenvalue,
    hessian_trace,
    local_learning_coefficient,
)
from gapscope.measures.spectra import krylov

DOUBLE = torch.float64


def dense_hessian(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    parameters = [p for p in network.parameters() if p.requires_grad]
    loss = F.cross_entropy(network(x), y)
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    rows = [torch.autograd.grad(g, parameters, retain_graph=True, materialize_grads=True) for g in gradient]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def tiny() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(12, 3, dtype=DOUBLE), torch.arange(12) % 3
    return network, x, y, dense_hessian(network, x, y)


def test_largest_eigenvalue_and_smallest_node_of_a_dense_hessian() -> None:
    network, x, y, hessian = tiny()
    eigenvalues = torch.linalg.eigvalsh(hessian)
    result = hessian_top_eigenvalue(network, x, y, tolerance=1e-12, steps=31)
    assert result == pytest.approx(float(eigenvalues[-1]), rel=1e-9)
    density = hessian_density(network, x, y, steps=31)
    assert density["smallest"] == pytest.approx(float(eigenvalues[0]), rel=1e-6)


def test_trace_and_density_are_those_that_a_dense_hessian_gives_for_the_same_vectors() -> None:
    """What v sees of the spectrum: weights (u . v)^2 of the eigenvalues, exact once the runs fill the whole space."""
    network, x, y, hessian = tiny()
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    spaces = krylov(network, x, y, generator=None, chunk_size=None)
    weights = torch.stack([(vectors.T @ run.basis[0]).square() for run in spaces.runs(3, 0)])
    means = weights @ eigenvalues
    trace = hessian_trace(network, x, y, probes=3)
    assert trace == pytest.approx(len(hessian) * means.mean().item(), rel=1e-9)
    assert trace.standard_error == pytest.approx(len(hessian) * means.std().item() / 3**0.5, rel=1e-9)
    density = hessian_density(network, x, y, probes=3, steps=len(hessian)).values
    negative = (weights @ (eigenvalues.abs() * (eigenvalues < 0))).mean() / (weights @ eigenvalues.abs()).mean()
    assert density["negative_share"] == pytest.approx(negative.item(), rel=1e-6)
    dimension = len(hessian) * means.mean() ** 2 / (weights @ eigenvalues.square()).mean()
    assert density["dimension"] == pytest.approx(dimension.item(), rel=1e-9)


@pytest.mark.parametrize("name", ["convolutional", "ResNet-18, narrow", "encoder", "LSTM"])
def test_products_with_the_hessian_of_real_networks(name: str) -> None:
    """One probe's first Lanczos entry is v^T H v: the second difference of the loss along v."""
    from gapscope.measures.spectra import Hessian

    network, samples = CASES[name].make(4, dtype=DOUBLE)
    assert samples.targets is not None
    hessian = Hessian(network, samples.inputs, samples.targets, None)
    vector = torch.randn(hessian.size, dtype=DOUBLE)
    vector /= vector.norm()
    parameters = [p for p in network.parameters() if p.requires_grad]
    own = torch.cat([p.detach().flatten() for p in parameters])

    def gradient(flat: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(flat, parameters)
        loss = F.cross_entropy(network(samples.inputs), samples.targets)  # type: ignore[arg-type]
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)])

    (product,) = hessian.matvec(vector[None])
    step = 1e-6
    expected = (gradient(own + step * vector) - gradient(own - step * vector)) / (2 * step)
    torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-6)


def test_runs_go_on_together_and_where_they_ended() -> None:
    """One after the other or together, in one piece or in two: the same numbers."""
    network, x, y, _ = tiny()
    together = krylov(network, x, y, generator=None, chunk_size=5)
    alone = krylov(network, x, y, generator=None, chunk_size=None)
    for number in range(1, 4):
        alone.runs(number, 6)
    together.runs(2, 4)
    for one, other in zip(together.runs(3, 6), alone.runs(3, 6), strict=True):
        assert one.diagonal == pytest.approx(other.diagonal, rel=1e-9)
        assert one.off_diagonal == pytest.approx(other.off_diagonal, rel=1e-9)


@each()
def test_fisher_trace_of_dense_gradients(name: str) -> None:
    network, samples = CASES[name].make(5, dtype=DOUBLE)
    parameters = [p for p in network.parameters() if p.requires_grad]
    squares = [
        sum(
            float(g.square().sum()) for g in torch.autograd.grad(F.cross_entropy(network(x[None]), y[None]), parameters)
        )
        for x, y in zip(samples.inputs, samples.targets, strict=True)  # type: ignore[arg-type]
    ]
    assert fisher_trace(network, samples.inputs, samples.targets) == pytest.approx(sum(squares) / 5, rel=1e-8)  # type: ignore[arg-type]


def test_learning_coefficient_of_a_quadratic_loss() -> None:
    """One weight, loss (w - 1)^2: the chain is a linear recursion whose stationary variance is known exactly."""
    network = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(network.weight)
    n, step, pull = 20, 0.02, 1.0
    x, y = torch.ones(n, 1, dtype=DOUBLE), torch.ones(n, 1, dtype=DOUBLE)
    result = local_learning_coefficient(
        network, x, y, step_size=step, localization=pull, steps=150, burn_in=20, chains=4
    )
    scale = n / math.log(n)
    stiffness = scale * 2 + pull
    variance = 1 / (stiffness * (1 - step * stiffness / 4))
    assert result.standard_error is not None and result.standard_error < 0.4
    assert abs(result - scale * variance) < 5 * result.standard_error


def test_what_curvature_needs() -> None:
    x, y = torch.ones(4, 2), torch.zeros(4).long()
    with pytest.raises(NotMeasurable, match="no trainable parameters"):
        hessian_trace(nn.Identity(), x, y)
    with pytest.raises(NotMeasurable, match="diverged"):
        local_learning_coefficient(nn.Linear(2, 1), x, torch.ones(4, 1), step_size=1e30, steps=20, burn_in=1)
    dead = nn.Linear(2, 1, bias=False)
    with pytest.raises(NotMeasurable, match="needs a loss that is curved"):
        hessian_density(dead, torch.zeros(4, 2), torch.ones(4, 1))


def test_fisher_trace_of_sampled_labels_is_that_of_the_prediction() -> None:
    network, x, _, _ = tiny()
    parameters = list(network.parameters())
    expected = 0.0
    for sample in x:
        outputs = network(sample[None])
        probabilities = outputs.softmax(1)[0].detach()
        for label, probability in enumerate(probabilities):
            loss = F.cross_entropy(outputs, torch.tensor([label]))
            gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
            expected += float(probability * torch.stack([g.square().sum() for g in gradients]).sum()) / len(x)
    many = x.repeat(400, 1)
    result = fisher_trace(network, many, None, labels="sampled", generator=torch.Generator().manual_seed(0))
    error = result.standard_error or 0.0
    assert abs(result - expected) < 4 * error and error < 0.05 * expected
    assert fisher_trace(network, x, None, labels="sampled") == fisher_trace(network, x, None, labels="sampled")
    with pytest.raises(InvalidInput, match="needs targets y"):
        fisher_trace(network, x, None)
