"""Excess loss of batch norm on one-layer models and trained networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.special import spence
from sklearn.datasets import load_digits
from torch import Tensor, nn

from batch_norm.some_networks import images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.batch_norm.gamma_decay.measured_excess import (
    ALL_LAYERS,
    ExcessRow,
    batch_norm_excess,
    random_batches,
)
from gapscope.batch_norm.refresh import refresh_population

N = 60_000


class _IntegratedSoftplus(torch.autograd.Function):
    """A(h) = integral of softplus = -Li2(-exp(h)), whose A'' is the sigmoid."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h)
        return torch.from_numpy(-spence(1 + h.detach().exp().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * F.softplus(ctx.saved_tensors[0])


# Generalized linear models l = A(h) - y h: (A, A')
MODELS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "logistic": (F.softplus, torch.sigmoid),
    "softplus": (_IntegratedSoftplus.apply, F.softplus),
    "linear": (lambda h: h.square() / 2, lambda h: h),
    "relu": (lambda h: h.relu().square() / 2, F.relu),
}


def population(name: str) -> Tensor:
    """Values with mean 0 and variance 1."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(N, 1, generator=generator, dtype=torch.float64)
    u = {
        "gaussian": lambda: torch.special.ndtri(uniform),
        "laplace": lambda: torch.sign(uniform - 0.5) * -torch.log1p(-2 * (uniform - 0.5).abs()),
        "exponential": lambda: -torch.log(uniform),
    }[name]()
    return (u - u.mean()) / u.std(unbiased=False)


def one_layer(
    model: str, u: Tensor, gamma: float = 1.5, *, off: float = 1.0
) -> tuple[nn.Module, tuple[Tensor, Tensor], Any]:
    """A layer at gamma * off, with targets whose optimum is (gamma, 0.3), and the loss."""
    integrated, activation = MODELS[model]
    layer = nn.BatchNorm1d(1, eps=1e-12).double()
    nn.init.constant_(layer.weight, gamma * off)
    nn.init.constant_(layer.bias, 0.3)
    targets = activation(gamma * u + 0.3)  # the loss is linear in y: the mean given u is enough

    def loss(h: Tensor, y: Tensor) -> Tensor:
        return (integrated(h) - y * h).squeeze(1)

    return nn.Sequential(layer), (u, targets), loss


def measured(
    model: str,
    distribution: str,
    size: int,
    *,
    off: float = 1.0,
    batches: int = 30_000,
    **options: Any,
) -> ExcessRow:
    network, data, loss = one_layer(model, population(distribution), off=off)
    passes = max(1, round(batches * size / N))
    return batch_norm_excess(
        network,
        data,
        batch_sizes=(size,),
        loss=loss,
        passes=passes,
        noise_draws=0,
        chunk_size=N,
        **options,
    )[0]


def check(row: ExcessRow, tolerance: float) -> None:
    error = (row.measured.standard_error or 0) / abs(row.predicted)
    assert error < 0.012
    assert abs(row.ratio - 1) < tolerance + 2 * error, (row.batch_size, row.ratio, error)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "distribution", "tolerances"),
    [
        *((model, "gaussian", {16: 0.08, 32: 0.04}) for model in MODELS),
        ("logistic", "laplace", {16: 0.06, 32: 0.035, 128: 0.01}),
        ("logistic", "exponential", {128: 0.04}),
    ],
)
def test_at_the_optimum(model: str, distribution: str, tolerances: dict[int, float]) -> None:
    for size, tolerance in tolerances.items():
        check(measured(model, distribution, size), tolerance)


@pytest.mark.parametrize(
    "model",
    ["linear", *(pytest.param(m, marks=pytest.mark.thorough) for m in MODELS if m != "relu")],
)
@pytest.mark.parametrize("off", [0.6, pytest.param(1.5, marks=pytest.mark.thorough)])
def test_off_the_optimum_the_in_batch_form_holds(model: str, off: float) -> None:
    row = measured(model, "gaussian", 32, off=off)
    check(row, 0.04)
    if model == "linear" and off == 0.6:
        assert row.measured > 1.3 * row.decay
    else:
        check(measured(model, "gaussian", 128, off=off), 0.02)


def test_measured_is_the_definition() -> None:
    network = warmed_up(plain())
    samples, size = images(24), 6
    x, y = samples.inputs, samples.y
    refreshed = copy.deepcopy(network)
    refresh_population(refreshed, samples, layers=["1", "4", "8"])
    generator = torch.Generator().manual_seed(4)
    differences: dict[str, list[float]] = {"1": [], "4": [], "8": [], ALL_LAYERS: []}
    for name, values in differences.items():
        noisy: Any = copy.deepcopy(refreshed)
        for module in [noisy[int(name)]] if name != ALL_LAYERS else [noisy[1], noisy[4], noisy[8]]:
            module.train()
        for batches in random_batches(24, size, 2, 2, generator):
            for batch in batches:
                batch_norm_loss = F.cross_entropy(noisy(x[batch]), y[batch])
                values.append(
                    (batch_norm_loss - F.cross_entropy(refreshed(x[batch]), y[batch])).item()
                )
    rows = batch_norm_excess(
        network, samples, batch_sizes=(size,), passes=2, noise_draws=3, chunk_size=13,
        generator=torch.Generator().manual_seed(4),
    )  # fmt: skip
    assert [row.layer for row in rows] == list(differences)
    for row in rows:
        values = torch.tensor(differences[row.layer], dtype=torch.float64)
        # every pass deals all samples
        assert row.measured == pytest.approx(float(values.mean()), rel=1e-9)
        assert row.batch_size == size and row.measured.standard_error is not None
    predicted = gamma_decay(refreshed, samples, batch_size=size, noise_draws=3)
    assert float(rows[0].predicted) == pytest.approx(float(predicted["1"].predicted))
    assert float(rows[-1].predicted) == pytest.approx(float(predicted.predicted))


@pytest.mark.thorough
def test_standard_error_is_the_spread_of_repeats() -> None:
    network, (u, y), loss = one_layer("linear", population("gaussian"), off=0.6)
    generator = torch.Generator().manual_seed(7)
    data = (u[:2016], y[:2016])
    rows = [
        batch_norm_excess(
            network, data, batch_sizes=(32,), loss=loss, passes=2, generator=generator
        )[0].measured
        for _ in range(40)
    ]
    spread = float(torch.tensor([float(row) for row in rows]).std())
    stated = sum(row.standard_error or 0 for row in rows) / len(rows)
    assert 0.7 < spread / stated < 1.4


def test_the_network_is_unchanged_and_results_repeat() -> None:
    network = warmed_up(plain()).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    first = batch_norm_excess(network, images(30), batch_sizes=(8,), passes=1, layers=["8"])
    assert first.to_pandas().loc[("8", 8), "ratio"] == first[0].ratio
    assert network.training and all(
        torch.equal(v, before[name]) for name, v in network.state_dict().items()
    )
    assert first == batch_norm_excess(network, images(30), batch_sizes=(8,), passes=1, layers=["8"])


def digits() -> tuple[Tensor, Tensor]:
    data: Any = load_digits()
    return torch.tensor(data.images[:1000] / 16)[:, None], torch.tensor(data.target[:1000])


def train_on_digits(network: nn.Module, epochs: int) -> nn.Module:
    x, y = digits()
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(50):
            optimizer.zero_grad()
            F.cross_entropy(network(x[batch].float()), y[batch]).backward()
            optimizer.step()
    return network.double()


def fully_connected() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32),
        nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


@pytest.mark.parametrize("epochs", [3, pytest.param(12, marks=pytest.mark.thorough)])
def test_fully_connected_layers(epochs: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = train_on_digits(fully_connected(), epochs)
    rows = batch_norm_excess(
        network, digits(), batch_sizes=(32, 128), passes=100, chunk_size=1000, noise_draws=10
    )
    second_order = batch_norm_excess(
        network, digits(), batch_sizes=(32, 128), passes=1, chunk_size=1000, noise_draws=0
    )
    for row, other in zip(rows, second_order, strict=True):
        error = 2 * (row.measured.standard_error or 0) / row.predicted
        if row.layer != ALL_LAYERS:
            assert abs(row.ratio - 1) < {32: 0.12, 128: 0.05}[row.batch_size] + error, row
            assert row.measured > 1.1 * other.predicted  # Gauss-Newton omits the kinks


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"'batch_size'.*'batch_sizes'"):
        batch_norm_excess(plain(), images(), batch_size=16)
