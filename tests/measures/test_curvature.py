"""Curvature: dense Hessians and dense per-sample gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.measures.curvature import Hessian, fisher_trace, hessian_top_eigenvalue, hessian_trace
from gapscope.measures.path_norms import fisher_rao_norm
from gapscope.measures.training_speed import gradient_noise
from support.cases import CASES, each

DOUBLE = torch.float64


def dense_hessian(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    parameters = [p for p in network.parameters() if p.requires_grad]
    loss = F.cross_entropy(network(x), y)
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)]
    )
    rows = [
        torch.autograd.grad(g, parameters, retain_graph=True, materialize_grads=True)
        for g in gradient
    ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def tiny() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(12, 3, dtype=DOUBLE), torch.arange(12) % 3
    return network, x, y, dense_hessian(network, x, y)


def test_largest_eigenvalue_of_a_dense_hessian() -> None:
    network, x, y, hessian = tiny()
    result = hessian_top_eigenvalue(network, x, y, tolerance=1e-12, steps=31)
    assert result == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-9)


def test_early_steps_are_the_ritz_values_of_the_krylov_space() -> None:
    network, x, y, hessian = tiny()
    space = Hessian(network, x, y, None).probes(1, None).T
    for steps in (1, 2, 5):
        basis, _ = torch.linalg.qr(space)
        expected = float(torch.linalg.eigvalsh(basis.T @ hessian @ basis)[-1])
        result = hessian_top_eigenvalue(network, x, y, tolerance=0.0, steps=space.shape[1])
        assert result == pytest.approx(expected, rel=1e-8)
        while space.shape[1] < {1: 2, 2: 5, 5: 6}[steps]:
            space = torch.cat([space, hessian @ space[:, -1:]], 1)


def test_trace_by_the_probes_from_a_dense_hessian() -> None:
    network, x, y, hessian = tiny()
    signs = Hessian(network, x, y, None).probes(3, None) * len(hessian) ** 0.5
    assert bool((signs.abs() - 1).abs().max() < 1e-12)
    values = ((signs @ hessian) * signs).sum(1)
    trace = hessian_trace(network, x, y, probes=3)
    assert trace == pytest.approx(values.mean().item(), rel=1e-9)
    assert trace.standard_error == pytest.approx(values.std().item() / 3**0.5, rel=1e-9)


@pytest.mark.parametrize("name", ["convolutional", "ResNet-18, narrow", "encoder", "LSTM"])
def test_products_with_the_hessian_of_real_networks(name: str) -> None:
    """One probe's first Lanczos entry is v^T H v: the second difference of the loss along v."""
    network, samples = CASES[name].make(4, dtype=DOUBLE)
    hessian = Hessian(network, samples.inputs, samples.y, None)
    vector = torch.randn(hessian.size, dtype=DOUBLE)
    vector /= vector.norm()
    parameters = [p for p in network.parameters() if p.requires_grad]
    own = torch.cat([p.detach().flatten() for p in parameters])

    def gradient(flat: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(flat, parameters)
        loss = F.cross_entropy(network(samples.inputs), samples.y)  # type: ignore[arg-type]
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)]
        )

    (product,) = hessian.matvec(vector[None])
    step = 1e-6
    expected = (gradient(own + step * vector) - gradient(own - step * vector)) / (2 * step)
    torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-6)


@each()
def test_dense_gradients_of_single_samples(name: str) -> None:
    network, samples = CASES[name].make(5, dtype=DOUBLE)
    x, y = samples.inputs, samples.y
    parameters = [p for p in network.parameters() if p.requires_grad]
    losses = [F.cross_entropy(network(x[i : i + 1]), y[i : i + 1]) for i in range(5)]
    rows = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]) for loss in losses]
    )
    weights = torch.cat([p.detach().flatten() for p in parameters])
    assert fisher_trace(network, x, y) == pytest.approx(
        float(rows.square().sum(1).mean()), rel=1e-8
    )
    noise = (rows - rows.mean(0)).square().sum(1).mean()
    assert gradient_noise(network, x, y) == pytest.approx(float(noise), rel=1e-8)
    assert fisher_rao_norm(network, x, y) == pytest.approx(
        float((rows @ weights).square().mean()), rel=1e-9
    )


def test_a_loss_without_curvature_has_the_eigenvalue_0() -> None:
    flat = nn.Linear(2, 1, bias=False)  # inputs of zero: the loss does not depend on the weights
    assert hessian_top_eigenvalue(flat, torch.zeros(4, 2), torch.ones(4, 1)) == 0


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
            expected += float(
                probability * torch.stack([g.square().sum() for g in gradients]).sum()
            ) / len(x)
    many = x.repeat(400, 1)
    result = fisher_trace(
        network, many, None, labels="sampled", generator=torch.Generator().manual_seed(0)
    )
    error = result.standard_error or 0.0
    assert abs(result - expected) < 4 * error and error < 0.05 * expected
    assert fisher_trace(network, x, None, labels="sampled") == fisher_trace(
        network, x, None, labels="sampled"
    )
    with pytest.raises(InvalidInput, match="needs targets y"):
        fisher_trace(network, x, None)


def test_fisher_trace_of_one_sample_has_no_standard_error() -> None:
    result = fisher_trace(nn.Linear(3, 2), torch.ones(1, 3), None, labels="sampled")
    assert result > 0 and result.standard_error is None
