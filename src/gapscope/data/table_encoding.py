"""How the columns of a table became numbers, to encode another table in the same way."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.columns import unique_names
from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
from gapscope.data.number_text import TextFormat, find_format, has_text, note_on_errors
from gapscope.data.plain_columns import (
    are_numbers,
    array_values,
    as_days,
    holds_arrays,
    plain_column,
    refuse_unusable,
    with_unique_names,
)
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

KEY = "gapscope_encoding"
"""Name of the encoding among the attributes of an encoded frame."""
UNSEEN = "gapscope_unseen_values"
"""Name of the unseen values among the attributes of an encoded second frame."""
MAX_LISTED = 3
"""Values that a message lists, by judgment."""
TRUTH = {"true": 1.0, "false": 0.0}
"""Booleans as text."""
NOUNS = {
    "number": "numbers",
    "date": "dates",
    "duration": "durations",
    "array": "arrays",
    "category": "single values",
}


@dataclass(frozen=True)
class ColumnEncoding:
    """How one column of the first table was encoded.

    Attributes:
        name: Name of the column, as text.
        kind: "number", "date", "duration", "array" or "category".
        dtype: Type of the column as it was passed, for messages.
        outputs: Names of its columns among the encoded ones; of an array those that were kept.
        levels: Values of a category, one per output; of an array the indices of its numbers that were kept.
        width: Number of numbers of an array.
        single: Fraction of the rows of a category whose value no other row has.
        text: How its text held numbers or dates; None if it was no such text.
    """

    name: str
    kind: str
    dtype: str
    outputs: tuple[Hashable, ...]
    levels: tuple[Any, ...] = ()
    width: int = 1
    single: float = 0.0
    text: TextFormat | None = None

    def read(self, column: pandas.Series) -> tuple[pandas.Series, list[str]]:
        """Return a column of another table with text as numbers or dates, as in the first, and a note on wrong cells.

        Args:
            column: Column of the other table; other columns are only made plain.
        """
        plain = plain_column(column)
        if self.text is not None and str(plain.dtype) == "category":
            plain = plain.astype(object)
        if self.kind not in ("number", "date") or not has_text(plain):
            return plain, []
        text = self.text or find_format(plain) or TextFormat(self.kind)
        # without a unit in the first table numbers with one have another meaning
        if text.kind != self.kind or (self.text is None and any(text.affix)):
            return plain, []
        values = text.values(plain)
        note = note_on_errors(plain, values)
        if note and 2 * values.count() < plain.count():
            return plain, []
        return values, [f"{self.name}: missing in the second table are {note}."] if note else []


@dataclass(frozen=True)
class UnseenValues:
    """Values of a category in the second table that the first lacks.

    Attributes:
        name: Name of the column.
        values: The values, as text, the most frequent first.
        count: Number of rows that have one of them.
        n: Number of rows of the second table.
        single: Fraction of the rows of the first table whose value no other row has: about as many rows of a second
            table like the first have a new value.
    """

    name: str
    values: tuple[str, ...]
    count: int
    n: int
    single: float

    @property
    def fraction(self) -> float:
        """Fraction of the rows that have such a value."""
        return self.count / self.n

    @property
    def listed(self) -> str:
        """The most frequent values, for a message."""
        shown = ", ".join(map(repr, self.values[:MAX_LISTED]))
        more = len(self.values) - MAX_LISTED
        return f"{shown} and {more:,} more" if more > 0 else shown


@dataclass(frozen=True, eq=False)
class TableEncoding:
    """How a table was encoded.

    Attributes:
        columns: The columns that are used.
        outputs: Names of the encoded columns, in their order.
        medians: Median of each encoded column of numbers, by its name.
        words: Whether `columns` are texts, which became frequencies of words.
        texts: Columns of text that are no categories, used or not, by their names.
        dropped: Names of the columns that are not used but tell rows apart, as text: all but numbers and identifiers of
            the rows.
        names: Names of all columns, used or not, as text.
        gaps: Columns of numbers, dates and durations with missing values: whether each row lacks one, by their names.
    """

    columns: tuple[ColumnEncoding, ...]
    outputs: tuple[Hashable, ...]
    medians: dict[Hashable, float]
    words: bool = False
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    dropped: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    gaps: dict[str, list[bool]] = field(default_factory=dict[str, list[bool]])

    def __deepcopy__(self, memo: Any) -> TableEncoding:
        return self  # pandas copies the attributes of a frame in every operation

    def own_columns(self, frame: pandas.DataFrame) -> list[pandas.Series]:
        """Return the columns of another table that belong to those of the first, in their order.

        Args:
            frame: The other table.

        Raises:
            InvalidInput: It lacks some.
        """
        frame = with_unique_names(frame)
        by_name = {str(name): name for name in frame.columns}
        lacking = [column.name for column in self.columns if column.name not in by_name]
        if lacking:
            others = self._others(frame)
            raise InvalidInput(
                f"The second table must have the columns of the first; it lacks {join_names(lacking)}."
                f"{f' It has {join_names(others)}, which the first lacks.' if others else ''} Add or rename them, or "
                "remove them from both."
            )
        return [frame[by_name[column.name]] for column in self.columns]

    def _others(self, frame: pandas.DataFrame) -> list[str]:
        """Return the columns of another table that the first lacks."""
        known = {*self.names, *(column.name for column in self.columns)}
        return [name for name in map(str, with_unique_names(frame)) if name not in known]

    def notes_on_others(self, frame: pandas.DataFrame) -> tuple[str, ...]:
        """Return the note about columns of another table that the first lacks.

        Args:
            frame: The other table.
        """
        others = self._others(frame)
        if not others:
            return ()
        return (f"{join_names(others)}: not used, since the first table has no such column.",)

    def apply(self, frame: pandas.DataFrame) -> tuple[pandas.DataFrame, tuple[str, ...]]:
        """Return another table with the encoded columns of the first, and notes.

        Values of a category that the first table lacks are 0 in all of its columns (`unseen_values` returns them), and
        missing numbers are filled with the medians of the first.

        Args:
            frame: The other table.

        Raises:
            InvalidInput: It lacks a column, or a column cannot be read as in the first.
        """
        import pandas

        blocks: dict[Hashable, numpy.ndarray] = {}
        unseen: list[UnseenValues] = []
        notes: list[str] = []
        for encoding, own in zip(self.columns, self.own_columns(frame), strict=True):
            column, found = encoding.read(own)
            notes += found
            blocks.update(zip(encoding.outputs, _encoded(encoding, column).T, strict=True))
            unseen += _unseen(encoding, column)
        encoded = pandas.DataFrame(blocks, index=frame.index)[list(self.outputs)]
        refuse_unusable(encoded[list(self.medians)])
        missing = int(encoded.isna().sum().sum())
        unknown = [
            encoding.name
            for encoding in self.columns
            if encoding.kind == "category" and not encoded[list(encoding.outputs)].to_numpy().any()
        ]
        if unknown:
            notes.append(
                f"{', '.join(unknown)}: the second table has none of the values that the first has."
            )
        notes += [
            f"{part.name}: {percent(part.fraction, 1)} of the rows of the second table have values that the first "
            f"lacks: {part.listed}."
            for part in unseen
            if part.name not in unknown
        ]
        if missing:
            notes.append(
                f"{pluralize(missing, 'missing number')} of the second table: filled with the medians of the first."
            )
        encoded = encoded.fillna(self.medians)
        encoded.attrs[UNSEEN] = tuple(unseen)
        return encoded, tuple(notes)


def unseen_values(data: Any) -> tuple[UnseenValues, ...]:
    """Return the values of categories of a second table that the first lacks.

    Args:
        data: Pair of an encoded frame and targets; for other data the result is empty.
    """
    return _attribute(data, UNSEEN) or ()


def _attribute(data: Any, name: str) -> Any:
    """Return an attribute of the encoded frame of a pair (None for other data, and without it)."""
    if not is_list_or_tuple(data) or not data:
        return None
    attributes: Any = getattr(data[0], "attrs", {})
    return attributes.get(name) if is_mapping(attributes) else None


def indicators(column: pandas.Series, levels: Sequence[Any]) -> numpy.ndarray:
    """Return a column [n, levels] of zeros and ones per level; levels are matched by value, then by their text.

    Args:
        column: Column of a table.
        levels: Values, one per column of the result.
    """
    numbers_of_rows = level_numbers(column, levels)
    result = numpy.zeros((len(column), len(levels)))
    rows = numpy.flatnonzero(numbers_of_rows >= 0)
    result[rows, numbers_of_rows[rows]] = 1.0
    return result


def level_numbers(column: pandas.Series, levels: Sequence[Any]) -> numpy.ndarray:
    """Return the number [n] of the level of each row, -1 where there is none.

    Args:
        column: Column of a table.
        levels: Values; they are matched by value, then by their text.
    """
    by_text = {level_text(level): k for k, level in reversed(list(enumerate(levels)))}
    by_value = {level: k for k, level in enumerate(levels)}
    codes: dict[Any, int] = {}
    for value in column.dropna().unique():
        codes[value] = by_value.get(value, by_text.get(level_text(value), -1))
    return column.astype(object).map(codes).fillna(-1).to_numpy(dtype=int)


def fraction_of_single(column: pandas.Series) -> float:
    """Return the fraction of the rows whose value no other row has.

    Args:
        column: Column of a table.
    """
    counts = column.value_counts()
    return float((counts == 1).sum()) / max(len(column), 1)


def _unseen(encoding: ColumnEncoding, plain: pandas.Series) -> list[UnseenValues]:
    """Return the values of a category that the first table lacks (none, or one entry)."""
    if encoding.kind != "category" or plain.isna().all() or holds_arrays(plain):
        return []
    is_new = (level_numbers(plain, encoding.levels) < 0) & plain.notna().to_numpy()
    if not is_new.any():
        return []
    values = plain[is_new].map(level_text).value_counts()
    names = tuple(str(value) for value in values.index)
    return [UnseenValues(encoding.name, names, int(is_new.sum()), len(plain), encoding.single)]


def source_gaps(data: Any) -> dict[str, list[bool]]:
    """Return whether each row of a table lacks a value, of the columns of numbers that have gaps, by their names.

    Args:
        data: Pair of an encoded frame and targets; for other data the result is empty.
    """
    encoding = _attribute(data, KEY)
    return encoding.gaps if isinstance(encoding, TableEncoding) else {}


def source_columns(data: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the columns of a table before it was encoded: name, and indices of its encoded columns.

    Numbers of an array are columns of their own, and so are words of a text.

    Args:
        data: Pair of an encoded frame and targets; for other data the result is empty.
    """
    encoding = _attribute(data, KEY)
    if not isinstance(encoding, TableEncoding) or encoding.words:
        return ()
    positions = {name: i for i, name in enumerate(encoding.outputs)}
    columns: list[tuple[str, tuple[int, ...]]] = []
    for column in encoding.columns:
        indices = tuple(positions[name] for name in column.outputs)
        if column.kind == "array":
            columns += [(str(name), (positions[name],)) for name in column.outputs]
        else:
            columns.append((column.name, indices))
    return tuple(columns)


