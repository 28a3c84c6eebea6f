"""Projected kernels: their mean over seeds against the exact kernel, and where they are exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gapscope.data import load_dataset
from gapscope.gradients import projections
from gapscope.gradients.projections import projected_kernel
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out, projected_leave_one_out
from gapscope.measures.ntk import empirical_ntk
from gapscope.networks import build_network
from gradients.reference import CASES

SEEDS = 20


def kernel_of(network: nn.Module, x: Tensor, seed: int = 0, **options: object) -> Tensor:
    settings = {"landmarks": None, "chunk_size": 2} | options
    return projected_kernel(network, x, seed=seed, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_mean_over_seeds_is_the_exact_kernel_for_every_layer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections, "SIDE", 4)
    monkeypatch.setattr(projections, "PROJECTIONS", 4)  # small weights are projected too
    network, x = CASES[name].make(n=3)
    exact = empirical_ntk(network, x, outputs="traced").double()
    scale = exact.diagonal().mean()
    estimates = torch.stack([kernel_of(network, x, seed).double() for seed in range(SEEDS)])
    error = estimates.std(0) / SEEDS**0.5
    assert bool(((estimates.mean(0) - exact).abs() <= 4.5 * error + 1e-5 * scale).all())


def test_few_weights_and_single_positions_are_exact() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 50), nn.Tanh(), nn.Linear(50, 3)
    ).double()
    x = torch.randn(7, 1, 8, 8, dtype=torch.float64)
    exact = empirical_ntk(network, x, outputs="traced")
    torch.testing.assert_close(kernel_of(network, x, chunk_size=3), exact)
    rows = torch.tensor([4, 1])
    torch.testing.assert_close(kernel_of(network, x, landmarks=rows), exact[:, rows])


def test_a_seed_repeats_whatever_the_chunks_and_random_state() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)).double()
    x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    state = torch.get_rng_state()
    first = kernel_of(network, x, 3)
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(kernel_of(network, x, 3, chunk_size=5), first)
    assert not torch.allclose(kernel_of(network, x, 4), first)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.thorough
def test_leave_one_out_accuracy_is_near_that_of_the_exact_kernel() -> None:
    train = load_dataset("digits").train.subset(torch.arange(400))
    x, y = train.inputs, train.y
    network = build_network(
        "small_cnn",
        input_shape=tuple(x.shape[1:]),
        n_outputs=10,
        generator=torch.Generator().manual_seed(0),
    )
    exact = kernel_leave_one_out(network, x, y).accuracy
    estimates = [
        projected_leave_one_out(network, x, y, combinations=10, seed=seed).accuracy
        for seed in range(3)
    ]
    assert sum(estimates) / 3 == pytest.approx(exact, abs=0.01)
