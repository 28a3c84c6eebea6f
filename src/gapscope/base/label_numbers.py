"""Classes that look like none: codes far above their number, marks such as 255, amounts written as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.targets import AMOUNTS_NOTE, IGNORED, are_amounts, count_values, mark_advice

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


def _different_values(labels: Tensor) -> Tensor:
    """Return the different values of labels but -100, in ascending order."""
    ordered = labels[labels != IGNORED].flatten().sort().values
    is_new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    is_new[1:] = ordered.diff() != 0
    return ordered[is_new]


def check_no_mark(labels: Tensor) -> None:
    """Raise InvalidInput if a label of positions looks like a mark of positions that do not count, such as 255.

    It is one of the two largest labels, far above the others, and these are numbered as classes are. Where there is a
    network, its outputs decide instead.

    Args:
        labels: Labels of positions; -100 is no class.

    Raises:
        InvalidInput: There is such a label.
    """
    values = [int(value) for value in _different_values(labels)]
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


MARKS = frozenset({-1, -9}) | {
    sign * number
    for sign in (-1, 1)
    for number in (99, 255, 999, 9999, 99999, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**32 - 1)
}
LOWEST = frozenset({-(2**15), -(2**31), -(2**63)})
"""Numbers that stand for a missing label in many data sets; the lowest of integer types are NaN that was converted."""


class MarkNote(str):
    """Note about labels that may mark missing ones, unless something says that they are classes.

    Attributes:
        largest: The largest of these labels.
    """

    largest = 0


def find_marks(labels: Tensor) -> list[int]:
    """Return one or two numbers beyond those of the classes that may mark samples without a label, such as 255.

    The others are numbered 0, 1, 2, ... or 1, 2, ... without a gap. A positive mark is far above them; -1 just below 0
    is one only if there are three classes or more, since -1, 0 and 1 are codes such as less, as much, more. Labels that
    are no integers, or have positions, have none.

    Args:
        labels: Labels as passed, of any type.
    """
    is_integer = not (labels.is_floating_point() or labels.is_complex())
    if not is_integer or labels.dtype == torch.bool or labels[:1].numel() != 1:
        return []
    values = _different_values(labels.long())
    counted = values[values >= 0]
    n_classes = int((counted.diff() == 1).long().cumprod(0).sum()) + 1
    others = [int(value) for value in (*values[values < 0], *counted[n_classes:])]
    if len(counted) < 2 or n_classes < 2 or int(counted[0]) > 1:
        return []
    last = int(counted[n_classes - 1])
    is_code = others == [-1] and int(counted[0]) == 0 and last == 1
    are_far = all(mark < 0 or mark - last > MIN_GAP_TO_VOID for mark in others)
    if len(others) > MAX_MARKS or is_code or not are_far or not set(others) <= MARKS | LOWEST:
        return []
    return others


# a whole number of up to 18 digits, which fit the largest integer type, also in the form of a float
_WHOLE = re.compile(r"\s*([+-]?[0-9]{1,18})(\.0*)?\s*")


def notes_on_marks(labels: Tensor, names: Sequence[str] = ()) -> list[str]:
    """Return a note if labels may mark missing ones (`find_marks`).

    Args:
        labels: Labels as passed, of any type; where classes have names, their numbers [n].
        names: Names of the classes, which may be numbers written as text or categories; empty for none.

    Raises:
        InvalidInput: Such a mark is negative.
    """
    if names:
        numbers = [match for name in names if (match := _WHOLE.fullmatch(name))]
        if len(numbers) < len(names) or labels.ndim != 1 or bool((labels < 0).any()):
            return []
        labels = torch.tensor([int(number[1]) for number in numbers])[labels.cpu()]
    marks = find_marks(labels)
    if not marks:
        return []
    labels = labels.long()
    is_mark = torch.isin(labels, torch.tensor(marks, device=labels.device))
    others = labels[~is_mark & (labels != IGNORED)]
    found = (
        f"{join_names(marks)} in {int(is_mark.sum()):,} of {len(labels):,} rows, the others are "
    )
    found += f"{int(others.min())} to {int(others.max())}"
    way_out = (
        'pass gs.Samples(x, y, task="classification"); pass amounts as floating-point numbers.'
    )
    if marks[0] < 0:
        # negative numbers are classes only as text
        raise InvalidInput(
            f"Class labels must be numbered without gaps; got {found}. Drop rows without a label, or write {IGNORED} "
            f"there. If it is a class, number it as the others are, or {way_out.replace('y,', 'y.astype(str),')}"
        )
    note = MarkNote(
        f"Labels far beyond the others are read as classes: {found}. If they mark missing labels, drop these rows, or "
        f"write {IGNORED} there; if not, {way_out}"
    )
    note.largest = marks[-1]
    return [note]


def notes_beside(notes: Sequence[str], output_shape: Sequence[int]) -> tuple[str, ...]:
    """Return notes without doubts whether labels are classes, if there are outputs [n, K] for all classes.

    Args:
        notes: Notes on how data were read.
        output_shape: Shape of the outputs of a network, or of predicted probabilities.
    """
    if len(output_shape) != 2 or output_shape[1] < 2:
        return tuple(notes)
    return tuple(
        note
        for note in notes
        if note != AMOUNTS_NOTE
        and not (isinstance(note, MarkNote) and note.largest < output_shape[1])
    )


MISSING_WORDS = frozenset(
    {"NA", "N/A", "n/a", "na", "NaN", "nan", "null", "NULL", "None", "#N/A", "-", "?"}
)
"""Words for what is missing, in cells of a table; as labels they are classes."""
NO_LABEL = {word.casefold() for word in MISSING_WORDS} | {
    "", "--", "?", "??", "missing", "n.a.", "no label", "not labeled", "not labelled", "tbd", "todo", "undefined",
    "unknown", "unlabeled", "unlabelled", "unspecified",
}  # fmt: skip
"""Words for a missing label, in lower case, with spaces for the signs _ and -."""


def _is_no_label(name: str) -> bool:
    """Return whether the name of a class is a word for a missing label."""
    word = name.strip().strip("<>[]()").casefold()
    return word in NO_LABEL or re.sub("[_-]", " ", word).strip() in NO_LABEL


def notes_on_class_names(
    names: Sequence[str], labels: Tensor, *, are_numbers: bool = False
) -> list[str]:
    """Return notes about names that stand for missing labels, are one class in several spellings, or are amounts.

    Args:
        names: Names of the classes.
        labels: Class labels of any shape, or several labels per sample; -100 is no class.
        are_numbers: Whether the labels were passed as numbers, which their data set names.
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
        if len(several) > 1 and not are_numbers
    ]
    words = [name for name in n_samples if _is_no_label(name)]
    if words:
        listed = join_names(f"{word!r} ({n_samples[word]:,})" for word in words)
        values = [names.index(word) for word in words] if are_numbers else words
        notes.append(
            f"Labels that may stand for missing ones are read as classes: {listed}. If they are missing, drop these "
            f"samples: keep = ~numpy.isin(y, {values}), x[keep], y[keep]."
        )
    if labels.ndim == 1:
        notes += _note_on_amounts_as_text(names, labels)
    return notes


# A number with at most three signs or letters of a unit on either side, such as "102.00 €", "$1,200" or "103,02".
# Letters just before it are those of a code ("c7").
_AMOUNT = re.compile(r"\W{0,2}([A-Za-z]{1,3}\W{1,2})?[0-9]+([.,' ][0-9]+)*\s*[^\W\d]{0,3}\W?")
# of the names that are amounts, by judgment: others may be words for missing prices
SHARE = 0.9


def _note_on_amounts_as_text(names: Sequence[str], labels: Tensor) -> list[str]:
    """Return the note about classes [n] that are amounts written as text, such as prices; empty for other classes."""
    amounts = [name for name in names if _AMOUNT.fullmatch(name.strip())]
    if len(amounts) < SHARE * len(names) or not amounts or not are_amounts(labels):
        return []
    return [
        f"Labels are text that holds numbers, such as {amounts[0]!r}: they are read as {len(names):,} classes, and "
        "most of these have few samples. If they are amounts, pass numbers: take units away, write decimal points, and "
        "call astype(float)."
    ]