def encoding_of(frame: pandas.DataFrame) -> TableEncoding:
    """Return how an encoded frame was encoded; of a frame of numbers, that it was not changed."""
    known = frame.attrs.get(KEY)
    if isinstance(known, TableEncoding) and list(known.outputs) == list(frame.columns):
        return known
    columns = tuple(
        ColumnEncoding(str(name), "number", str(frame[name].dtype), (name,))
        for name in frame.columns
    )
    medians = {name: float(value) for name, value in frame.median().items()}
    return TableEncoding(columns, tuple(frame.columns), medians)


def category_names(
    categories: Sequence[tuple[Hashable, Sequence[Any]]], taken: Sequence[Hashable]
) -> list[list[Hashable]]:
    """Return the names of the columns of each category, numbered where one exists already.

    Args:
        categories: Name and levels of each category.
        taken: Names of the columns before them.
    """
    wanted = [f"{name}_{level}" for name, levels in categories for level in levels]
    unique = iter(unique_names([*taken, *wanted])[len(taken) :])
    return [[next(unique) for _ in levels] for _, levels in categories]


def level_text(value: Any) -> str:
    """Return a value as text; whole numbers without decimals, so that 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _encoded(encoding: ColumnEncoding, plain: pandas.Series) -> numpy.ndarray:
    """Return a plain column of the second table as numbers [n, outputs]."""
    if plain.isna().all():
        missing = 0.0 if encoding.kind == "category" else numpy.nan
        return numpy.full((len(plain), len(encoding.outputs)), missing)
    if encoding.kind == "category" and not holds_arrays(plain):
        return indicators(plain, encoding.levels)
    if encoding.kind == "array":
        values = array_values(plain)
        if values.shape[1] != encoding.width:
            raise InvalidInput(
                f"Column {encoding.name!r} of the second table must hold arrays of {encoding.width} numbers, as in the "
                f"first; got {values.shape[1]}. Prepare both in the same way."
            )
        return values[:, list(encoding.levels)]
    values = None
    if encoding.kind != "category":
        values = _values(encoding, plain)
    if values is None:
        example = str(plain.dropna().iloc[0])[:60]
        raise InvalidInput(
            f"Column {encoding.name!r} of the second table must hold {NOUNS[encoding.kind]}, as in the first "
            f"({encoding.dtype}); got {plain.dtype}, such as {example!r}. Prepare both in the same way."
        )
    return values[:, None]


def _values(encoding: ColumnEncoding, plain: pandas.Series) -> numpy.ndarray | None:
    """Return the numbers, dates or durations of a plain column, None if it holds something else."""
    import pandas

    is_text = not are_numbers(plain) and as_days(plain)[0] is None
    if is_text and encoding.kind == "date":
        return None
    if encoding.kind == "duration":
        convert = pandas.to_timedelta
    else:
        convert = pandas.to_numeric
    try:
        if is_text and encoding.kind == "number":
            plain = plain.map(
                lambda cell: TRUTH.get(str(cell).strip().lower(), cell), na_action="ignore"
            )
        if is_text:
            plain = convert(plain)
    except (ValueError, TypeError):
        return None
    days, kind = as_days(plain)
    if encoding.kind == "number" and days is None:
        return plain.to_numpy(dtype=float, na_value=numpy.nan)
    if kind == encoding.kind:
        return days
    return None
