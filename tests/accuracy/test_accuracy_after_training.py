"""The shipped estimate: digits that were trained here, abstention, known label noise by hand, recalibration."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.accuracy_after_training import (
    clean_label_accuracy,
    estimate_accuracy,
    fit_accuracy_estimator,
    implied_noise_rate,
)
from gapscope.accuracy.accuracy_estimator import (
    NEEDED,
    AccuracyEstimator,
    IntervalEstimate,
    load_default,
)
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.data import load_dataset

Trained = tuple[nn.Module, dict[str, Tensor], gs.Samples, gs.Samples]


@pytest.fixture(scope="module")
def trained() -> Trained:
    """A small network on 200 clean digits, its initial weights, and the rest of the digits."""
    digits = load_dataset("digits")
    train = digits.train.subset(torch.arange(200))
    network = gs.build_network("fully_connected", input_shape=digits.input_shape, n_outputs=10, width=64,
                       generator=torch.Generator().manual_seed(3))  # fmt: skip
    initial = copy.deepcopy(network.state_dict())
    gs.train(
        network,
        train,
        gs.TrainingSpec.from_dict({"optimizer": "adam", "learning_rate": 0.003, "epochs": 25}),
    )
    return network, initial, train, digits.test


def test_the_accuracy_of_digits_lies_in_the_interval_and_nothing_is_changed(
    trained: Trained,
) -> None:
    network, initial, train, test = trained
    before = copy.deepcopy(network.state_dict())
    result = estimate_accuracy(network, train, initial_state=initial)
    assert (
        not result.abstained_because
        and result.estimate is not None
        and result.clean_labels is not None
    )
    with torch.no_grad():
        reached = float((network.eval()(test.inputs).argmax(1) == test.y).double().mean())
    assert result.estimate.low <= reached <= result.estimate.high
    assert abs(result.estimate.value - reached) < 0.08
    assert result.estimate.high - result.estimate.low < 0.25
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())
    assert f"Estimated accuracy: {100 * result.score:.1f} % (" in repr(result)
    assert json.loads(result.to_json())["score"] == result.score
    assert result.to_pandas()["target"].tolist() == ["same_noise", "clean_labels"]


@pytest.mark.thorough
def test_initial_weights_that_are_not_known_are_resampled_with_one_seed(trained: Trained) -> None:
    network, initial, train, _ = trained
    given = estimate_accuracy(network, train, initial_state=initial)
    state = torch.get_rng_state()
    drawn = estimate_accuracy(network, train)
    assert torch.equal(torch.get_rng_state(), state)
    assert drawn.initial == "resampled" and "Initial weights were resampled" in repr(drawn)
    assert given.estimate is not None and drawn.estimate is not None
    assert drawn.estimate == estimate_accuracy(network, train).estimate
    assert "all training samples" in str(drawn.notes)
    known = estimate_accuracy(network, train, n_training=len(train))
    assert "all training samples" not in str(known.notes)
    assert abs(drawn.estimate.value - given.estimate.value) < 0.05


def test_a_layer_that_cannot_draw_its_weights_asks_for_them(trained: Trained) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) * self.scale

    with pytest.raises(InvalidInput, match=r"reset_parameters; 0 \(Scaled\)"):
        estimate_accuracy(nn.Sequential(Scaled(), nn.Linear(64, 10)), trained[2])


def test_labels_without_meaning_get_no_estimate(trained: Trained) -> None:
    network, initial, train, _ = trained
    shuffled = train.y[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    result = estimate_accuracy(network, (train.inputs, shuffled), initial_state=initial)
    assert result.estimate is None and result.to_pandas().empty
    assert "predict no better than the most frequent label" in repr(result)


def test_a_known_share_of_wrong_labels_is_removed_exactly(trained: Trained) -> None:
    network, initial, train, _ = trained
    result = estimate_accuracy(network, train, initial_state=initial, label_noise=0.0)
    assert result.clean_labels == result.estimate and result.label_noise == 0.0
    # .91 right: .91 (1 - .2) + .09 * .2 / 9 = .73
    assert clean_label_accuracy(IntervalEstimate(0.73, 0.64, 0.82), 0.2, 10).value == pytest.approx(
        0.91
    )
    assert implied_noise_rate(0.73, 0.91, 10) == pytest.approx(0.2)
    assert implied_noise_rate(0.5, 0.05, 10) == 0.0


def test_a_budget_for_some_columns_uses_landmarks(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, initial, train, _ = trained

    def measure(cost: Any, budget: object) -> None:
        cost.per_pair = 1 / len(train)  # one second per column

    monkeypatch.setattr("gapscope.measures.cpu_budget._KernelCost.measure", measure)
    options: dict[str, Any] = {"initial_state": initial, "label_noise": 0.0}
    with pytest.raises(NotMeasurable, match="time_budget"):  # two kernels of 200 samples
        estimate_accuracy(network, train, time_budget=399, **options)
    for module in ("accuracy_estimator", "accuracy_after_training"):
        monkeypatch.setattr(f"gapscope.accuracy.{module}.MAX_PAIRS", 100)
    # two of 100 samples, one of 200
    whole = estimate_accuracy(network, train, time_budget=310, **options)
    some = estimate_accuracy(network, train, time_budget=250, **options)  # ... of 125 landmarks
    name = "kernel_leave_one_out.initial.accuracy"
    assert (
        some.readings[name] != whole.readings[name] == pytest.approx(some.readings[name], abs=0.1)
    )
    with pytest.raises(NotMeasurable, match="time_budget"):
        estimate_accuracy(network, train, time_budget=199, **options)


def test_readings_are_those_of_the_measures(trained: Trained) -> None:
    network, initial, train, _ = trained
    result = estimate_accuracy(network, train, initial_state=initial).readings
    measured = gs.measure(
        network, train, ["kernel_leave_one_out", "gradient_neighbours"], initial_state=initial
    ).values()
    shared = [name for name in result if "." in name]
    assert len(shared) == 8
    for name in shared:
        assert result[name] == pytest.approx(measured[name], abs=1e-9), name


@pytest.mark.thorough
def test_the_clean_label_line_follows_the_estimated_label_noise(trained: Trained) -> None:
    """Digits with 40 % wrong labels: accuracy on clean labels lies in an interval that holds that of the noise."""
    _, _, _, test = trained
    train, rest = test.subset(torch.arange(400)), test.subset(torch.arange(400, len(test)))
    noisy = gs.data.inject_label_noise(train.y, 0.4, 10, torch.Generator().manual_seed(0))
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    initial = copy.deepcopy(network.state_dict())
    gs.train(
        network,
        (train.inputs, noisy),
        gs.TrainingSpec(optimizer="adam", learning_rate=0.003, epochs=25),
    )
    estimate = estimate_accuracy(network, (train.inputs, noisy), initial_state=initial)
    assert estimate.clean_labels is not None and estimate.noise_interval is not None
    wrong = float((noisy != train.y).double().mean())
    assert estimate.noise_interval[0] <= wrong <= estimate.noise_interval[1]
    with torch.no_grad():
        reached = float((network.eval()(rest.inputs).argmax(1) == rest.y).double().mean())
    assert estimate.clean_labels.low <= reached <= estimate.clean_labels.high
    assert estimate.clean_labels.value > reached - 0.1
    # both errors enter: the interval is wider than with the noise known, and holds that of either end of the noise
    known = estimate_accuracy(
        network, (train.inputs, noisy), initial_state=initial, label_noise=estimate.label_noise
    )
    assert known.clean_labels is not None and known.clean_labels.value == pytest.approx(
        estimate.clean_labels.value
    )
    assert known.clean_labels.low > estimate.clean_labels.low and known.noise_interval is None


@pytest.mark.parametrize("clone", [True, False])
def test_an_initial_state_that_is_the_trained_one_is_detected(
    trained: Trained, clone: bool
) -> None:
    network, _, train, _ = trained
    state = copy.deepcopy(network.state_dict()) if clone else network.state_dict()
    with pytest.raises(InvalidInput, match=r"equal the trained ones.*copy\.deepcopy"):
        estimate_accuracy(network, train, initial_state=state)
    readings = gs.measure(network, train, ["distance_from_initialization"], initial_state=state)
    assert any("initial_state equals the weights" in note for note in readings.notes)
    with pytest.raises(InvalidInput, match="state dictionary"):
        estimate_accuracy(network, train, initial_state={"other": torch.zeros(1)})


@pytest.mark.thorough
def test_an_interruption_of_the_noise_estimate_keeps_the_other_line(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    network, initial, train, _ = trained
    whole = estimate_accuracy(network, train, initial_state=initial)
    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.estimate_label_noise", stop)
    part = estimate_accuracy(network, train, initial_state=initial)
    assert part.estimate == whole.estimate and part.readings == whole.readings
    assert part.clean_labels is None and part.interrupted
    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.accuracy_readings", stop)
    with pytest.raises(KeyboardInterrupt):  # nothing is finished
        estimate_accuracy(network, train, initial_state=initial)


ROW = {"samples": 400.0, "classes": 10.0, "train_accuracy": 1.0, "kernel_leave_one_out.initial.accuracy": 0.6,
       "kernel_leave_one_out.initial.squared_error": 0.5, "kernel_leave_one_out.initial.effective_dimension": 100.0,
       "gradient_neighbours.agreement": 0.6, "gradient_neighbours.conflict": 0.4,
       "kernel_leave_one_out.alignment": 0.7}  # fmt: skip


def known(*missed: float) -> pd.DataFrame:
    table = pd.DataFrame([ROW] * len(missed))
    message = load_default().predict(table)["like_training"]
    return table.assign(
        accuracy=[answer.value + each for answer, each in zip(message, missed, strict=True)]
    )


def test_the_shift_is_that_of_a_mixed_model() -> None:
    """Data sets are drawn with normal mean errors, networks around them: oracle: their joint normal law."""
    missed = [0.05, 0.02, 0.11]
    parts = load_default().errors["like_training"]
    together = parts.between**2 * np.ones((3, 3)) + parts.within**2 * np.eye(3)
    expected = parts.between**2 * np.ones(3) @ np.linalg.solve(together, missed)
    fitted = fit_accuracy_estimator(known(*missed))
    assert fitted.shifts == {"like_training": pytest.approx(expected, rel=1e-12)}
    assert 0 < expected < np.mean(missed)


def test_answers_move_and_their_widths_stay() -> None:
    fitted, table = fit_accuracy_estimator(known(0.05, 0.05)), pd.DataFrame([ROW])
    for target, moved in (("like_training", fitted.shifts["like_training"]), ("clean", 0.0)):
        (before,), (after,) = load_default().predict(table)[target], fitted.predict(table)[target]
        for end in ("value", "low", "high"):
            assert getattr(after, end) == pytest.approx(getattr(before, end) + moved)


def test_fitting_again_replaces_the_earlier_fit_and_targets_stand_alone() -> None:
    once = fit_accuracy_estimator(known(0.05, 0.05))
    assert fit_accuracy_estimator(known(0.05, 0.05), estimator=once).shifts == pytest.approx(
        once.shifts
    )
    both = fit_accuracy_estimator(known(0.0).assign(accuracy=0.9), target="clean", estimator=once)
    assert (
        both.shifts["like_training"] == once.shifts["like_training"] and both.shifts["clean"] != 0
    )


def test_networks_from_anywhere_fit_it_and_a_file_keeps_it(tmp_path: Path) -> None:
    digits = gs.load_dataset("digits")
    train = digits.train.subset(torch.arange(120))
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gs.train(
        network,
        train,
        gs.TrainingSpec.from_dict({"optimizer": "adam", "learning_rate": 0.01, "epochs": 20}),
    )
    plain = gs.estimate_accuracy(network, train, initial_state=initial)
    assert plain.estimate is not None
    fitted = gs.fit_accuracy_estimator([(network, train, plain.estimate.value + 0.05, initial)])
    fitted.save(tmp_path / "accuracy.json")
    again = gs.estimate_accuracy(
        network,
        train,
        initial_state=initial,
        estimator=AccuracyEstimator.load(tmp_path / "accuracy.json"),
    )
    assert again.estimate is not None
    assert again.estimate.value == pytest.approx(
        plain.estimate.value + fitted.shifts["like_training"]
    )
    assert 0 < fitted.shifts["like_training"] < 0.05


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"known must hold one network or more; got none"),
        ([torch.nn.Linear(2, 2)], r"tuple \(network, training data, accuracy\).*got Linear"),
        (known(0.0).drop(columns=NEEDED[3]), rf"The table must have a column '{NEEDED[3]}'"),
        (known(0.0).assign(accuracy=71.0), r"accuracy must lie in .*71"),
    ],
)  # fmt: skip
def test_what_is_not_known_raises(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_accuracy_estimator(given)


@pytest.mark.thorough
def test_a_network_that_may_have_seen_more_samples_gets_a_bracket() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 8, generator=generator)
    everything = gs.Samples(x, (x[:, 0] * x[:, 1] > 0).long())
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
    gs.train(network, everything, gs.TrainingSpec(optimizer="adam", learning_rate=0.01, epochs=15))
    part = everything.subset(torch.arange(150))  # the kernel learns less from these
    bracket = gs.estimate_accuracy(network, part, label_noise=0.0)
    assert bracket.estimate is None and bracket.bracket is not None
    low, high = bracket.bracket
    assert low < 0.8 and high > 0.93 and "n_training" in bracket.abstained_because
    confirmed = gs.estimate_accuracy(network, part, n_training=150, label_noise=0.0)
    assert confirmed.estimate is not None and confirmed.bracket is None
    told = gs.estimate_accuracy(network, part, n_training=1500, label_noise=0.0)
    assert told.bracket == bracket.bracket and "1500" in repr(told)
    with pytest.raises(InvalidInput, match="n_training"):
        gs.estimate_accuracy(network, part, n_training=50)


@pytest.mark.parametrize("width", [2, 3])
def test_a_layer_of_one_or_two_units_has_no_estimate(width: int) -> None:
    digits = load_dataset("digits")
    train = digits.train.subset(torch.arange(200))
    network = gs.build_network("fully_connected", input_shape=digits.input_shape, n_outputs=10, width=width,
                       generator=torch.Generator().manual_seed(3))  # fmt: skip
    initial = copy.deepcopy(network.state_dict())
    gs.train(
        network,
        train,
        gs.TrainingSpec.from_dict({"optimizer": "adam", "learning_rate": 0.01, "epochs": 40}),
    )
    result = estimate_accuracy(network, train, initial_state=initial)
    assert ("narrowest layer has 2 units" in result.abstained_because) is (width == 2)


@pytest.mark.parametrize("case", ["samples", "groups", "width"])
def test_what_is_known_at_the_start_abstains_at_the_start(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise AssertionError("gradients were computed")

    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.affordable_kernel", stop)
    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.accuracy_readings", stop)
    train = load_dataset("digits").train.first(80 if case == "samples" else 120)
    width = 2 if case == "width" else 16
    network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=width)
    groups = torch.arange(120) // 2 if case == "groups" else None
    result = estimate_accuracy(network, train, groups=groups)
    expected = {
        "samples": "80 samples are fewer than 100",
        "groups": "60 groups are fewer than 100",
        "width": "narrowest layer has 2 units",
    }
    assert expected[case] in result.abstained_because
    assert str(result).startswith("No answer:")
    if groups is None:
        with pytest.raises(InvalidInput, match="too few"):
            gs.fit_accuracy_estimator([(network, train, 0.9)])


def test_the_label_noise_is_estimated_within_the_budget(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, initial, train, _ = trained
    budgets: list[float] = []

    def estimate(*_: object, time_budget: float, **__: object) -> None:
        budgets.append(time_budget)
        raise NotMeasurable("stopped")

    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.estimate_label_noise", estimate)
    estimate_accuracy(network, train, initial_state=initial, time_budget=50.0)
    assert len(budgets) == 1 and 0 < budgets[0] < 50
