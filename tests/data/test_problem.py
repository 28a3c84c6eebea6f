from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.data.problem import Problem, split_indices

IMAGES = Samples(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
TABLE = Samples(torch.zeros(4, 3), torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "ranking"}, "task of a Problem must be one of 'classification', 'regression'; got 'ranking'"),
        ({"n_outputs": 0}, r"n_outputs of a Problem must lie in \[1, inf\); got 0"),
        ({"n_outputs": 2}, "Class labels must be smaller than the number of classes, 2; got 2"),
        ({"class_names": ("a",)}, "one class name per output, here 3; got 1"),
        ({"task": "regression"}, r"training split of a regression problem needs .*\[n, K\]; got torch.int64"),
        ({"test": TABLE}, r"must have the same shape; got \[1, 8, 8\] and \[3\]"),
        ({"test": Samples(IMAGES.inputs)}, "test split of a classification problem needs targets; got inputs alone"),
        ({"task": "regression", "train": TABLE, "test": TABLE}, r"shape of the outputs, \[4, 3\]; got \[4, 2\]"),
    ],
)
def test_incompatible_samples_are_rejected(change: dict, message: str) -> None:
    problem = Problem("toy", "classification", IMAGES, IMAGES, 3)
    with pytest.raises(InvalidInput, match=message):
        replace(problem, **change)


def test_the_split_is_numpys_frozen_permutation() -> None:
    train, test = split_indices(10, 0.3, 0)
    assert (test.tolist(), train.tolist()) == ([2, 8, 4], [9, 1, 6, 7, 3, 0, 5])
    with pytest.raises(InvalidInput, match="at least one of the 2 samples"):
        split_indices(2, 0.1, 0)
