"""Numbers among class labels that mark positions or samples without a label, such as 255 and -1."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.targets import AMOUNTS_NOTE, IGNORED, mark_advice

VOID = 255
"""Label of pixels that do not count, in masks of most data sets."""
MIN_GAP, MIN_GAP_TO_VOID, MAX_MARKS = 20, 10, 2
"""Unused numbers below a mark, below 255, and number of marks: by judgment, few class numbers have such gaps."""
MAX_WITH_GAPS = 20
"""Different numbers, marks included, that may have gaps: as many as a column of integers may have classes."""


def _different_values(labels: Tensor) -> Tensor:
    """Return the different values of labels but -100, in ascending order."""
    ordered = labels[labels != IGNORED].flatten().sort().values
    is_new = torch.ones(len(ordered), dtype=torch.bool, device=ordered.device)
    is_new[1:] = ordered.diff() != 0
    return ordered[is_new]


def _are_numbered(classes: Sequence[int]) -> bool:
    """Return whether every second number of a class is used, or more: others are token ids or codes."""
    return classes[-1] <= 2 * len(classes) + MIN_GAP_TO_VOID


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
        if is_far and _are_numbered(classes):
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

    The others are numbered 0, 1, 2, ... or 1, 2, ...; beside positive marks alone, up to 20 numbers may have gaps. A
    positive mark is far above them; -1 just below 0 is one only if there are three classes or more, since -1, 0 and 1
    are codes such as less, as much, more. Labels that are no integers, or have positions, have none.

    Args:
        labels: Labels as passed, of any type.
    """
    is_integer = not (labels.is_floating_point() or labels.is_complex())
    if not is_integer or labels.dtype == torch.bool or labels[:1].numel() != 1:
        return []
    values = [int(value) for value in _different_values(labels.long())]
    others = [value for value in values if value < 0]
    classes = values[len(others) :]
    while len(classes) > 1 and classes[-1] in MARKS and classes[-1] - classes[-2] > MIN_GAP_TO_VOID:
        others.append(classes.pop())
    if len(classes) < 2 or classes[0] > 1 or not 0 < len(others) <= MAX_MARKS:
        return []
    has_gaps = classes[-1] - classes[0] >= len(classes)
    is_code = others == [-1] and classes == [0, 1]
    # negative numbers beside others with gaps are amounts; so are many positive ones
    is_many = len(values) > MAX_WITH_GAPS
    are_amounts = has_gaps and (others[0] < 0 or is_many or not _are_numbered(classes))
    if is_code or are_amounts or not set(others) <= MARKS | LOWEST:
        return []
    return sorted(others)


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
