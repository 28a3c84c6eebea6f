"""Training together: a stack trains every network as `train` does, to rounding; what cannot be stacked says why."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.specs import LossSpec, PenaltySpec, TrainingSpec
from gapscope.penalties.gradient_norms import InputJacobianPenalty
from gapscope.training.loop import TrainingResult, train
from gapscope.training.multi_training import train_many

N, COUNT = 53, 3


def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 1, 8, 8, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (N,), generator=generator)


def layers(*, plain: bool = False) -> nn.Module:
    kept = nn.Identity() if plain else nn.BatchNorm2d(4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), kept, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 3, bias=False),
    )  # fmt: skip


def networks(*, plain: bool = False, dtype: torch.dtype = torch.float64, count: int = COUNT) -> list[nn.Module]:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return [layers(plain=plain).to(dtype) for _ in range(count)]


def difference(first: list[nn.Module], second: list[nn.Module]) -> float:
    pairs = [
        (one.double(), other.double())
        for a, b in zip(first, second, strict=True)
        for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    ]
    return max(float((one - other).abs().max()) for one, other in pairs)


def both(settings: list[TrainingSpec], *, plain: bool = False, **options: Any) -> tuple[float, list[TrainingResult]]:
    """Largest difference of weights and history between `train` one by one and a stack; results of the stack."""
    alone, stacked = networks(plain=plain), networks(plain=plain)
    x, y = data()
    labels = [torch.where(torch.arange(N) % 5 < number, 0, y) for number in range(COUNT)]
    given = [(x, label) for label in labels]
    results = [
        train(network, given[i], settings[i], seed=i + 3, test=given[0], **options) for i, network in enumerate(alone)
    ]
    before = torch.get_rng_state()
    result = train_many(stacked, given, settings, seeds=[3, 4, 5], test=given[0], stack="always", **options)
    assert torch.equal(torch.get_rng_state(), before)
    worst = difference(alone, stacked)
    for one, other in zip(results, result, strict=True):
        assert (one.status, one.stop_reason) == (other.status, other.stop_reason)
        for row, again in zip(one.history, other.history, strict=True):
            assert row.keys() == again.keys()
            worst = max(worst, *(abs(row[name] - again[name]) for name in row if name != "seconds"))
    return worst, result


SETTINGS: dict[str, Any] = {
    "learning rates, schedule, clipping": [
        {"learning_rate": 0.05 * (i + 1), "schedule": "step", "schedule_epochs": 1, "gradient_clip": [None, 0.1, 1][i]}
        for i in range(COUNT)
    ],
    "momenta": [{"momentum": 0.5 + 0.2 * i, "nesterov": True} for i in range(COUNT)],
    "augmentation": [{"augmentation": "flip_shift_rotate"}] * COUNT,
    "robust losses": [
        {"loss": LossSpec(name=name)} for name in ("default", "early_learning", "generalized_cross_entropy")
    ],
    "weight penalties": [
        {"penalties": (PenaltySpec(name="weight", options={"strength": 0.01 * i}),)} for i in range(COUNT)
    ],
    "epochs": [{"epochs": 2 + i % 2} for i in range(COUNT)],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_stack_trains_as_one_after_the_other(name: str) -> None:
    worst, results = both([TrainingSpec(**{"batch_size": 16, "epochs": 2} | given) for given in SETTINGS[name]])
    assert worst < 1e-12
    stacked = [result.execution for result in results]
    assert stacked == [f"in a stack of {COUNT}"] * COUNT or name == "epochs"


def test_adam_differs_only_where_a_gradient_is_rounding_noise() -> None:
    settings = [TrainingSpec(optimizer="adam", learning_rate=0.01 * (i + 1), batch_size=16, epochs=2) for i in range(3)]
    # the bias before batch norm has the gradient zero, of which Adam makes steps as large as of any other
    assert both(settings)[0] < 1e-6
    assert both(settings, plain=True)[0] < 1e-12


@pytest.mark.parametrize(
    "options", [{}, {"every": 2}, {"method": "exact", "reduction": "sum"}, {"probe": "rademacher"}], ids=str
)
def test_gradient_similarity_penalties_of_a_stack(options: dict[str, Any]) -> None:
    settings = [
        TrainingSpec(
            batch_size=16,
            epochs=2,
            penalties=(PenaltySpec(name="gradient_similarity", options={"strength": 0.001 * (i + 1), **options}),),
        )
        for i in range(COUNT)
    ]
    worst, results = both(settings, plain=True)
    assert worst < 1e-13 and results[0].execution == f"in a stack of {COUNT}"
    assert results[0].history[-1]["penalty"] > 0


def test_float32_agrees_to_a_few_hundred_roundings_after_four_epochs() -> None:
    x, y = data(torch.float32)
    settings = TrainingSpec(batch_size=8, epochs=4)
    alone, stacked = networks(dtype=torch.float32), networks(dtype=torch.float32)
    for seed, network in enumerate(alone):
        train(network, (x, y), settings, seed=seed)
    train_many(stacked, (x, y), settings, stack="always")
    # bounds the drift of 28 steps: one rounding is 6e-8
    assert 0 < difference(alone, stacked) < 5e-5


def test_a_stopped_stack_resumes_alone_and_in_a_stack(tmp_path: Path) -> None:
    folders = [tmp_path / str(i) for i in range(COUNT)]
    for folder in folders:
        folder.mkdir()
    settings, half = (TrainingSpec(batch_size=16, epochs=epochs, momentum=0.9) for epochs in (3, 1))
    unbroken = networks()
    for seed, network in enumerate(unbroken):
        train(network, data(), settings, seed=seed)
    train_many(networks(), data(), half, folders=folders, stack="always")
    resumed = networks()
    train(resumed[0], data(), TrainingSpec(batch_size=16, epochs=2, momentum=0.9), seed=0, folder=folders[0])
    resumed = networks()
    results = train_many(resumed, data(), settings, folders=folders, stack="always")
    assert difference(unbroken, resumed) < 1e-12
    assert [len(result.history) for result in results] == [3] * COUNT


class _Drawing(nn.Module):
    """Draws noise by other means than a dropout layer."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * torch.randn_like(x) if self.training else x


