"""Expected accuracy and its interval: what an estimate cannot be above, and what repeats do not raise."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.budget import BudgetSpent
from gapscope.base.specs import TrainingSpec
from gapscope.checks.expected import _below_training  # pyright: ignore[reportPrivateUsage]
from gapscope.checks.run import _make_context  # pyright: ignore[reportPrivateUsage]
from gapscope.measures.fitted_labels import FEATURES
from gapscope.results.estimate import IntervalEstimate
from gapscope.statistics.intervals import wilson_interval


def rings(n: int = 160) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    return torch.randn(4, 8, generator=g)[y] + 0.7 * torch.randn(n, 8, generator=g), y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def test_the_expected_accuracy_is_not_above_that_on_training_samples() -> None:
    data, short = rings(), network()
    initial = {name: value.clone() for name, value in short.state_dict().items()}
    gs.train(short, data, TrainingSpec(epochs=8, learning_rate=0.02))
    account = gs.check(short, data, initial_state=initial).account
    assert account is not None and account.expected is not None and account.training < 0.9
    assert account.expected.low < account.expected.value <= account.training < account.expected.high


@pytest.mark.thorough
def test_repeats_do_not_raise_the_expected_accuracy() -> None:
    (x, y), trained = rings(), network()
    gs.train(trained, (x, y), TrainingSpec(epochs=20, learning_rate=0.05))
    twice = (torch.cat([x, x[:120]]), torch.cat([y, y[:120]]))
    once, repeated = (gs.check(trained, data) for data in ((x, y), twice))
    assert "GS101" in repeated.codes
    for result in (once, repeated):
        assert result.account is not None and result.account.expected is not None
    first, second = (result.account.expected.value for result in (once, repeated))  # type: ignore[union-attr]
    assert second == pytest.approx(first, abs=0.03)


def test_the_most_frequent_of_many_classes_is_rarer_in_new_data() -> None:
    g = torch.Generator().manual_seed(1)
    labels = torch.cat([torch.arange(20), torch.randint(20, (180,), generator=g)])
    diverged = nn.Linear(3, 20)
    nn.init.constant_(diverged.weight, float("nan"))
    x = torch.nn.functional.one_hot(labels, 20).float() + 0.1 * torch.randn(200, 20, generator=g)
    account = gs.check(diverged, (x @ torch.randn(20, 3, generator=g), labels)).account
    assert account is not None and account.expected is not None
    assert account.expected.low < 1 / 20 < account.expected.value


@pytest.mark.thorough
def test_more_samples_than_a_network_is_read_on_are_judged() -> None:
    (x, y), trained = rings(2200), network()
    gs.train(trained, (x, y), TrainingSpec(epochs=4, learning_rate=0.05))
    result = gs.check(trained, (x, y), only=["GS402"], time_budget=None)
    assert result.n_samples == 2000 and result.not_judged == ""
    assert result.account is not None and result.account.expected is not None
    assert abs(result.account.expected.value - 0.95) < 0.1


class Pretrained(nn.Module):
    """More than a million weights, on products of inputs that a kernel of the inputs does not see."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(22, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.head = nn.Linear(1024, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack([x[:, 0] * x[:, 1], x[:, 2] * x[:, 3]], 1)
        return self.head(self.body(torch.cat([4 * pairs, 0.4 * x], 1)))


def products(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three of ten labels are drawn at random."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    y = (x[:, 0] * x[:, 1] > x[:, 2] * x[:, 3]).long()
    return x, gs.data.inject_label_noise(y, 0.3, 2, g)


@pytest.mark.thorough
def test_a_fine_tuned_network_that_memorized_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_expensive(*given: object, **options: object) -> None:
        raise BudgetSpent("An estimate takes more than 30 CPU s.")

    # as for a language model, whose kernel takes minutes
    monkeypatch.setattr(
        "gapscope.accuracy.accuracy_after_training.estimate_accuracy", too_expensive
    )
    network, data = Pretrained(), products(150, 1)
    initial = {name: value.clone() for name, value in network.state_dict().items()}
    gs.train(
        network, data, TrainingSpec(epochs=40, learning_rate=0.05, momentum=0.9, batch_size=32)
    )
    x, y = products(2000, 2)
    with torch.no_grad():
        on_new_data = float((network(x).argmax(1) == y).double().mean())
    result = gs.check(network, data, initial_state=initial)
    assert result.account is not None and result.account.training > 0.94
    expected = result.account.expected
    assert "GS402" in result.codes and expected is not None and "features" in expected.source
    assert expected.low <= on_new_data <= expected.high < 0.94
    without = gs.check(network, data)
    assert "or initial_state=" in without.not_judged
    assert not without.headline.startswith("Nothing was found")


@pytest.mark.parametrize("is_far", [True, False])
def test_a_forecast_of_features_says_nothing_of_a_network_far_below_it(
    monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    def too_expensive(*given: object, **options: object) -> None:
        raise BudgetSpent("An estimate takes more than 30 CPU s.")

    monkeypatch.setattr(
        "gapscope.accuracy.accuracy_after_training.estimate_accuracy", too_expensive
    )
    monkeypatch.setattr("gapscope.checks.expected.is_large", lambda network: True)
    (x, y), short = rings(), network()
    initial = {name: value.clone() for name, value in short.state_dict().items()}
    gs.train(short, (x, y), TrainingSpec(epochs=60, learning_rate=0.05))
    if is_far:
        # two of four classes are never predicted, as with stale batch norm
        with torch.no_grad():
            short.get_parameter("2.bias")[:2] -= 100
    forecast = SimpleNamespace(
        score=0.95, low=0.85, high=1.0, abstained_because="", combined=(FEATURES,)
    )
    monkeypatch.setattr("gapscope.checks.context.Context.network_forecast", forecast)
    result = gs.check(short, (x, y), initial_state=initial, only=["GS401", "GS402"])
    account = result.account
    assert account is not None
    if is_far:
        assert account.training < 0.6 and account.expected is None
        assert "trained to its end" in result.not_judged or "trained to its end" in repr(result)
        return
    assert account.expected is not None and 0.85 < account.training < 0.95
    assert account.expected.value == account.training
    assert account.expected.low < account.training - 0.1


def test_an_estimate_that_is_lowered_to_the_training_accuracy_is_wider() -> None:
    (x, y), trained = rings(), network()
    gs.train(trained, (x, y), TrainingSpec(epochs=30, learning_rate=0.05))
    context = _make_context(trained, (x, y), None, None)
    context.train_score = 0.6
    above = _below_training(context, IntervalEstimate(0.9, 0.87, 0.93))
    assert above.value == 0.6 and above.low < wilson_interval(0.6, len(x))[0] - 0.005
    assert 0.6 <= above.high <= wilson_interval(0.6, len(x))[1]
    below = _below_training(context, IntervalEstimate(0.5, 0.45, 0.55))
    assert below == IntervalEstimate(0.5, 0.45, 0.55)


def test_a_gap_in_the_class_numbers_is_no_class_of_a_diverged_network() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    diverged = nn.Linear(3, 256)
    nn.init.constant_(diverged.weight, float("nan"))
    accounts = [gs.check(diverged, (x, last * (x[:, 0] > 0))).account for last in (1, 255)]
    assert all(account is not None for account in accounts)
    assert accounts[0].expected == accounts[1].expected  # pyright: ignore[reportOptionalMemberAccess]
