"""Tasks: the kinds of targets, with their losses and scores.

The targets of `Samples` have one form per task, and `task_of` is the only place that tells the tasks apart:

| targets | task |
|---|---|
| int64 [n] | `Classification`: one class per sample (one output z is the logit of the second of two classes) |
| bool [n, K] | `MultiLabel`: K labels per sample, each present or absent |
| int64 [n, ...] | `Positions`: one class per token or pixel, -100 where a position does not count |
| float [n, K] | `Regression` |

`gapscope.base.targets` converts what users pass to these forms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gapscope.base.errors import InvalidInput, NotMeasurable, check_choice
from gapscope.base.targets import IGNORED, check_label_shape, check_labels

KINDS = ("classification", "multi-label", "positions", "regression")
SPELLINGS = {
    "binary": "classification",
    "multilabel": "multi-label",
    "multi_label": "multi-label",
    "tokens": "positions",
    "pixels": "positions",
}
"""Other names of the kinds. "tokens" and "pixels" also tell where outputs have their classes: last, or first."""
CLASS_AXES = {"tokens": -1, "pixels": 1}


def check_regression_shape(
    targets: Tensor, shape: Sequence[int], owner: str = "Regression targets"
) -> None:
    """Raise InvalidInput unless regression targets have the shape of the outputs."""
    if targets.shape != tuple(shape):
        column = ""
        if targets.ndim == 1:
            column = "For K = 1 use y[:, None]. "
        advice = "Give the network one output per target"
        if len(shape) == 2 and shape[1] > targets[:1].numel():
            advice = (
                "Wrap the network so that it returns one output per target, such as the mean or the median of "
                "several quantiles"
            )
        raise InvalidInput(
            f"{owner} must have the shape of the outputs, {list(shape)}; got {list(targets.shape)}. {column}"
            f"{advice} (for class labels pass y.long())."
        )


def class_logits(outputs: Tensor) -> Tensor:
    """Return the logits of all classes [n, C, ...] (one output z, also per position, becomes the logits 0 and z).

    >>> class_logits(torch.tensor([[3.0]]))
    tensor([[0., 3.]])
    """
    if outputs.ndim < 2 or outputs.shape[1] != 1:
        return outputs
    return torch.cat([torch.zeros_like(outputs), outputs], 1)


@dataclass(frozen=True)
class Task(ABC):
    """Kind of the targets.

    Attributes:
        n_outputs: Number of classes, of labels, or of regression targets, as far as the targets tell it.
    """

    n_outputs: int
    kind: ClassVar[str]
    score_name: ClassVar[str] = "accuracy"
    loss_unit: ClassVar[str] = "nats (cross-entropy)"
    noun: ClassVar[str] = "classifier"

    def __str__(self) -> str:
        """Return the task in words, with its number of outputs."""
        return f"{self.kind}, {self.n_outputs} classes"

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the numbers of `gapscope.inspection.losses.evaluate` besides the loss."""
        return ("accuracy",)

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample and position or output, [n, ...].

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.
        """

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss [n]: the mean over its positions or outputs.

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.
        """
        return self.losses(outputs, targets).reshape(len(outputs), -1).mean(1)

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over all samples, and over their positions or outputs.

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.
        """

    def correct(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each prediction is correct, in the shape of the targets.

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.

        Raises:
            InvalidInput: The task has no correct predictions (regression).
            NotMeasurable: Outputs are NaN or infinite.
        """
        self.check_finite(outputs, targets)
        return self.agrees(outputs, targets)

    def agrees(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return `correct`, without a look at the outputs' values, which waits for the device; for steps of training.

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.

        Raises:
            InvalidInput: The task has no correct predictions (regression).
        """
        raise InvalidInput(f"{self} has no correct predictions; it is judged by {self.score_name}.")

    def is_invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which samples [n] have outputs that predict nothing: NaN or infinite ones.

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.
        """
        return ~outputs.isfinite().flatten(1).all(1)

    def check_finite(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise NotMeasurable if outputs are NaN or infinite (a class may have minus infinity).

        Args:
            outputs: Outputs of the network, [n, K], [n, C, ...] or [n, C * P] as the task requires.
            targets: Targets of the same samples, in the form of `Samples`.
        """
        check_no_invalid(int(self.is_invalid(outputs, targets).sum()), len(outputs))

    @abstractmethod
    def check_outputs(self, targets: Tensor, n_outputs: int) -> None:
        """Raise InvalidInput unless targets fit a network.

        Args:
            targets: Targets in the form of `Samples`.
            n_outputs: Number of outputs K of the network, per sample.
        """

    @abstractmethod
    def encode(self, targets: Tensor) -> Tensor:
        """Return the targets of kernel machines [n, K], in float64: indicators, or the values.

        Args:
            targets: Targets in the form of `Samples`.
        """


def check_no_invalid(n_invalid: int, n: int) -> None:
    """Raise NotMeasurable if outputs of some of n samples are NaN or infinite."""
    if n_invalid:
        raise NotMeasurable(
            f"Outputs must be finite; those of {n_invalid:,} of {n:,} samples are NaN or infinite. Lower the learning "
            "rate, correct the forward pass, or drop these samples."
        )


def has_no_largest(logits: Tensor) -> Tensor:
    """Return where no class of logits [n, C, ...] is predicted, [n, ...]; some classes may have minus infinity."""
    return ~(logits < torch.inf).all(1) | (logits == -torch.inf).all(1)


def _with_positions(outputs: Tensor, labels: Tensor) -> Tensor:
    """Reshape outputs [n, C * P] (class-major) to [n, C, P] for labels of P positions."""
    positions = 1
    if labels.ndim > 1:
        positions = labels[0].numel()
    if outputs.ndim == 2 and positions > 1 and outputs.shape[1] % positions == 0:
        return outputs.reshape(len(outputs), -1, *labels.shape[1:])
    return outputs


def _cross_entropy(outputs: Tensor, labels: Tensor, reduction: str) -> Tensor:
    outputs = class_logits(_with_positions(outputs, labels))
    check_label_shape(labels, (len(outputs), *outputs.shape[2:]))
    try:
        return F.cross_entropy(outputs, labels, reduction=reduction)
    except (
        IndexError
    ):  # a label without an output; checked only now, because the check waits for the device
        check_labels(labels, outputs.shape[1])
        raise


@dataclass(frozen=True)
class Classification(Task):
    """One class per sample: labels int64 [n], outputs [n, C], or [n, 1] for two classes."""

    kind: ClassVar[str] = "classification"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every sample, in nats."""
        return _cross_entropy(outputs, targets, "none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats."""
        return _cross_entropy(outputs, targets, "mean")

    def agrees(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the largest output is the label, [n]."""
        return class_logits(outputs).argmax(1) == targets

    def is_invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which samples [n] have no largest output."""
        return has_no_largest(class_logits(outputs))

    def check_outputs(self, targets: Tensor, n_outputs: int) -> None:
        """Raise InvalidInput unless all labels are below the number of classes."""
        check_labels(targets, max(n_outputs, 2))

    def encode(self, targets: Tensor) -> Tensor:
        """Return one indicator per class."""
        return F.one_hot(targets, self.n_outputs).double()


@dataclass(frozen=True)
class MultiLabel(Task):
    """Several labels per sample, each present or absent: labels bool [n, K], outputs [n, K]."""

    kind: ClassVar[str] = "multi-label"
    score_name: ClassVar[str] = "accuracy per label"
    loss_unit: ClassVar[str] = "nats (binary cross-entropy)"

    def __str__(self) -> str:
        """Return the task in words, with its number of labels."""
        return f"multi-label, {self.n_outputs} labels"

    @property
    def scores(self) -> tuple[str, ...]:
        """Accuracy per label (averaged), and the fraction of samples whose labels are all correct."""
        return ("accuracy", "exact_match")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the binary cross-entropy of every label, in nats."""
        self._check_shape(targets, outputs)
        return F.binary_cross_entropy_with_logits(
            outputs, targets.to(outputs.dtype), reduction="none"
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross-entropy over samples and labels, in nats."""
        return self.losses(outputs, targets).mean()

    def agrees(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the sign of each output is right, [n, K]."""
        self._check_shape(targets, outputs)
        return (outputs > 0) == targets

    def is_invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which samples [n] have outputs that are NaN or plus infinity."""
        return ~(outputs < torch.inf).all(1)

    def check_outputs(self, targets: Tensor, n_outputs: int) -> None:
        """Raise InvalidInput unless there is one output per label."""
        if targets.shape[1] != n_outputs:
            raise InvalidInput(
                f"Several labels per sample need one output per label; got {targets.shape[1]} labels and {n_outputs} "
                "outputs. Give the network one output per label."
            )

    def encode(self, targets: Tensor) -> Tensor:
        """Return one indicator per label."""
        return targets.double()

    def _check_shape(self, targets: Tensor, outputs: Tensor) -> None:
        if targets.shape != outputs.shape:
            raise InvalidInput(
                f"Several labels per sample need one output per label, {list(targets.shape)}; got outputs "
                f"{list(outputs.shape)}. Give the network one output per label."
            )


@dataclass(frozen=True)
class Positions(Task):
    """One class per position (token, pixel): labels int64 [n, ...], outputs [n, C, ...] or [n, C * P].

    Outputs [n, 1, ...] are the logits of the second of two classes, such as those of a mask. Flattened outputs hold all
    positions of the first class first. Positions with the label -100 do not count.
    """

    kind: ClassVar[str] = "positions"
    score_name: ClassVar[str] = "accuracy per position"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every position, in nats (0 at positions that do not count)."""
        return _cross_entropy(outputs, targets, "none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over all positions that count, in nats."""
        return _cross_entropy(outputs, targets, "mean")

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's part of the loss [n]: the sum over its positions, times n, per position that counts."""
        sums = self.losses(outputs, targets).flatten(1).sum(1)
        return sums * len(targets) / (targets != IGNORED).sum().clamp(min=1)

    def agrees(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether the largest output is the label, per position (False where none counts)."""
        return class_logits(_with_positions(outputs, targets)).argmax(1) == targets

    def is_invalid(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which samples [n] have no largest output at a position that counts."""
        invalid = has_no_largest(class_logits(_with_positions(outputs, targets)))
        return (invalid & (targets != IGNORED)).flatten(1).any(1)

    def check_outputs(self, targets: Tensor, n_outputs: int) -> None:
        """Raise InvalidInput unless all labels are below the number of classes."""
        check_labels(targets, max(n_outputs // max(targets[0].numel(), 1), 2))

    def encode(self, targets: Tensor) -> Tensor:
        """Return one indicator per class for every position, [n * P, C] (zero where none counts)."""
        flat = targets.flatten()
        indicators = F.one_hot(flat.clamp(min=0), self.n_outputs).double()
        return indicators * (flat != IGNORED)[:, None]


@dataclass(frozen=True)
class Regression(Task):
    """Real targets, floating point [n, K], outputs [n, K] ([n] and [n, 1] are equivalent)."""

    kind: ClassVar[str] = "regression"
    score_name: ClassVar[str] = "R^2"
    loss_unit: ClassVar[str] = "squared target units"
    noun: ClassVar[str] = "regressor"

    def __str__(self) -> str:
        """Return the task in words, with its number of targets."""
        plural = "s"
        if self.n_outputs == 1:
            plural = ""
        return f"regression, {self.n_outputs} target{plural}"

    @property
    def scores(self) -> tuple[str, ...]:
        """None: the loss is the score."""
        return ()

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of every sample and output."""
        return (outputs - self._targets(outputs, targets)).square()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error, a mean over samples and outputs."""
        return F.mse_loss(outputs, self._targets(outputs, targets))

    def check_outputs(self, targets: Tensor, n_outputs: int) -> None:
        """Raise InvalidInput unless there is one output per target."""
        check_regression_shape(targets, (len(targets), n_outputs))

    def encode(self, targets: Tensor) -> Tensor:
        """Return the targets in float64."""
        return targets.double()

    def _targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # [n] and [n, 1] are equivalent. No other shapes are adapted, so that no values are broadcast.
        scalar_shapes = {(len(outputs),), (len(outputs), 1)}
        if {tuple(outputs.shape), tuple(targets.shape)} <= scalar_shapes:
            targets = targets.view_as(outputs)
        check_regression_shape(targets, outputs.shape)
        return targets.to(outputs.dtype)


def task_of(targets: Tensor, *, is_counted: bool = True) -> Task:
    """Return the task of targets in the form of `Samples` (see the table of this module).

    Args:
        targets: Targets [n], [n, K] or [n, ...] in the form of `Samples`.
        is_counted: Whether to count the classes. The largest label waits for the device, so a training step does not.

    >>> str(task_of(torch.tensor([0, 2, 1])))
    'classification, 3 classes'
    """
    if targets.is_floating_point():
        return Regression(targets.shape[1] if targets.ndim > 1 else 1)
    if targets.dtype == torch.bool and targets.ndim == 2:
        return MultiLabel(targets.shape[1])
    n_classes = 1
    if is_counted and targets.numel():
        n_classes = max(int(targets.max()) + 1, 1)
    if targets.ndim > 1:
        return Positions(n_classes)
    return Classification(n_classes)


def parse_kind(task: str) -> str:
    """Return the kind of a task by any of its names, or raise InvalidInput."""
    check_choice("task", task, (*KINDS, *SPELLINGS))
    return SPELLINGS.get(task, task)
