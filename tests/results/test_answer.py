"""One vocabulary and one printer for the functions that answer with a score."""

from __future__ import annotations

import dataclasses
import math

import pytest

from gapscope.accuracy.accuracy_after_training import AccuracyEstimate
from gapscope.accuracy.forecast_result import AccuracyForecast
from gapscope.accuracy.held_out_result import HeldOutPredictions
from gapscope.accuracy.learning_curve_result import LearningCurve
from gapscope.accuracy.validated import ValidatedAccuracy
from gapscope.base.renamed import RENAMED
from gapscope.results.answer import Answer
from gapscope.results.estimate import IntervalEstimate

ANSWERS = (AccuracyEstimate, AccuracyForecast, HeldOutPredictions, LearningCurve, ValidatedAccuracy)
VALIDATED = ValidatedAccuracy(
    task="classification",
    score=0.812,
    samples=60,
    low=0.74,
    high=0.871,
    plain=IntervalEstimate(0.8, 0.7, 0.9),
    correlation=0.5,
    effective_samples=70.0,
)


@pytest.mark.parametrize("result", ANSWERS)
def test_every_answer_has_the_same_words_and_the_same_headline(result: type[Answer]) -> None:
    assert issubclass(result, Answer)
    assert {"headline", "sentences", "interval", "estimate"}.isdisjoint(vars(result))
    other = [field.name for field in dataclasses.fields(result)]
    assert not [name for name in other if name.endswith("_because") and name != "abstained_because"]


def test_a_fraction_is_printed_in_percent_and_another_score_as_a_number() -> None:
    assert VALIDATED.headline == "Validated accuracy: 81.2 % (90 % interval 74.0 to 87.1 %)"
    assert dataclasses.replace(VALIDATED, score_name="R^2").headline == (
        "Validated R^2: 0.812 (90 % interval 0.740 to 0.871)"
    )


def test_an_answer_without_an_interval_has_no_estimate() -> None:
    plain = dataclasses.replace(VALIDATED, low=math.nan, high=math.nan)
    assert (
        plain.interval is None
        and plain.estimate is None
        and plain.headline == "Validated accuracy: 81.2 %"
    )
    assert VALIDATED.interval == (0.74, 0.871) and VALIDATED.estimate == IntervalEstimate(
        0.812, 0.74, 0.871
    )


def test_an_abstention_is_the_headline() -> None:
    result = dataclasses.replace(VALIDATED, abstained_because="too few samples.")
    assert (
        result.headline == result.sentences[0] == "No answer: too few samples."
        and result.estimate is None
    )


def test_the_warning_is_printed_first() -> None:
    assert "3 of 60" in repr(dataclasses.replace(VALIDATED, duplicates=3)).splitlines()[0]


def test_earlier_names_lead_to_the_answer() -> None:
    for earlier, name in RENAMED["ValidatedAccuracy"].items():
        with pytest.warns(DeprecationWarning, match=f"{earlier} is now ValidatedAccuracy.{name}"):
            assert getattr(VALIDATED, earlier) in (0.8, 0.7, 0.9)


def test_few_repeated_samples_are_a_note_and_many_a_warning() -> None:
    few, many = (dataclasses.replace(VALIDATED, samples=400, duplicates=k) for k in (1, 6))
    assert few.warning == ""
    assert few.sentences[0] == few.headline and str(few).startswith(few.headline)
    assert few.sentences[-1].startswith("1 of 400 validation samples repeats")
    assert str(few).endswith(few.sentences[-1])
    assert many.warning.startswith("6 of 400 validation samples repeat")
    assert str(many).startswith(many.warning) and str(many).count("6 of 400") == 1
    # without an interval: 1 in 100
    for k, is_warned in ((4, False), (5, True)):
        plain = dataclasses.replace(few, duplicates=k, low=math.nan, high=math.nan)
        assert bool(plain.warning) == is_warned
