"""Columns that are the label in other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

MIN_PER_CLASS = 5
"""Rows of a class that a column must hold to be the label in other words, by judgment: rarer ones agree by chance."""


def are_many(sizes: Iterable[int]) -> bool:
    """Return whether two classes at least have enough rows to tell a copy from chance.

    Args:
        sizes: Number of rows of each class.
    """
    return sum(size >= MIN_PER_CLASS for size in sizes) > 1


def is_copy_of(values: Sequence[Hashable], labels: Sequence[Hashable]) -> bool:
    """Return whether each label has one value, and each value one label, in several rows of two labels at least.

    Args:
        values: Values of a column.
        labels: Labels of the same rows.

    >>> is_copy_of(["cat"] * 6 + ["dog"] * 7, [0] * 6 + [1] * 7)
    True
    """
    pairs = Counter(zip(values, labels, strict=True))
    is_one_to_one = len(pairs) == len(set(values)) == len(set(labels))
    return is_one_to_one and are_many(pairs.values())


def note_on_copies(names: Sequence[str]) -> str:
    """Return the note on inputs that were omitted because they are the label.

    Args:
        names: Names of the inputs.
    """
    verb = "it is a copy" if len(names) == 1 else "they are copies"
    return f"{', '.join(names)}: omitted, since {verb} of the label (one value per class)."
