from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.base.errors import NeverSupported, NotMeasurable
from gapscope.penalties.base import forward_with_penalties
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from gradients.reference import CASES, dense_jacobian, gradient_of


def _network() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )
    return nn.Sequential(*layers)


def _batch(n: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.randint(
        0, 3, (n,), generator=generator
    )


def _exact(
    network: nn.Module, x: Tensor, kind: str, noise: float | None, jacobian: Tensor | None = None
) -> Tensor:
    jacobian = (
        dense_jacobian(network, x, create_graph=True) if jacobian is None else jacobian
    ).flatten(0, 1)
    if kind == "trace":
        return jacobian.square().sum()
    kernel = jacobian @ jacobian.T
    return torch.logdet(
        kernel if noise is None else torch.eye(len(kernel), dtype=x.dtype) + kernel / noise
    )


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_exact_for_every_layer(name: str) -> None:
    network, x = CASES[name].make()
    jacobian = dense_jacobian(network, x, create_graph=True)
    kinds: list[tuple[Any, float | None]] = [("trace", None), ("logdet", 0.5)]
    for kind, noise in kinds:
        expected = _exact(network, x, kind, noise, jacobian)
        penalty = GradientSimilarityPenalty(
            2.0, kind=kind, method="exact", noise=noise, reduction="sum"
        )
        value = penalty(network, x)
        torch.testing.assert_close(value, 2 * expected, rtol=1e-10, atol=0)
        gradient = gradient_of(expected, network)
        tolerance = 1e-10 * float(gradient.abs().max())
        torch.testing.assert_close(
            gradient_of(value, network), 2 * gradient, rtol=0, atol=2 * tolerance
        )


def test_log_determinant_itself() -> None:
    network, x = CASES["conv stack"].make()
    expected = _exact(network, x, "logdet", None)
    value = GradientSimilarityPenalty(1.0, kind="logdet", noise=None)(network, x)
    torch.testing.assert_close(value, expected / 12, rtol=1e-10, atol=0)
    gradient = gradient_of(expected, network) / 12
    tolerance = 1e-9 * float(gradient.abs().max())
    torch.testing.assert_close(gradient_of(value, network), gradient, rtol=0, atol=tolerance)


def test_a_singular_kernel_has_no_log_determinant() -> None:
    network, x = CASES["conv stack"].make()
    twice = torch.cat([x, x[:1]])
    for dtype in (torch.float64, torch.float32):
        with pytest.raises(NotMeasurable, match=r"\(15 rows\) is singular.*noise=1.0"):
            GradientSimilarityPenalty(1.0, kind="logdet", noise=None)(
                network.to(dtype), twice.to(dtype)
            )


def test_mean_and_sum_and_every() -> None:
    network, (x, _) = _network(), _batch()
    total = GradientSimilarityPenalty(1.0, method="exact", reduction="sum")(network, x)
    mean = GradientSimilarityPenalty(1.0, method="exact")(network, x)
    torch.testing.assert_close(mean, total / 24)
    lazy = GradientSimilarityPenalty(1.0, method="exact", every=3)
    values = [float(lazy(network, x).detach()) for _ in range(7)]
    assert values[1] == values[2] == values[4] == values[5] == 0
    assert values[0] == values[3] == values[6] == pytest.approx(3 * float(mean.detach()), rel=1e-6)


@pytest.mark.parametrize("probe", ["class", "rademacher", "batch_sum"])
def test_probes_are_unbiased_in_value_and_gradient(probe: Any) -> None:
    network, x = CASES["linear"].make(n=3)
    expected = _exact(network, x, "trace", None) / 9
    penalty = GradientSimilarityPenalty(1.0, probe=probe)
    values, gradients = [], []
    for _ in range(400):
        value = penalty(network, x)
        values.append(value.detach())
        gradients.append(gradient_of(value, network))
    for draws, right in (
        (torch.stack(values), expected),
        (torch.stack(gradients), gradient_of(expected, network)),
    ):
        error = draws.std(0) / 20
        assert bool(((draws.mean(0) - right).abs() <= 5 * error + 1e-9).all())


def test_shared_forward_pass_gives_the_same_outputs() -> None:
    network, (x, _) = _network(), _batch()
    passes: list[int] = []
    GradientSimilarityPenalty(0.1)(network, x)  # the self-check makes a pass of its own, once
    network.register_forward_hook(lambda *_: passes.append(1))
    outputs, value = GradientSimilarityPenalty(0.1).forward_with_penalty(network, x)
    assert passes == [1]
    torch.testing.assert_close(outputs, network(x), rtol=0, atol=0)
    assert value.ndim == 0 and value.requires_grad
    both = forward_with_penalties(
        network, x, None, [GradientSimilarityPenalty(0.1), L2Penalty(0.1)]
    )[1]
    torch.testing.assert_close(both, value + L2Penalty(0.1)(network, x))


def _train(
    network: nn.Module,
    penalty: GradientSimilarityPenalty,
    steps: range,
    optimizer: torch.optim.Optimizer,
) -> None:
    x, y = _batch(40)
    for step in steps:
        part = slice(8 * (step % 5), 8 * (step % 5) + 8)
        outputs, value = penalty.forward_with_penalty(network, x[part])
        optimizer.zero_grad()
        (F.cross_entropy(outputs, y[part]) + value).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def test_a_resumed_training_ends_with_the_same_weights_and_leaves_the_global_random_state() -> None:
    before = torch.get_rng_state()
    whole = _network()
    torch.set_rng_state(before)
    _train(
        whole,
        GradientSimilarityPenalty(0.05, every=2),
        range(9),
        torch.optim.SGD(whole.parameters(), lr=0.05),
    )
    assert torch.equal(torch.get_rng_state(), before)
    first, penalty = _network(), GradientSimilarityPenalty(0.05, every=2)
    _train(first, penalty, range(5), torch.optim.SGD(first.parameters(), lr=0.05))
    state = penalty.state_dict()
    assert all(isinstance(entry, Tensor) for entry in state.values())
    second, resumed = _network(), GradientSimilarityPenalty(0.05, every=2, seed=7)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(state)
    _train(second, resumed, range(5, 9), torch.optim.SGD(second.parameters(), lr=0.05))
    for given, right in zip(second.parameters(), whole.parameters(), strict=True):
        assert torch.equal(given, right)


@pytest.mark.parametrize("kind", ["trace", "logdet"])
@pytest.mark.parametrize("method", ["exact", "probe"])
def test_automatic_mixed_precision_is_close_to_single_precision(kind: Any, method: Any) -> None:
    network, (x, y) = _network(), _batch()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def gradient(enabled: bool) -> Tensor:
        penalty = GradientSimilarityPenalty(0.5, kind=kind, method=method)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            outputs, value = penalty.forward_with_penalty(network, x)
            loss = F.cross_entropy(outputs, y) + value
        assert not enabled or outputs.dtype == torch.bfloat16
        assert value.dtype in (torch.float32, torch.float64)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        result = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        return result

    start = copy.deepcopy(network.state_dict())
    plain = gradient(False)
    network.load_state_dict(start)
    mixed = gradient(True)
    assert float((mixed - plain).norm() / plain.norm()) < 0.05


def test_mixed_precision_reaches_parameters_outside_layers() -> None:
    network, x = CASES["vision transformer"].make()
    network, x = network.float(), x.float()
    penalty = GradientSimilarityPenalty(1.0, method="exact")
    right = float(penalty(network, x).detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = float(penalty(network, x).detach())
    assert mixed == pytest.approx(right, rel=0.05)


@pytest.mark.thorough
def test_a_collapsed_network_gets_one_remedy() -> None:
    network, (x, _) = _network(), _batch()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    penalty = GradientSimilarityPenalty(0.3)
    with pytest.warns(UserWarning, match=r"1.000.*now 0.3, .* 0.1\."):
        for _ in range(40):
            penalty(network, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            penalty(network, x)
        lively = GradientSimilarityPenalty(0.3)
        for _ in range(40):
            lively(_network(), x)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["trace", "logdet"])
def test_a_network_that_stays_at_chance_is_reported_at_any_trace(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapscope.penalties.gradient_similarity._CHECK_INTERVAL", 4)
    # normalized features keep the trace up although the outputs are the same for all samples
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    nn.init.zeros_(network.get_parameter("2.weight"))
    x = torch.randn(6, 4)
    penalty = GradientSimilarityPenalty(0.03, kind=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(19):
            penalty(network, x)
    with pytest.warns(UserWarning, match=r"now 0.03, .* 0.01\."):
        penalty(network, x)
    single = GradientSimilarityPenalty(0.03, kind=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(
            24
        ):  # one output has no probabilities, and a batch of one nothing to differ from
            single(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 1)), x)
            penalty(network, x[:1])


@pytest.mark.parametrize(
    ("spreads", "warned"),
    [
        (
            (0.1, 0.06, 0.05, 0.04, 0.04, 0.03),
            True,
        ),  # falls, as under too strong a penalty with BatchNorm
        ((0.01, 0.02, 0.03, 0.045, 0.06, 0.08), False),  # small, but grows: it learns slowly
        ((0.5, 0.4, 0.4, 0.3, 0.3, 0.3), False),
    ],
)
def test_whether_outputs_grow_apart_tells_a_slow_network_from_a_dead_one(
    spreads: tuple[float, ...], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gapscope.penalties.gradient_similarity._CHECK_INTERVAL", 1)
    network, x = nn.Linear(1, 2, bias=False), torch.tensor([[-1.0], [1.0]])
    penalty, message = GradientSimilarityPenalty(0.03), []
    for spread in spreads:
        nn.init.constant_(network.weight[1:], spread)
        nn.init.constant_(network.weight[:1], 0.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            penalty(network, x)
        message += [item for item in caught if "learning" in str(item.message)]
    assert bool(message) == warned


@pytest.mark.parametrize(
    "options", [{}, {"method": "exact"}, {"kind": "logdet"}, {"kind": "logdet", "noise": None}]
)
def test_a_network_that_diverges_gives_nan(options: dict[str, Any]) -> None:
    network, (x, _) = _network(), _batch()
    penalty = GradientSimilarityPenalty(0.1, **options)
    penalty(network, x[:1])
    nn.init.constant_(network.get_parameter("4.weight"), float("nan"))
    value = penalty(network, x)
    assert bool(value.isnan())
    value.backward()


def test_noise_below_the_rounding_errors_raises() -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.randn(40, 2)
    with pytest.raises(NotMeasurable, match=r"about .*; got 1e-09"):
        GradientSimilarityPenalty(1.0, kind="logdet", noise=1e-9)(network, x)
    single = GradientSimilarityPenalty(1.0, kind="logdet", noise=1e-2)(network, x)
    double = GradientSimilarityPenalty(1.0, kind="logdet", noise=1e-2)(network.double(), x.double())
    assert float(single.detach()) == pytest.approx(float(double.detach()), rel=1e-4)


@pytest.mark.thorough
def test_the_first_step_does_not_import_sympy() -> None:
    # torch imports it to compare the shapes of outputs and cotangents, which takes as long as several steps
    code = (
        "import sys, torch, gapscope as gs; nn = torch.nn; penalty = gs.GradientSimilarityPenalty(0.1);"
        "penalty(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(9, 3)).backward();"
        "sys.exit('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class BehindAZeroGate(nn.Module):
    """Samples interact behind a weight that is zero at first."""

    def __init__(self, other: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.gate = (
            nn.Linear(6, 8),
            nn.Linear(8, 3),
            nn.Parameter(torch.zeros(())),
        )
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.head(h + self.gate * self.other(h))


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: h.mean(0, keepdim=True),
    "next sample": lambda h: h.roll(1, 0),
    "detached maximum": lambda h: h.max(0, keepdim=True).values.detach(),
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_first_step_refuses_samples_that_interact_behind_a_zero_weight(other: str) -> None:
    torch.manual_seed(0)
    network, x = BehindAZeroGate(OTHERS[other]), torch.randn(32, 6)
    with pytest.raises(NeverSupported, match="in another batch"):
        GradientSimilarityPenalty(0.1).forward_with_penalty(network, x, torch.arange(32) % 3)
