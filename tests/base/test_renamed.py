"""Earlier names warn and lead to the new ones."""

from __future__ import annotations

import pytest

import gapscope
from gapscope.accuracy.learning_curve_result import LearningCurve
from gapscope.base.renamed import RENAMED, new_name


def test_every_earlier_name_of_the_package_is_loaded_with_a_warning() -> None:
    for earlier, name in RENAMED["gapscope"].items():
        with pytest.warns(DeprecationWarning, match=f"gapscope.{earlier} is now"):
            assert getattr(gapscope, earlier) is getattr(gapscope, name)


def test_an_earlier_attribute_of_a_result_warns() -> None:
    curve = LearningCurve(
        task="classification",
        score=0.5,
        samples=10,
        standard_error=0.03,
        design="halves",
        cost=1.0,
        trainings=(),
        interrupted=True,
    )
    with pytest.warns(
        DeprecationWarning, match=r"LearningCurve.is_interrupted is now LearningCurve.interrupted"
    ):
        assert curve.is_interrupted is True  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match="'was_interrupted'"):
        curve.was_interrupted  # noqa: B018  # pyright: ignore


def test_a_name_that_never_was_gives_nothing() -> None:
    assert new_name("gapscope", "predict") is None
    assert new_name("Comparison", "is_interrupted") is None
