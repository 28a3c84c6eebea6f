"""Time budgets: exact within the budget, else sampled, with a note and an error that covers the exact number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base import budget as cpu_seconds
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import as_samples
from gapscope.inspection.validation import Ready, ready
from gapscope.measures import budget as planning
from gapscope.measures import measurement as front_door
from gapscope.measures.budget import Allocation, _Durations, _fit_to_budget
from gapscope.measures.measurement import _mean, _with_group_error, evaluate_on_subset, subsample
from gapscope.measures.registry import (
    Measure,
    ScalarInfo,
    get_measure,
    list_measures,
    register_measure,
)
from support.standins import Clock

SAMPLINGS = {
    name: item.sampling
    for name, item in list_measures().items()
    if item.sampling is not None and item.default
}
X = torch.randn(2000, 6, generator=torch.Generator().manual_seed(0))
Y = ((X[:, 0] + 0.3 * X[:, 1] > 0).long() + (X[:, 2] > 1).long()) % 3


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which costs are measured."""
    made = Clock()
    monkeypatch.setattr(planning, "time", made)
    monkeypatch.setattr(cpu_seconds, "time", made)
    return made


def network() -> nn.Module:
    """Trained a little: what single units do for single classes is smooth in the samples only then."""
    torch.manual_seed(3)
    built = nn.Sequential(
        nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3)
    )
    gs.train(built, gs.Samples(X, Y), gs.TrainingSpec(epochs=6, batch_size=100, learning_rate=0.1))
    return built


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(SAMPLINGS))
def test_subsets_estimate_the_number_of_all_samples(name: str) -> None:
    item, result = get_measure(name), ready(network(), as_samples((X, Y)))
    exact = evaluate_on_subset(item, result, Allocation(2000)).values()
    off = []
    for seed in range(12):
        share = Allocation(500, SAMPLINGS[name].probe)
        for reading in evaluate_on_subset(item, result, share, seed=seed):
            if reading.number.endswith("fence"):  # extremes of a part lie inside those of the whole
                continue
            if math.isfinite(exact[reading.name]):
                assert reading.standard_error is not None and "500 of 2,000 samples" in reading.note
                off.append(
                    abs(reading.value - exact[reading.name]) / max(reading.standard_error, 1e-9)
                )
    assert sum(distance < 3 for distance in off) >= 0.9 * len(off)
    assert min(off) > 0  # nothing was taken on all samples in secret


def test_a_sum_is_scaled_to_all_samples() -> None:
    result = ready(nn.Linear(6, 3), as_samples(X))
    reading = evaluate_on_subset(
        get_measure("ntk_trace"), result, Allocation(500, {"method": "probe"})
    )[0]
    expected = 3 * (X.square().sum().item() + 2000)
    assert reading.value == pytest.approx(expected, abs=4 * (reading.standard_error or 0.0))
    assert reading.note == "probes on 500 of 2,000 samples"


def test_the_noise_of_a_measure_adds_to_the_spread_of_its_groups() -> None:
    def take(samples: gs.Samples, purpose: str = "") -> gs.Readings:
        return gs.Readings([replace(reading, value=2.0, standard_error=0.5)])

    reading = gs.measure(network(), (X, Y), ["loss"])[0]
    assert _with_group_error(take, gs.Samples(X[:40], Y[:40]))[0].standard_error == 0.5


def test_an_infinite_number_of_a_group_makes_the_error_nan() -> None:
    """A statistic of infinities is none: the number stands."""

    def take(samples: gs.Samples, purpose: str = "") -> gs.Readings:
        value = 2.0 if len(samples) > 10 else math.inf
        return gs.Readings([replace(reading, value=value)])

    reading = gs.measure(network(), (X, Y), ["loss"])[0]
    part = gs.Samples(X[:40], Y[:40])
    assert math.isnan(_with_group_error(take, part)[0].standard_error or 0)
    assert math.isnan(_mean(take, part, 100)[0].standard_error or 0)


