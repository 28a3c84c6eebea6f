"""Classes that occur in one group alone: without that group nothing predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
from jaxtyping import Bool, Int
from torch import Tensor

from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput, join_names


def is_in_one_group(labels: Int[Tensor, " n"], groups: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return whether the class of each label occurs in one group alone.

    Args:
        labels: Class labels.
        groups: Group of each sample.

    Raises:
        InvalidInput: That holds for every class.
    """
    classes, codes = numpy.unique(labels.cpu().numpy(), return_inverse=True)
    pairs = numpy.unique(numpy.stack([codes, groups.cpu().numpy()]), axis=1)
    groups_of_class = numpy.bincount(pairs[0], minlength=len(classes))
    is_alone = tensor_of(groups_of_class[codes] < 2).to(labels.device)
    if bool(is_alone.all()):
        raise InvalidInput(
            "Every class occurs in one group alone, so that no prediction without the group knows it. Pass groups that "
            "share classes."
        )
    return is_alone


def describe_lone_classes(
    labels: Int[Tensor, " n"], groups: Int[Tensor, " n"], names: Sequence[Any] = ()
) -> str:
    """Return which classes occur in one group alone, a clause; empty if none does.

    Args:
        labels: Class labels.
        groups: Group of each sample.
        names: Names of the classes, by their number; empty without any.

    Raises:
        InvalidInput: That holds for every class.
    """
    labels = labels.cpu()
    numbers = numpy.unique(labels[is_in_one_group(labels, groups)].numpy()).tolist()
    if not numbers:
        return ""
    noun, verb = ("Class", "occurs") if len(numbers) == 1 else ("Classes", "occur")
    known = join_names(names[number] if len(names) else number for number in numbers)
    return f"{noun} {known} {verb} in one group alone"


def lone_classes_note(
    targets: Tensor, groups: Int[Tensor, " n"], names: Sequence[Any] = ()
) -> tuple[str, ...]:
    """Return the note that predictions of some classes are wrong of necessity; none without such classes.

    Args:
        targets: Class labels [n]; other targets get no note.
        groups: Group of each sample.
        names: Names of the classes, by their number; empty without any.

    Raises:
        InvalidInput: Every class occurs in one group alone.
    """
    if targets.ndim != 1 or targets.is_floating_point():
        return ()
    found = describe_lone_classes(targets, groups, names)
    if not found:
        return ()
    return (f"{found}. Such samples cannot be predicted without it, and count as wrong.",)
