"""Class labels far above the number of classes, and categories without a sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.targets import IGNORED, count_values

MAX_UNUSED_CLASSES = 1000
"""Labels above ten times the classes and so many unused numbers are codes, not classes, by judgment."""


def is_far_above(label: int, n_classes: int) -> bool:
    """Return whether a label is far larger than the number of classes, so that arrays have mostly unused columns.

    Args:
        label: The largest label.
        n_classes: Number of classes that occur.
    """
    return label > MAX_UNUSED_CLASSES + 10 * n_classes


def check_class_numbers(labels: Tensor) -> None:
    """Raise InvalidInput if the largest label is far larger than the number of classes.

    Args:
        labels: Class labels of any shape; -100 is no class.

    Raises:
        InvalidInput: Arrays of scores with a column per number of a class would be mostly unused.
    """
    labels = labels[labels != IGNORED]
    if not labels.numel():
        return
    largest = int(labels.max())
    n_classes = count_values(labels.flatten())
    if is_far_above(largest, n_classes):
        raise InvalidInput(
            f"Got the label {largest} and only {n_classes} classes. Number the classes 0, 1, 2, ..., "
            "or pass floating-point targets if these are amounts."
        )


def unused_category_reason(labels: Tensor, names: Sequence[str], n_outputs: int) -> str:
    """Return why labels do not fit outputs if categories without a sample number the others beyond them (else empty).

    Args:
        labels: Class labels [n].
        names: Names of the classes; empty for none.
        n_outputs: Outputs of the network; one is that of two classes.
    """
    if len(names) <= max(n_outputs, 2):
        return ""
    counts = torch.bincount(labels[labels >= 0], minlength=len(names))
    unused = [repr(name) for code, name in enumerate(names) if not counts[code]]
    if not unused or not bool(counts[max(n_outputs, 2) :].any()):
        return ""
    return (
        f"the network has {n_outputs} outputs, and the labels have {len(names)} categories, of which "
        f"{join_names(unused)} {'has' if len(unused) == 1 else 'have'} no sample; remove them, "
        "y.cat.remove_unused_categories(), or change the last layer"
    )