class _Factor(nn.Module):
    """Holds a number that neither its weights nor its text show."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.linear = factor, nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.linear(x.flatten(1))


def _hooked() -> nn.Module:
    network = layers()
    network[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    return network


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda i: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), _Drawing()), "does not run in a stack .*randomness"),
        (lambda i: _Factor(1.0 + i), "losses in a stack differ"),
        (lambda i: _hooked(), "0 has hooks"),
        (lambda i: nn.Sequential(nn.Flatten(), nn.Linear(64, 3 + i)), "no other network is compatible"),
    ],
)
def test_what_cannot_be_stacked_is_trained_alone_and_names_why(make: Any, reason: str) -> None:
    settings = TrainingSpec(batch_size=16, epochs=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = [make(i) for i in range(2)]
    second = copy.deepcopy(first)
    x, y = data(torch.float32)
    for seed, network in enumerate(first):
        train(network, (x, y), settings, seed=seed)
    results = train_many(second, (x, y), settings, stack="always")
    assert all(result.execution.startswith("alone: ") for result in results)
    assert all(re.search(reason, result.execution) for result in results)
    assert difference(first, second) == 0


def test_a_penalty_without_a_rule_is_trained_alone() -> None:
    given: list[Any] = [[InputJacobianPenalty(0.1)], [InputJacobianPenalty(0.1)]]
    settings = TrainingSpec(batch_size=16, epochs=1)
    results = train_many(networks(count=2), data(), settings, penalties=given, stack="always")
    assert results[0].execution == "alone: InputJacobianPenalty observes the layers of one network"


def test_one_that_diverges_leaves_the_others_alone() -> None:
    settings = [TrainingSpec(batch_size=16, epochs=2, learning_rate=rate) for rate in (0.1, 1e308, 0.1)]
    alone, stacked = networks(plain=True), networks(plain=True)
    for seed, (network, item) in enumerate(zip(alone, settings, strict=True)):
        train(network, data(), item, seed=seed)
    results = train_many(stacked, data(), settings, stack="always")
    assert [result.status for result in results] == ["finished", "diverged", "finished"]
    assert difference(alone[::2], stacked[::2]) < 1e-12


def test_what_one_raises_does_not_touch_the_others() -> None:
    def fail(network: nn.Module, row: dict[str, Any]) -> None:
        raise ValueError("no more")

    stacked, alone = networks(), networks()
    settings = TrainingSpec(batch_size=16, epochs=2)
    calls: list[Any] = [fail, None, None]
    with pytest.raises(ValueError, match="no more") as caught:
        train_many(stacked, data(), settings, on_epoch=calls, stack="always")
    assert caught.value.__notes__ == ["This is network 0 of 3; the others have been trained."]
    train(alone[2], data(), settings, seed=2)
    assert difference(alone[2:], stacked[2:]) < 1e-12


def test_the_automatic_choice_is_one_of_both_and_never_means_never() -> None:
    settings = TrainingSpec(batch_size=16, epochs=1)
    results = train_many(networks(), data(), settings)
    assert all("in a stack of 3" in r.execution or "times as long" in r.execution for r in results)
    alone, never = networks(), networks()
    for seed, network in enumerate(alone):
        train(network, data(), settings, seed=seed)
    assert [r.execution for r in train_many(never, data(), settings, stack="never")] == [""] * COUNT
    assert difference(alone, never) == 0