def test_smaller_subsets_are_nested_in_larger_ones() -> None:
    samples = as_samples(torch.arange(50.0)[:, None])
    small, large = (set(subsample(samples, n, 1).inputs[:, 0].tolist()) for n in (10, 20))
    assert small < large and len(large) == 20
    assert set(subsample(samples, 10, 2).inputs[:, 0].tolist()) != small


def test_measures_that_trials_show_to_be_slow_are_omitted_unless_they_are_named(
    clock: Clock,
) -> None:
    """As those of EfficientNet, whose fewest samples take longer than the budget."""
    items = [get_measure(name) for name in ("loss", "input_jacobian_norm")]

    class Slow(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            clock.now += 1e-3 * len(input)
            return super().forward(input)

    def evaluate(item: Measure, part: Ready, share: Allocation) -> None:
        clock.now += (0.2 if item.name == "input_jacobian_norm" else 0.001) * len(part.samples)

    subject = ready(Slow(6, 3), as_samples((X, Y)))
    arguments: Any = {"items": items, "ready": subject, "evaluate": evaluate, "options": {}}
    clock.now = 0.0
    plan = planning.plan_budget(**arguments, budget=10.0, dispensable=[item.name for item in items])
    assert list(plan.shares) == ["loss"]
    assert "omitted to keep the budget of 10 s" in plan.failed["input_jacobian_norm"]
    plan = planning.plan_budget(**arguments, budget=10.0)
    assert plan.shares["input_jacobian_norm"].n == SAMPLINGS["input_jacobian_norm"].fewest


def test_the_most_expensive_measure_is_halved_until_all_fit() -> None:
    costs = {"ntk_trace": 0.1, "input_jacobian_norm": 0.05, "loss": 0.001}
    fewest = {name: SAMPLINGS[name].fewest for name in costs}
    seconds = _Durations(costs, {}, 2000)
    counts = _fit_to_budget(seconds, costs, fewest, 30.0)
    assert counts == {"ntk_trace": 128, "input_jacobian_norm": 256, "loss": 2000}
    assert _fit_to_budget(seconds, costs, fewest, 1e9) == dict.fromkeys(costs, 2000)
    assert _fit_to_budget(seconds, costs, fewest, 1e-9) == fewest  # powers of two, as all parts are
    seconds = _Durations({"loss": 1.0}, {}, 1024)
    assert _fit_to_budget(seconds, ["loss"], {"loss": 256}, 600.0) == {"loss": 512}


def test_evaluations_are_repeated_on_all_samples_alone() -> None:
    seconds = _Durations({"unit_sparsity": 0.01}, {"unit_sparsity": 10.0}, 2048)
    assert seconds("unit_sparsity", 2048) == pytest.approx(204.8)
    assert _fit_to_budget(seconds, ["unit_sparsity"], {"unit_sparsity": 256}, 11.0) == {
        "unit_sparsity": 1024
    }


def test_fixed_cost_is_not_a_cost_per_sample(clock: Clock) -> None:
    def take(item: Any, part: Any, options: Any) -> None:
        clock.sleep(0.05 * (not paid) + 1e-3 * len(part.samples))
        paid.append(len(part.samples))

    paid: list[int] = []
    run = planning._run_of(get_measure("loss"), take)
    cost = planning._trial(run, ready(nn.Linear(6, 3), as_samples((X, Y))), 0.0)
    assert paid == [10, 10] and cost.once > 0.03 and 1e-3 <= cost.per_sample < 4e-3


def test_fixed_cost_of_a_pass_is_not_a_cost_per_sample(clock: Clock) -> None:
    def take(item: Any, part: Any, options: Any) -> None:
        tried.append(len(part.samples))
        clock.sleep(0.02 + 1e-5 * len(part.samples))

    tried: list[int] = []
    result = ready(nn.Linear(6, 3), as_samples((X[:400], Y[:400])))
    run = planning._run_of(get_measure("loss"), take)
    # .02 / 160 + 1e-5, and .002 of ten samples
    assert planning._trial(run, result, 1.0).per_sample < 5e-4
    assert tried == [10, 10, 40, 40, 160, 160]
    tried.clear()
    assert planning._trial(run, result, 0.1).per_sample > 2e-3
    assert tried == [10, 10]  # more would be too expensive


@pytest.fixture
def slow(clock: Clock) -> Any:
    """A network that takes a millisecond a sample and pass."""

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            clock.sleep(len(x) * 1e-3)
            return self.inner(x)

    return Slow()


def test_a_budget_is_met_and_noted(slow: Any, clock: Clock) -> None:
    names = ["accuracy", "input_jacobian_norm", "output_sensitivity", "parameter_count"]
    readings = gs.measure(slow, (X, Y), names, time_budget=2.5)
    assert clock.now < 4
    assert "of 2,000 samples" in readings["input_jacobian_norm"].note
    assert (
        readings["parameter_count"].standard_error is None and not readings["parameter_count"].note
    )
    exact = gs.measure(slow.inner, (X, Y), names)
    for name in ("accuracy", "input_jacobian_norm", "output_sensitivity"):
        error = readings[name].standard_error
        assert error and readings[name].value == pytest.approx(exact[name].value, abs=5 * error)


class Warming(nn.Linear):
    """Its second call and all later ones take 0.3 seconds; calls are counted anew in each context."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(6, 3)
        self.clock = clock
        self.calls = 0

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            self.clock.sleep(0.3)
        return super().forward(input)


def test_measures_that_trials_underestimate_end_with_the_budget(clock: Clock) -> None:
    readings = gs.measure(Warming(clock), (X[:300], Y[:300]), time_budget=2.0)
    assert clock.now < 1.2 * 2 + 0.3
    assert {"accuracy", "parameter_count"} <= readings.values().keys()
    assert "time_budget=2" in readings.unmeasured["output_sensitivity"]


@pytest.mark.thorough
def test_each_compared_network_has_a_budget_of_its_own(clock: Clock) -> None:
    networks = {"a": Warming(clock), "b": network(), "c": Warming(clock)}
    result = gs.compare(networks, (X[:300], Y[:300]), time_budget=2.0, progress=False)
    assert clock.now < 2 * (1.2 * 2 + 0.3)
    for name in ("a", "c"):
        assert "time_budget=2" in result.unmeasured[name]["output_sensitivity"]
    assert len(result.of("accuracy")) == 3 and len(result.of("output_sensitivity")) == 1


def test_a_superlinear_measure_is_omitted_if_its_trials_end_with_the_budget() -> None:
    def spent(*_: Any) -> None:
        raise cpu_seconds.BudgetSpent("time_budget=4 was spent before it ended.")

    result = ready(nn.Linear(6, 3), as_samples((X[:400], Y[:400])))
    item = get_measure("ntk_logdet")
    failed = planning._superlinear_over_budget(item, result, 1e-6, 2.5, spent)
    assert planning.OMITTED in failed["ntk_logdet"]


def test_measures_that_cannot_fit_are_omitted_without_a_trial(
    slow: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (
        "loss",
        "accuracy",
        "gradient_norm",
        "ntk_logdet",
        "hessian_trace",
        "hessian_top_eigenvalue",
    )
    monkeypatch.setattr(
        front_door, "list_measures", lambda: {name: list_measures()[name] for name in kept}
    )
    readings = gs.measure(slow, (X[:400], Y[:400]), "all", time_budget=10.0)
    assert clock.now < 10
    assert {reading.measure for reading in readings} == {"loss", "accuracy", "gradient_norm"}
    message = readings.unmeasured
    assert (
        "budget of 10 s: on the smallest informative subset it takes about"
        in message["hessian_trace"]
    )
    assert (
        "in addition to cheaper measures. Pass a larger budget, or name it"
        in message["hessian_top_eigenvalue"]
    )
    assert "omitted to keep the budget: it takes" in message["ntk_logdet"]


def test_the_cheapest_and_the_named_measures_stay() -> None:
    least = {"a": 1.0, "b": 2.0, "c": 9.0, "d": 0.5}
    assert list(planning._over_budget(least, 4.0, least)) == ["c"]
    assert list(planning._over_budget(least, 2.0, least)) == ["b", "c"]
    assert list(planning._over_budget(least, 2.0, ["a", "b"])) == ["b"]
    assert planning._over_budget(least, 1.0, []) == {}


def test_superlinear_cost_is_extrapolated_until_it_fits(clock: Clock) -> None:
    def cubic(item: Any, part: Any, options: Any) -> None:
        tried.append(len(part.samples))
        clock.sleep(2e-8 * len(part.samples) ** 3)  # 1.3 s for 400

    tried: list[int] = []
    result = ready(nn.Linear(6, 3), as_samples((X[:400], Y[:400])))
    item = get_measure("ntk_logdet")
    assert planning._superlinear_over_budget(item, result, 1e-6, 2.5, cubic) == {}
    assert tried[0] == 10 and tried[-1] < 400
    tried.clear()
    assert (
        "it took 0.0"
        in planning._superlinear_over_budget(item, result, 1e-6, 0.1, cubic)["ntk_logdet"]
    )
    assert tried[-1] < 400
    tried.clear()
    assert (
        "it takes at least 24 s"
        in planning._superlinear_over_budget(item, result, 0.01, 2.5, cubic)["ntk_logdet"]
    )
    assert not tried


def test_options_of_the_caller_do_not_change(slow: Any) -> None:
    few = gs.measure(
        slow,
        (X[:64], Y[:64]),
        ["ntk_trace"],
        time_budget=0.2,
        options={"ntk_trace": {"method": "exact"}},
    )
    assert few["ntk_trace"].standard_error is None and few["ntk_trace"].note == ""


@pytest.fixture
def interrupted() -> Any:
    """Two measures, between accuracy and the rest: one that is stopped by Ctrl-C, and one that would come after it."""
    known = list_measures()

    @register_measure(numbers=ScalarInfo("1"), title="", reference="")
    def axle(network: nn.Module, x: Tensor) -> float:
        raise KeyboardInterrupt

    yield axle
    from gapscope.measures.registry import _MEASURES

    del _MEASURES["axle"]
    assert list(list_measures()) == list(known)


@pytest.mark.thorough
def test_interruption_returns_finished_readings(interrupted: Any) -> None:
    readings = gs.measure(network(), (X, Y), ["loss", "axle", "accuracy"])
    assert list(readings.values()) == ["loss"]
    assert readings.interrupted and not gs.measure(network(), (X, Y), ["loss"]).interrupted
    assert gs.Readings.from_json(readings.to_json()).interrupted
    assert readings.unmeasured == dict.fromkeys(
        ["axle", "accuracy"], "stopped before it was finished"
    )
    with pytest.raises(NotMeasurable, match="value: stopped before"):
        _ = readings["accuracy"]
    for strict, names in ((True, ["loss", "axle"]), (False, ["axle", "loss"])):
        with pytest.raises(KeyboardInterrupt):
            gs.measure(network(), (X, Y), names, strict=strict)


def test_a_backward_pass_for_each_of_thousands_of_outputs_needs_a_request() -> None:
    network, x = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 5000)), torch.randn(64, 3)
    result = gs.measure(network, x, ["input_jacobian_norm"], time_budget=1e-3)
    assert "time_budget=None" in result.unmeasured["input_jacobian_norm"]


@pytest.mark.parametrize("budget", [0, -1.0, "a"])
def test_a_budget_is_a_positive_number(budget: Any) -> None:
    with pytest.raises(InvalidInput, match=f"time_budget must .*{budget}"):
        gs.measure(nn.Linear(6, 3), (X[:40], Y[:40]), ["loss"], time_budget=budget)
