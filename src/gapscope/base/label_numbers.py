"""Classes that look like none: codes far above their number, marks such as 255, amounts written as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.targets import IGNORED, are_amounts, count_values, mark_advice

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


VOID = 255
"""Label of pixels that do not count, in masks of most data sets."""
MIN_GAP, MIN_GAP_TO_VOID, MAX_MARKS = 20, 10, 2
"""Unused numbers below a mark, below 255, and number of marks: by judgment, few class numbers have such gaps."""


def check_no_mark(labels: Tensor) -> None:
    """Raise InvalidInput if a label of positions looks like a mark of positions that do not count, such as 255.

    It is one of the two largest labels, far above the others, and these are numbered as classes are. Where there is a
    network, its outputs decide instead.

    Args:
        labels: Labels of positions; -100 is no class.

    Raises:
        InvalidInput: There is such a label.
    """
    ordered = labels[labels != IGNORED].flatten().sort().values
    is_new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    is_new[1:] = ordered.diff() != 0
    values = [int(value) for value in ordered[is_new]]
    for n_classes in range(max(len(values) - MAX_MARKS, 1), len(values)):
        classes = values[:n_classes]
        mark = values[n_classes]
        last = classes[-1]
        gap = mark - last
        is_far = gap > max(MIN_GAP, last) or (mark == VOID and gap > MIN_GAP_TO_VOID)
        # every second number of a class is used, or more: else they are token ids or codes
        if is_far and last <= 2 * n_classes + MIN_GAP_TO_VOID:
            raise InvalidInput(
                f"Got the label {mark} at positions whose other labels are up to {last}. {mark_advice(mark, labels)}. "
                "If it is a class, number the classes 0, 1, 2, ..."
            )


MISSING_WORDS = frozenset(
    {"NA", "N/A", "n/a", "na", "NaN", "nan", "null", "NULL", "None", "#N/A", "-", "?"}
)
"""Words for what is missing; as labels they are classes."""


def notes_on_class_names(names: Sequence[str], labels: Tensor) -> list[str]:
    """Return notes about names that may stand for missing labels, or be one class in several spellings.

    Args:
        names: Names of the classes.
        labels: Class labels of any shape, or several labels per sample; -100 is no class.
    """
    counts = torch.bincount(labels[labels >= 0].long().cpu(), minlength=len(names))
    n_samples = {name: int(n) for name, n in zip(names, counts, strict=True) if n}
    spellings: dict[str, list[str]] = {}
    for name in n_samples:
        spellings.setdefault(name.strip().casefold(), []).append(name)
    notes = [
        f"The labels {join_names(map(repr, several))} differ only in spaces or in upper and lower case: they are "
        f"{len(several)} classes. If they are one, write them in one way: y.str.strip().str.lower()."
        for several in spellings.values()
        if len(several) > 1
    ]
    words = [name for name in n_samples if name.strip() in MISSING_WORDS | {""}]
    if words:
        listed = join_names(f"{word!r} ({n_samples[word]:,})" for word in words)
        notes.append(
            f"Labels that may stand for missing ones are read as classes: {listed}. If they are missing, drop these "
            "samples."
        )
    return notes


# A number with at most three signs or letters of a unit on either side, such as "102.00 €", "$1,200" or "103,02".
# Letters just before it are those of a code ("c7").
_AMOUNT = re.compile(r"\W{0,2}([A-Za-z]{1,3}\W{1,2})?[0-9]+([.,' ][0-9]+)*\s*[^\W\d]{0,3}\W?")
# of the names that are amounts, by judgment: others may be words for missing prices
SHARE = 0.9


def note_on_amounts_as_text(names: Sequence[str], labels: Tensor) -> str:
    """Return the note about classes that are amounts written as text, such as prices; empty for other classes.

    Args:
        names: Names of the classes.
        labels: Class labels [n].
    """
    amounts = [name for name in names if _AMOUNT.fullmatch(name.strip())]
    if len(amounts) < SHARE * len(names) or not amounts or not are_amounts(labels):
        return ""
    return (
        f"Labels are text that holds numbers, such as {amounts[0]!r}: they are read as {len(names):,} classes, and "
        "most of these have few samples. If they are amounts, pass numbers: take units away, write decimal points, and "
        "call astype(float)."
    )
