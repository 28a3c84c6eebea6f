"""Targets: conversion, validation, and the requirements of functions that use them.

Whether the positions of labels fit the outputs of a network is checked in `gapscope.inspection.validation.ready`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.foreign_data import no_labels_message

if TYPE_CHECKING:
    from gapscope.base.samples import Samples

IGNORED = -100
"""Label of positions (pixels, tokens) that do not count."""

ONE_HOT_NOTE = "Targets with one 1 per row are one-hot: they are treated as class labels."
ONE_HOT_POSITIONS_NOTE = (
    "Labels with one 1 per position are one-hot: they are treated as class labels of positions."
)
MULTI_LABEL_NOTE = (
    "Targets of zeros and ones are treated as several labels per sample (multi-label). "
    'For one class per position pass gs.Samples(x, y, task="positions"), '
    'for regression gs.Samples(x, y, task="regression").'
)
INTEGER_REGRESSION_NOTE = (
    "Integer targets with one column per output are treated as regression targets. "
    "For one class per position, the network must return [n, positions, classes]."
)
NEGATIVE_NOTE = (
    "Rows of integers with negative values are treated as regression targets. "
    f"Where a value marks positions that do not count, such as -1: y.long().masked_fill(y == -1, {IGNORED})."
)
TWO_CLASSES_NOTE = (
    "Targets that are all 0.0 or 1.0 are treated as two classes. "
    'For regression pass gs.Samples(x, y, task="regression").'
)
SOFT_NOTE = (
    "Rows of the targets sum to 1, as probabilities of classes do: they are treated as regression targets. "
    "Their loss is the squared error, not the cross-entropy with probabilities. For classes pass y.argmax(1)."
)
AMOUNTS_NOTE = (
    "Integers are read as classes, and most of these have few samples. If they are amounts (counts, ages, prices), "
    'pass them as floating-point numbers, or gs.Samples(x, y, task="regression").'
)
WHOLE_NOTE = (
    "Targets are a few whole numbers in floating point: they are treated as regression targets. "
    'For classes pass them as integers, or gs.Samples(x, y, task="classification").'
)
SIGN_LABELS_NOTE = (
    "Targets of -1.0 and 1.0 are treated as regression targets. For two classes pass integers, y.long(), or "
    'gs.Samples(x, y, task="classification").'
)
SIGNS_NOTE = (
    "Targets of -1 and 1 in several columns are treated as regression targets. "
    "For several labels per sample pass y > 0."
)
WHOLE_POSITIONS_NOTE = (
    "Whole numbers in floating point, one per position, are read as class labels."
)
TASK_NOTES = (
    AMOUNTS_NOTE,
    INTEGER_REGRESSION_NOTE,
    MULTI_LABEL_NOTE,
    NEGATIVE_NOTE,
    ONE_HOT_NOTE,
    SIGNS_NOTE,
    SIGN_LABELS_NOTE,
    SOFT_NOTE,
    TWO_CLASSES_NOTE,
    WHOLE_NOTE,
)
"""Notes about a task that was inferred from targets alone."""
DOUBTS_OF_REGRESSION = (SIGN_LABELS_NOTE, WHOLE_NOTE)
"""Notes that say how to pass numbers which were read as regression targets as classes."""
MAX_WHOLE = 10
"""Different values up to which whole numbers may be classes: by judgment, as many as digits."""

MIN_AMOUNTS, MIN_PER_CLASS = 50, 5
"""Labels, and labels per class, below which integers may be amounts: by judgment, 5 as in the check of rare classes."""


def is_zero_one(targets: Tensor) -> bool:
    """Return whether all values are 0 or 1, and both occur."""
    if targets.dtype == torch.bool:
        return True
    return are_zero_or_one(targets) and bool((targets == 0).any() & (targets == 1).any())


def are_zero_or_one(targets: Tensor) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(((targets == 0) | (targets == 1)).all())


SIGN_NAMES = ("-1", "1")
"""Names of two classes that were passed as the integers -1 and 1."""


def are_signs(targets: Tensor, kind: str | None = None) -> bool:
    """Return whether targets [n] or [n, 1] are -1 and 1, with at least one -1: integers, or floats named classes.

    Args:
        targets: Targets as passed.
        kind: Kind of the task if the caller names it; floats are numbers without.
    """
    is_number = targets.is_floating_point() and kind != "classification"
    if is_number or targets.is_complex() or targets.dtype == torch.bool or targets[:1].numel() != 1:
        return False
    signs = targets if targets.is_floating_point() else targets.long()  # unsigned ones have no abs
    return bool((signs.abs() == 1).all() & (signs == -1).any())


def note_on_signs(targets: Tensor) -> str:
    """Return the note about a matrix of -1 and 1 (else an empty string).

    Args:
        targets: Targets [n, K].
    """
    if targets.shape[1] < 2 or not bool((targets.abs() == 1).all()):
        return ""
    if bool((targets < 0).any() & (targets > 0).any()):
        return SIGNS_NOTE
    return ""


def is_one_hot(targets: Tensor) -> bool:
    """Return whether a matrix of zeros and ones has exactly one 1 in each row."""
    return targets.ndim == 2 and targets.shape[1] > 1 and bool((targets.long().sum(1) == 1).all())


def are_several(targets: Tensor) -> bool:
    """Return whether targets are a matrix of zeros and ones with several columns: one-hot, or several labels."""
    return targets.ndim == 2 and targets.shape[1] > 1 and is_zero_one(targets)


def parse_targets(targets: Tensor, notes: list[str], kind: str | None = None) -> Tensor:
    """Convert raw targets to the form of their task (see `gapscope.base.task`), and add notes.

    Args:
        targets: Targets as passed: [n], [n, K] or [n, ...] of any type.
        notes: List to which notes about the conversion are appended.
        kind: Kind of the task if the caller names it; None to infer it from the targets.

    Raises:
        InvalidInput: The targets are complex, or do not have the form of the named task.
    """
    if targets.is_complex():
        raise InvalidInput(
            f"targets must be real; got {targets.dtype}. Pass real and imaginary parts as columns."
        )
    if kind in (None, "multi-label") and targets.is_floating_point():
        check_none_missing(targets)
    if kind is not None:
        return _parse_as(targets, kind)
    if are_several(targets):
        if is_one_hot(targets):
            notes.append(ONE_HOT_NOTE)
            return targets.long().argmax(1)
        notes.append(MULTI_LABEL_NOTE)
        return targets.bool()
    if not targets.is_floating_point():
        targets = targets.long()
        if targets.ndim == 2 and targets.shape[1] == 1:
            return targets[:, 0]
        if targets.ndim == 2 and bool(((targets < 0) & (targets != IGNORED)).any()):
            notes.append(note_on_signs(targets) or NEGATIVE_NOTE)
            return targets.to(torch.get_default_dtype())
        return targets
    if targets.ndim > 2 and bool((targets == targets.round()).all()):
        notes.append(WHOLE_POSITIONS_NOTE)
        return targets.long()
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.shape[1:] == (1,) and is_zero_one(targets[targets != IGNORED]):
        notes.append(TWO_CLASSES_NOTE)
        return targets[:, 0].long()
    note = _note_about_classes(targets)
    if note:
        notes.append(note)
    return targets


def count_values(values: Tensor) -> int:
    """Return the number of different values of a vector that is not empty."""
    return 1 + int(values.sort().values.diff().count_nonzero())


def are_amounts(labels: Tensor) -> bool:
    """Return whether class labels [n] may be amounts: 50 or more, with fewer than 5 per class on average."""
    return len(labels) >= MIN_AMOUNTS and count_values(labels) * MIN_PER_CLASS > len(labels)


def _note_about_classes(targets: Tensor) -> str:
    """Return a note about regression targets [n, K] that may have been meant as classes (else an empty string)."""
    if targets.ndim != 2 or len(targets) < 3:
        return ""
    if targets.shape[1] == 1:
        if are_signs(targets, "classification") and bool((targets == 1).any()):
            return SIGN_LABELS_NOTE
        is_whole = bool((targets == targets.round()).all())
        n_values = count_values(targets[:, 0])
        are_few = is_whole and 1 < n_values <= min(MAX_WHOLE, len(targets) // 3)
        return WHOLE_NOTE if are_few else ""
    if note := note_on_signs(targets):
        return note
    sums = targets.double().sum(1)
    are_probabilities = bool((targets >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all())
    return SOFT_NOTE if are_probabilities else ""


def _parse_as(targets: Tensor, kind: str) -> Tensor:
    """Convert raw targets to the form of a named task."""
    shape = list(targets.shape)
    dtype = targets.dtype
    column = targets.ndim == 2 and targets.shape[1] == 1
    if kind == "regression":
        if targets.ndim == 1:
            targets = targets[:, None]
        if targets.is_floating_point():
            return targets
        return targets.to(torch.get_default_dtype())
    if kind == "multi-label":
        if targets.ndim != 2 or not are_zero_or_one(targets):
            raise InvalidInput(
                f"Multi-label targets must be a matrix [n, K] of zeros and ones; got {dtype} of shape {shape}. "
                "Pass one column per label."
            )
        return targets.bool()
    if targets.is_floating_point() and not bool((targets == targets.round()).all()):
        raise InvalidInput(
            f"Class labels must be whole numbers; got {dtype} with fractions. Pass labels 0, 1, 2, ..., or "
            'gs.Samples(x, y, task="regression").'
        )
    if kind == "positions":
        if targets.ndim < 2:
            raise InvalidInput(
                f"Labels of positions must have shape [n, positions]; got {shape}. Pass one label per token or pixel."
            )
        return targets.long()
    if column:
        return targets[:, 0].long()
    if targets.ndim == 2 and is_zero_one(targets) and is_one_hot(targets):
        return targets.long().argmax(1)
    if targets.ndim != 1:
        raise InvalidInput(
            f"Classification needs one class per sample, labels [n] or one-hot [n, C]; got {shape}. "
            'Pass labels [n], or another task (gs.Samples(x, y, task="multi-label")).'
        )
    return targets.long()


def check_targets(targets: Tensor) -> None:
    """Raise InvalidInput unless these are targets in the form of a task (see `gapscope.base.task`)."""
    if targets.is_floating_point():
        if targets.ndim != 2:
            advice = (
                "Use y.flatten(1) and torch.nn.Sequential(network, torch.nn.Flatten()), or whole numbers for one class "
                "per position."
            )
            if targets.ndim == 1:
                advice = "Pass gs.Samples(x, y), which reads them, or y[:, None]."
            raise InvalidInput(
                f"Regression targets must have shape [n, K]; got {list(targets.shape)}. {advice}"
            )
        if not bool(torch.isfinite(targets).all()):
            raise InvalidInput("targets must be finite; got NaN or infinity. Drop those samples.")
        return
    if targets.dtype == torch.bool and targets.ndim == 2:
        return
    if (
        targets.ndim == 0
        or targets.dtype != torch.int64
        or (targets.ndim > 1 and targets[0].numel() < 2)
    ):
        raise _not_labels(targets, "[n]")
    negative = targets < 0
    if targets.ndim > 1:
        wrong = targets[negative & (targets != IGNORED)]
    else:
        wrong = targets[negative]
    if len(wrong) and targets.ndim > 1:
        raise InvalidInput(
            f"Labels of positions must be 0 or larger; got {int(wrong.min())}. {mark_advice(int(wrong.min()))}, number "
            'the classes 0, 1, 2, ..., or pass gs.Samples(x, y, task="regression").'
        )
    if len(wrong) and bool((wrong == IGNORED).all()):
        raise InvalidInput(
            f"Every sample needs a label here; got {len(wrong)} that are {IGNORED}, which marks missing ones. Drop "
            "these samples: x[y >= 0], y[y >= 0]."
        )
    if len(wrong):
        raise InvalidInput(
            f"Class labels must be 0 or larger; got {int(wrong.min())}. Number the classes 0, 1, 2, ..., mark missing "
            f'labels by {IGNORED}, or pass gs.Samples(x, y, task="regression").'
        )


def labelled_rows(labels: Tensor, notes: list[str]) -> Tensor:
    """Return whether each sample has a label, and add a note if some have none.

    Args:
        labels: Labels [n]; -100 is no class.
        notes: List to which the note is appended.

    Raises:
        InvalidInput: No sample has a label.
    """
    is_labelled = labels != IGNORED
    n = len(labels)
    n_labelled = int(is_labelled.sum())
    if n and not n_labelled:
        raise InvalidInput(
            f"Some samples need a label; all {n} are {IGNORED}, which marks missing ones. Pass labels, or inputs alone."
        )
    if n_labelled < n:
        notes.append(f"{n - n_labelled} of {n} samples have the label {IGNORED} and are ignored.")
    return is_labelled


def refuse_names(names: Sequence[str], kind: str | None) -> None:
    """Raise InvalidInput if names of classes are to be read as regression targets.

    Args:
        names: Names of the classes; empty for none.
        kind: Kind of the task; None if it is inferred.

    Raises:
        InvalidInput: They are.
    """
    if kind == "regression" and names:
        raise InvalidInput(
            f"Regression targets must be numbers; got the names {join_names(names)}. Pass numbers, such as "
            'y.astype(float), or task="classification".'
        )


def refuse_missing(is_missing: Tensor) -> None:
    """Raise InvalidInput if some of several labels per sample are missing.

    Args:
        is_missing: Whether each label is missing, [n, K].

    Raises:
        InvalidInput: A label is missing.
    """
    n = int(is_missing.sum())
    if n:
        raise InvalidInput(
            f"Several labels per sample need a value for each; {n} of {is_missing.numel()} are missing (NaN or "
            f"{IGNORED}). Drop these samples, or pass one label at a time, (x, y[:, k]), as integers with {IGNORED} "
            "where it is missing."
        )


def check_none_missing(targets: Tensor) -> None:
    """Raise InvalidInput if a matrix holds several labels per sample, zeros and ones, of which some are missing.

    Args:
        targets: Targets as passed; NaN and -100 are missing labels.
    """
    if targets.ndim != 2 or targets.shape[1] < 2:
        return
    is_missing = (targets == IGNORED) | targets.isnan()
    if bool(is_missing.any()) and is_zero_one(targets[~is_missing]):
        refuse_missing(is_missing)


def mark_advice(label: int, labels: Tensor | None = None) -> str:
    """Return the advice on a label that may mark positions that do not count.

    Args:
        label: The label.
        labels: All labels. If 0 is the only other one, the label is the foreground of a mask, such as 255.
    """
    if labels is not None and label > 1:
        is_other = (labels != label) & (labels != IGNORED)
        if bool((labels[is_other] == 0).all()) and bool(is_other.any()):
            return (
                f"If 0 is the background and {label} the foreground of a mask, pass (y > 0).long()"
            )
    return f"Mark positions that do not count by {IGNORED}: y.long().masked_fill(y == {label}, {IGNORED})"


def check_label_shape(labels: Tensor, shape: Sequence[int]) -> None:
    """Raise InvalidInput unless these are int64 labels of this shape."""
    if labels.dtype != torch.int64 or labels.shape != tuple(shape):
        raise _not_labels(labels, str(list(shape)))


def _not_labels(targets: Tensor, shape: str) -> InvalidInput:
    advice = "Use y.long(), or float targets [n, K] for regression."
    if targets.dtype == torch.int64:
        advice = "Pass one label per sample, or float targets [n, K] for regression."
    return InvalidInput(
        f"Class labels must be an int64 tensor of shape {shape}; got {targets.dtype} of shape {list(targets.shape)}. "
        f"{advice}"
    )


def check_labels(labels: Tensor, n_classes: int) -> None:
    """Raise InvalidInput unless all labels are numbers of classes, or the mark of missing ones."""
    negative = labels[(labels < 0) & (labels != IGNORED)]
    if negative.numel():
        raise InvalidInput(
            f"Class labels must lie in [0, {n_classes - 1}]; got {int(negative.min())}. Number the classes 0, 1, 2, "
            f"..., and mark missing labels by {IGNORED}."
        )
    if not labels.numel() or int(labels.max()) < n_classes:
        return
    if labels.ndim > 1:
        raise InvalidInput(
            f"Labels of positions must be smaller than the number of classes, {n_classes}; got {int(labels.max())}. "
            f"{mark_advice(int(labels.max()), labels)}, give the network one output per class, or number the classes "
            "0, 1, 2, ..."
        )
    from_one = "They count from 1: pass y - 1. " if int(labels.min()) == 1 else ""
    raise InvalidInput(
        f"Class labels must be smaller than the number of classes, {n_classes}; got {int(labels.max())}. {from_one}"
        "Give the network one output per class, number the classes 0, 1, 2, ..., write "
        f"{IGNORED} where a label is missing, or pass y.float() for regression."
    )


def require_targets(data: Samples | Tensor | None, owner: str = "This function") -> Tensor:
    """Return the targets of samples or as they are, or raise InvalidInput if there are none (`owner` needs them)."""
    targets: Any = getattr(data, "targets", data)
    if targets is None:
        names = getattr(getattr(data, "form", None), "names", None)
        raise InvalidInput(no_labels_message(names or (), owner))
    return targets


def require_labels(
    targets: Samples | Tensor | None,
    owner: str = "This function",
    *,
    kinds: Collection[str] = ("classification",),
) -> Tensor:
    """Return class labels [n], or labels of other `kinds` of tasks, or raise InvalidInput."""
    targets = require_targets(targets, owner)
    if targets.is_floating_point():
        kind = "regression"
        advice = "Pass y.long() if these are labels."
    elif targets.dtype == torch.bool:
        kind = "multi-label"
        advice = "Pass one of several labels at a time: (x, y[:, k].long())."
    elif targets.ndim > 1:
        kind = "positions"
        advice = "Pass one label per sample; these are labels of positions."
    else:
        kind = "classification"
        advice = ""
    if kind in kinds:
        return targets
    raise InvalidInput(
        f"{owner} needs class labels, int64 of shape [n]; got {targets.dtype} of shape {list(targets.shape)}. {advice}"
    )


def require_regression_targets(
    targets: Samples | Tensor | None, owner: str = "This function"
) -> Tensor:
    """Return regression targets [n, K], or raise InvalidInput."""
    targets = require_targets(targets, owner)
    if not targets.is_floating_point():
        raise InvalidInput(
            f"{owner} needs regression targets, floating point of shape [n, K]; got {targets.dtype} of shape "
            f"{list(targets.shape)}. Pass y.float() if these are no labels."
        )
    return targets
