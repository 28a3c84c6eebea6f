"""Names of classes that are words for missing labels, several spellings of one name, or amounts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.base.errors import join_names
from gapscope.base.targets import are_amounts

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
