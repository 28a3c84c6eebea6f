"""A learning problem: training and test samples, and the indices of a random split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.samples import Samples
from gapscope.base.targets import (
    check_labels,
    require_labels,
    require_regression_targets,
)
from gapscope.base.task import check_regression_shape

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Problem:
    """Training and test samples of one task, validated to be compatible.

    Attributes:
        name: Name of the data set.
        task: "classification" (int64 labels [n]) or "regression" (float32 targets [n, K]).
        train: Training samples; images are float32 [n, channels, height, width] in [0, 1].
        test: Test samples, of the same shape and type.
        n_outputs: Number of outputs that a network needs: classes, or regression targets K.
        class_names: One name per class, or empty.
    """

    name: str
    task: Task
    train: Samples
    test: Samples
    n_outputs: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("task of a Problem", self.task, ("classification", "regression"))
        check_range("n_outputs of a Problem", self.n_outputs, 1)
        if self.class_names and len(self.class_names) != self.n_outputs:
            raise InvalidInput(
                f"A Problem needs one class name per output, here {self.n_outputs}; got {len(self.class_names)}."
            )
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InvalidInput(
                f"Training and test inputs must have the same shape; got {list(self.train.inputs.shape[1:])} "
                f"and {list(self.test.inputs.shape[1:])}. Resize one of them."
            )
        for split, samples in (("training", self.train), ("test", self.test)):
            owner = f"The {split} split of a {self.task} problem"
            if self.task == "classification":
                check_labels(require_labels(samples, owner), self.n_outputs)
            else:
                targets = require_regression_targets(samples, owner)
                check_regression_shape(
                    targets, (len(targets), self.n_outputs), f"Targets of the {split} split"
                )

    def __repr__(self) -> str:
        return f"Problem({self.name}, {self.task}, {self.n_outputs} outputs; train {self.train}; test {self.test})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, for images (channels, height, width)."""
        return tuple(self.train.inputs.shape[1:])


def split_indices(
    n: int, test_fraction: float, split_seed: int
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """Return random indices of training samples and of round(test_fraction * n) test samples.

    The order is NumPy's RandomState(split_seed).permutation(n), which is the same in every version of NumPy.

    Raises:
        InvalidInput: One of the splits would be empty.
    """
    check_range("test_fraction", test_fraction, 0, 1, low_open=True, high_open=True)
    check_range("split_seed", split_seed, 0, 2**32 - 1)
    n_test = round(test_fraction * n)
    if not 0 < n_test < n:
        raise InvalidInput(
            f"Training and test split need at least one of the {n} samples each; "
            f"test_fraction={test_fraction} leaves {n - n_test} and {n_test}."
        )
    order = torch.from_numpy(np.random.RandomState(split_seed).permutation(n))
    return order[n_test:], order[:n_test]
