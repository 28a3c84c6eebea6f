from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.data.problem import Problem

IMAGES = Samples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
TABLE = Samples(torch.zeros(4, 3), torch.zeros(4, 2))


def test_input_shape_is_that_of_one_input() -> None:
    assert Problem("toy", "classification", IMAGES, IMAGES, 3).input_shape == (1, 8, 8)
    assert Problem("toy", "regression", TABLE, TABLE, 2).input_shape == (3,)


def test_a_new_number_of_test_samples_is_no_new_shape() -> None:
    problem = Problem("toy", "classification", IMAGES, IMAGES.subset(torch.tensor([1])), 3)
    assert (len(problem.train), len(problem.test)) == (4, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "ranking"}, "task of a Problem must be one of 'classification', 'regression'; got 'ranking'"),
        ({"n_outputs": 0}, r"n_outputs of a Problem must lie in \[1, inf\); got 0"),
        ({"n_outputs": 2}, "Class labels must be smaller than the network's number of outputs, 2; got 2"),
        ({"class_names": ("a",)}, "one class name an output, here 3; got 1"),
        ({"task": "regression"}, r"training targets of a regression problem must be float targets \[n, K\]"),
        ({"test": TABLE}, r"must have the same shape; got \[1, 8, 8\] and \[3\]"),
        ({"test": Samples(IMAGES.inputs)}, "test targets of a classification problem .* got none"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, message: str) -> None:
    problem = Problem("toy", "classification", IMAGES, IMAGES, 3)
    with pytest.raises(InvalidInput, match=message):
        replace(problem, **change)


def test_regression_targets_have_one_column_an_output() -> None:
    with pytest.raises(InvalidInput, match="training targets must have n_outputs = 3 columns; got 2"):
        Problem("toy", "regression", TABLE, TABLE, 3)
