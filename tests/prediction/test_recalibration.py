"""Networks of known accuracy shift the shipped estimate by the best linear prediction of a random effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.prediction.accuracy_after_training import fit_accuracy_estimator
from gapscope.prediction.accuracy_estimator import NEEDED, AccuracyEstimator, load_default

ROW = {"samples": 400.0, "classes": 10.0, "train_accuracy": 1.0, "kernel_leave_one_out.initial.accuracy": 0.6,
       "kernel_leave_one_out.initial.squared_error": 0.5, "kernel_leave_one_out.initial.effective_dimension": 100.0,
       "gradient_neighbours.agreement": 0.6, "gradient_neighbours.conflict": 0.4,
       "kernel_leave_one_out.alignment": 0.7}  # fmt: skip


def known(*missed: float) -> pd.DataFrame:
    table = pd.DataFrame([ROW] * len(missed))
    said = load_default().predict(table)["like_training"]
    return table.assign(accuracy=[answer.value + each for answer, each in zip(said, missed, strict=True)])


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


def test_fitting_again_forgets_what_was_learnt_before_and_targets_stand_alone() -> None:
    once = fit_accuracy_estimator(known(0.05, 0.05))
    assert fit_accuracy_estimator(known(0.05, 0.05), estimator=once).shifts == pytest.approx(once.shifts)
    both = fit_accuracy_estimator(known(0.0).assign(accuracy=0.9), target="clean", estimator=once)
    assert both.shifts["like_training"] == once.shifts["like_training"] and both.shifts["clean"] != 0


def test_networks_from_anywhere_fit_it_and_a_file_keeps_it(tmp_path: Path) -> None:
    digits = gs.load_dataset("digits")
    train = digits.train.subset(torch.arange(120))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    gs.train(network, train, gs.TrainingSpec.from_dict({"optimizer": "adam", "learning_rate": 0.01, "epochs": 20}))
    plain = gs.estimate_accuracy(network, train, initial_state=initial)
    assert plain.same_noise is not None
    fitted = gs.fit_accuracy_estimator([(network, train, plain.same_noise.value + 0.05, initial)])
    fitted.save(tmp_path / "accuracy.json")
    again = gs.estimate_accuracy(
        network, train, initial_state=initial, estimator=AccuracyEstimator.load(tmp_path / "accuracy.json")
    )
    assert again.same_noise is not None
    assert again.same_noise.value == pytest.approx(plain.same_noise.value + fitted.shifts["like_training"])
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
def test_what_is_not_known_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_accuracy_estimator(given)
