"""Columns of text files as numbers: decimal commas, words for missing numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gapscope.base.class_names import MISSING_WORDS
from gapscope.base.errors import join_names
from gapscope.data.plain_columns import are_dates_as_text, are_numbers
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

DECIMAL_COMMA = r"[-+]?\d+(,\d+)?([eE][-+]?\d+)?"
# 3,645 may be a number with a comma between thousands
PROVEN_COMMA = r"[-+]?(0,\d+|\d+,(\d{1,2}|\d{4,}))([eE][-+]?\d+)?"
THOUSANDS = r"[-+]?[1-9]\d{0,2}\.\d{3}"


def _note_on_words(cells: pandas.Series) -> str:
    """Return the note about words that stand for missing values."""
    words = ", ".join(repr(word) for word in sorted(cells.unique()))
    return f"{words} read as missing ({pluralize(len(cells), 'cell')})"


def _clean_text(column: pandas.Series, may_have_commas: bool) -> tuple[pandas.Series, str]:
    """Return a column of text without surrounding spaces, or as numbers if its words are missing numbers."""
    import pandas

    if all(isinstance(cell, bool) for cell in column.dropna()):
        return column.astype(float), ""
    cells = column.str.strip()
    note = ""
    if not cells.equals(column):
        note = "spaces around text are removed"
    is_word = cells.isin(MISSING_WORDS)
    rest = cells[~is_word].dropna()
    if is_word.any() and are_dates_as_text(rest):
        return cells.where(~is_word), _note_on_words(cells[is_word])
    if rest.str.fullmatch(r"0\d+").any():  # codes
        return cells, note
    if may_have_commas and len(rest) and rest.str.fullmatch(DECIMAL_COMMA).all():
        rest, note = rest.str.replace(",", "."), "decimal commas"
    try:
        numbers = pandas.to_numeric(rest)
    except (ValueError, TypeError):
        return cells, note
    if not len(rest):
        return cells, note
    if is_word.any():
        note = _note_on_words(cells[is_word])
    return numbers.astype(float).reindex(column.index) if len(numbers) < len(
        column
    ) else numbers, note


def _may_have_thousands(cells: pandas.Series) -> bool:
    """Return whether each point in the cells of a column of numbers may be one between thousands."""
    cells = cells.str.strip()
    pointed = cells[cells.str.contains(".", regex=False, na=False)]
    return len(pointed) > 0 and bool(pointed.str.fullmatch(THOUSANDS).all())


def clean_columns(
    frame: pandas.DataFrame,
    as_text: Collection[str],
    separator: str,
    cells: pandas.DataFrame | None,
) -> tuple[pandas.DataFrame, list[str]]:
    """Return a table with columns of numbers where text holds numbers, and a note about each that was guessed.

    Args:
        frame: The table as pandas reads it.
        as_text: Columns that stay text.
        separator: What separates the fields of the file.
        cells: The same table with cells as they are in the file; None if none may have a point between thousands.
    """
    notes: dict[str, str] = {}
    has_decimal_commas = False
    for name in frame.columns:
        column = frame[name]
        if name in as_text:
            frame = frame.assign(**{name: column.str.strip()})
        elif not are_numbers(column) and not column.isna().all():
            cleaned, notes[name] = _clean_text(column.astype(object), separator != ",")
            is_proof = column.dropna().astype(str).str.strip().str.fullmatch(PROVEN_COMMA)
            has_decimal_commas |= are_numbers(cleaned) and bool(is_proof.mean() > 0.5)
            frame = frame.assign(**{name: cleaned})
    found = [f"{name}: {note}." for name, note in notes.items() if note]
    if cells is not None and has_decimal_commas:
        names = [name for name in frame if are_numbers(frame[name])]
        if names := [name for name in names if _may_have_thousands(cells[name])]:
            found.append(
                f"{join_names(names)}: points are read as decimal points; "
                "if they are between thousands, omit them."
            )
    return frame, found
