"""The first table as numbers: which columns are used, and how each is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.base.file_paths import are_codes, are_file_paths, refuse_file_paths
from gapscope.base.foreign_data import (
    HASHED,
    TEXT_COLUMNS,
    TEXT_KEYS,
    TextKeys,
    as_frame,
    hashed_words,
)
from gapscope.base.label_copies import is_copy_of, note_on_copies
from gapscope.base.row_numbers import MIN_ROWS, is_identifier
from gapscope.data.number_text import (
    MAX_CATEGORIES,
    TextFormat,
    amounts_format,
    find_format,
    has_numbers_in_text,
    has_text,
    note_on_errors,
    note_on_unreadable,
    without_declaration,
)
from gapscope.data.plain_columns import (
    are_numbers,
    arrays_as_columns,
    as_days,
    holds_arrays,
    plain_column,
    refuse_unusable,
    with_column,
    with_plain_columns,
    with_unique_names,
)
from gapscope.data.table_encoding import (
    KEY,
    ColumnEncoding,
    TableEncoding,
    category_names,
    fraction_of_single,
    indicators,
    level_text,
)
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

# names of the columns of hashed words
WORDS = [f"words {number}" for number in range(1, TEXT_COLUMNS + 1)]


@dataclass
class _Reading:
    """How the columns of a table were read, by their names."""

    dtypes: dict[str, str]
    """Types as they were passed."""

    arrays: dict[Any, tuple[Any, ...]]
    """Columns of arrays, with the names of the columns of their numbers."""

    formats: dict[Any, TextFormat]
    """Columns of text that held numbers or dates."""

    times: dict[Any, str]
    """Columns of dates and durations, with which of both."""


def encode_first(
    frame: pandas.DataFrame, labels: Any = ()
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return the first part of the data as numbers, with its encoding as an attribute, and notes.

    Args:
        frame: Columns of numbers and text.
        labels: Labels of the rows: beside texts alone, categories that are copies of them are omitted.

    Raises:
        InvalidInput: No column remains, or a number is infinite.
    """
    notes: list[str] = []
    passed = frame
    frame = with_unique_names(frame)
    dtypes = {str(name): str(frame[name].dtype) for name in frame.columns}
    frame, arrays = arrays_as_columns(with_plain_columns(frame))
    if arrays:
        notes.append(f"{_listed(arrays)}: one column per number of its arrays.")
    texts = texts_of(frame)
    plain = frame
    named = list(frame.columns)
    frame, formats, text_notes = _read_text(frame)
    unread = [name for name in named if name not in frame]
    frame, times = _times_as_days(frame)
    empty = [name for name in frame if frame[name].isna().all()]
    frame = frame.drop(columns=empty)
    if empty:
        notes.append(f"{_listed(empty)}: omitted, since it is empty.")
    categories = [name for name in frame if not are_numbers(frame[name])]
    refuse_unusable(frame.drop(columns=categories))
    unique, numbering = _columns_of_unique_values(frame, categories)
    frame = frame.drop(columns=numbering)
    notes += [note for name, note in text_notes.items() if name not in numbering]
    if numbering:
        listed = ", ".join(str(name) or "a column without a name" for name in numbering)
        notes.append(
            f"{listed}: omitted, since it numbers or identifies the rows, which can give the label away."
        )
    notes += _notes_on_times({name: kind for name, kind in times.items() if name in frame})
    copies: list[Any] = []
    if unique and set(frame.columns) <= {*unique, *categories}:
        copies = _copies_of(labels, frame)
    if copies and {*unique, *copies} == set(frame.columns):
        notes.append(note_on_copies([str(name) for name in copies]))
        frame = frame.drop(columns=copies)
    if unique and set(unique) == set(frame.columns):
        words, word_notes = encode_words([frame[name] for name in frame])
        columns = [ColumnEncoding(str(name), "text", dtypes[str(name)], ()) for name in frame]
        words.attrs[KEY] = TableEncoding(
            tuple(columns), tuple(WORDS), {}, words=True, texts=texts, names=tuple(dtypes)
        )
        return words, (*notes, *word_notes)
    notes += filter(None, [note_on_unreadable(without_declaration(frame[name])) for name in unique])
    frame = frame.drop(columns=unique)
    if unique:
        notes.append(
            f"{_listed(unique)}: dropped, since nearly every row has a different value. If these are texts, "
            "pass them alone, or a column of their embeddings (gapscope.embed)."
        )
    categories = [name for name in categories if name in frame]
    if categories:
        notes.append(f"{_listed(categories)}: one column per value.")
    is_missing = frame.drop(columns=categories).isna()
    missing = int(is_missing.sum().sum())
    gaps = {str(name): is_missing[name].tolist() for name in is_missing if is_missing[name].any()}
    if missing:
        notes.append(
            f"{pluralize(missing, 'missing number')}: filled with the median of the column."
        )
    if frame.columns.empty:
        raise InvalidInput(
            "Got empty columns alone; numbers, categories or texts are needed. Pass other columns."
        )
    reading = _Reading(dtypes, arrays, formats, times)
    encoded, columns, medians = _encode_columns(frame, categories, reading)
    # dates of which day and month cannot be told apart are no codes
    paths = [name for name in unread if are_file_paths(plain[name])]
    codes = [name for name in (*paths, *unique) if are_codes(plain[name])]
    if codes:
        notes.append(
            f"{_listed(codes)}: omitted when copies are looked for, since every row has its own value."
        )
    dropped = tuple(str(name) for name in (*unread, *unique) if name not in codes)
    encoded.attrs[KEY] = TableEncoding(
        columns,
        tuple(encoded.columns),
        medians,
        texts=texts,
        dropped=dropped,
        names=tuple(dtypes),
        gaps=gaps,
    )
    keep_identity(encoded, passed, dropped)
    return encoded, tuple(notes)


def _copies_of(labels: Any, frame: pandas.DataFrame) -> list[Any]:
    """Return the columns that are copies of the labels; none of labels that are not one per row."""
    values = _values_of(labels)
    if len(values) != len(frame):
        return []
    return [name for name in frame if is_copy_of(list(frame[name].astype(str)), values)]


def _values_of(labels: Any) -> list[Any]:
    """Return one label per row, none for labels of another form."""
    labels = as_frame(labels)
    if getattr(labels, "ndim", 1) != 1:
        return []
    return labels.tolist() if hasattr(labels, "tolist") else list(labels or ())


def texts_of(frame: pandas.DataFrame) -> dict[str, list[str]]:
    """Return the columns of text that are neither categories nor numbers, dates or paths of files."""
    texts: dict[str, list[str]] = {}
    for name in frame.columns:
        column = frame[name]
        is_text = has_text(column) and not has_numbers_in_text(column) and _is_varied(column)
        if is_text and find_format(column) is None and not are_file_paths(column):
            texts[str(name)] = column.astype(object).fillna("").tolist()
    return texts


def _read_text(
    frame: pandas.DataFrame,
) -> tuple[pandas.DataFrame, dict[Any, TextFormat], dict[Any, str]]:
    """Replace text that holds numbers or dates by these, and drop ambiguous dates and paths of files.

    Returns:
        The frame, the formats of the text that was read, and a note for each column.

    Raises:
        InvalidInput: No column is left.
    """
    formats: dict[Any, TextFormat] = {}
    notes: dict[Any, str] = {}
    for name in list(frame.columns):
        column = without_declaration(frame[name])
        text = find_format(column) or amounts_format(column)
        if text is not None and text.kind != "ambiguous":
            formats[name] = text
            values = text.values(column)
            wrong = note_on_errors(column, values, f"{text.kind}s")
            notes[name] = text.describe(column) + (f" Missing are {wrong}." if wrong else "")
            frame = with_column(frame, name, values)
        elif text is not None:
            frame = frame.drop(columns=[name])
            notes[name] = (
                f"{name}: dropped, since day and month cannot be told apart in dates such as "
                f"{column.dropna().iloc[0]!r}. Pass pandas.to_datetime(column, dayfirst=...)."
            )
        elif _is_varied(column) and are_file_paths(column):
            if all(_numbers_rows(frame[other]) for other in frame if other != name):
                refuse_file_paths(column, f"Column {str(name)!r}")
            frame = frame.drop(columns=[name])
            notes[name] = f"{name}: dropped, since it holds paths of files."
        elif has_numbers_in_text(column):  # 1 and "1" are one category
            frame = with_column(frame, name, column.map(level_text, na_action="ignore"))
    if frame.columns.empty:
        needed = "Got no column of numbers, categories or texts; one is needed. Pass other columns."
        raise InvalidInput(" ".join([needed, *notes.values()]))
    return frame, formats, notes


def _times_as_days(frame: pandas.DataFrame) -> tuple[pandas.DataFrame, dict[Any, str]]:
    """Replace dates and durations by days, and return the kinds of these columns by their names."""
    times: dict[Any, str] = {}
    for name in frame.columns:
        days, kind = as_days(frame[name])
        if days is not None:
            frame = with_column(frame, name, days)
            times[name] = kind
    return frame, times


def _notes_on_times(times: dict[Any, str]) -> list[str]:
    """Return the notes about dates and durations that became days."""
    notes: list[str] = []
    for kind, unit in (("date", "days since 1970"), ("duration", "durations, in days")):
        named = [str(name) for name, found in times.items() if found == kind]
        if named:
            notes.append(f"{', '.join(named)}: {unit}.")
    return notes


def _columns_of_unique_values(
    frame: pandas.DataFrame, text: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Return the columns of text with nearly as many values as rows, and the columns that number or identify the rows.

    Args:
        frame: Columns of numbers and text.
        text: Names of those of text.
    """
    many = max(MAX_CATEGORIES, len(frame) // 2)
    unique = [name for name in text if frame[name].nunique() > many]
    numbering = [name for name in frame if _numbers_rows(frame[name])]
    if set(frame.columns) == set(numbering) - set(unique):  # at least one column must remain
        return [], []
    return [name for name in unique if name not in numbering], numbering


def _numbers_rows(column: pandas.Series) -> bool:
    """Return whether a column numbers or identifies the rows."""
    return _is_row_number(column) or is_identifier(str(column.name), column)


def _is_row_number(column: pandas.Series) -> bool:
    """Return whether a column counts the rows: integers, each one more than the one before."""
    import pandas

    if (
        not pandas.api.types.is_numeric_dtype(column)
        or len(column) < MIN_ROWS
        or column.isna().any()
    ):
        return False
    return bool((numpy.diff(column.to_numpy(dtype=float)) == 1).all())


def _is_varied(column: pandas.Series) -> bool:
    """Return whether a column has more different values than one of categories."""
    if are_numbers(column) or holds_arrays(column):
        return False
    return column.nunique() > min(MAX_CATEGORIES, len(column) // 2)


def _listed(names: Iterable[Any]) -> str:
    """Return names with commas between."""
    return ", ".join(map(str, names))


def encode_words(columns: Sequence[pandas.Series]) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return the words of all columns as columns of frequencies, and a note."""
    import pandas

    frame = pandas.concat([plain_column(column) for column in columns], axis=1)
    texts = frame.astype(object).fillna("").astype(str).agg(" ".join, axis=1)
    listed = ", ".join(str(column.name) for column in columns)
    values = hashed_words(texts.tolist())
    note = f"{listed}: read as {HASHED}"
    words = pandas.DataFrame(values, columns=WORDS, index=frame.index)
    words.attrs[TEXT_KEYS] = TextKeys.of(frame.index, texts)
    return words, (note,)


def _encode_columns(
    frame: pandas.DataFrame, categories: Sequence[Any], reading: _Reading
) -> tuple[pandas.DataFrame, tuple[ColumnEncoding, ...], dict[Any, float]]:
    """Return categories as one column per value and numbers without gaps, how each was encoded, and the medians.

    Args:
        frame: Columns of numbers and categories.
        categories: Names of the latter.
        reading: How they were read.
    """
    import pandas

    numbers = [name for name in frame if name not in categories]
    levels = [(name, tuple(pandas.Categorical(frame[name]).categories)) for name in categories]
    level_names = category_names(levels, numbers)
    values = {name: frame[name].to_numpy(dtype=float, na_value=numpy.nan) for name in numbers}
    for (name, known), outputs in zip(levels, level_names, strict=True):
        values.update(zip(outputs, indicators(frame[name], known).T, strict=True))
    encoded = pandas.DataFrame(values, index=frame.index)
    medians = {name: float(value) for name, value in encoded[numbers].median().items()}
    columns = _encodings_of_arrays(reading.arrays, numbers, reading.dtypes)
    of_arrays = {output for column in columns for output in column.outputs}
    for name in numbers:
        if name not in of_arrays:
            kind = reading.times.get(name, "number")
            dtype = reading.dtypes[str(name)]
            text = reading.formats.get(name)
            columns.append(ColumnEncoding(str(name), kind, dtype, (name,), text=text))
    for (name, known), outputs in zip(levels, level_names, strict=True):
        dtype = reading.dtypes[str(name)]
        single = fraction_of_single(frame[name])
        columns.append(
            ColumnEncoding(str(name), "category", dtype, tuple(outputs), known, single=single)
        )
    return encoded.fillna(medians), tuple(columns), medians


def _encodings_of_arrays(
    arrays: dict[Any, tuple[Any, ...]], kept: Sequence[Any], dtypes: dict[str, str]
) -> list[ColumnEncoding]:
    """Return the encodings of columns of arrays, of which some numbers may have been omitted."""
    encodings: list[ColumnEncoding] = []
    for name, numbered in arrays.items():
        levels = tuple(k for k, output in enumerate(numbered) if output in kept)
        outputs = tuple(numbered[k] for k in levels)
        if levels:
            encodings.append(
                ColumnEncoding(
                    str(name), "array", dtypes[str(name)], outputs, levels, len(numbered)
                )
            )
    return encodings


def keep_identity(
    encoded: pandas.DataFrame, frame: pandas.DataFrame, dropped: Sequence[str]
) -> None:
    """Store a hash per row of the dropped columns: rows that are different there are no copies.

    Args:
        encoded: The frame of numbers.
        frame: The frame as it was passed; a column that it lacks counts as empty.
        dropped: Names of columns, as text.
    """
    if not dropped:  # the frame may be an encoded one
        if TEXT_KEYS in frame.attrs:
            encoded.attrs[TEXT_KEYS] = frame.attrs[TEXT_KEYS]
        return
    frame = with_unique_names(frame)
    columns: list[list[str]] = []
    for name in frame.columns:
        if str(name) in dropped:
            column = plain_column(frame[name]).astype(object)
            columns.append([level_text(cell) for cell in column.where(column.notna(), "")])
    texts = map("\0".join, zip(*columns, strict=True)) if columns else [""] * len(frame)
    encoded.attrs[TEXT_KEYS] = TextKeys.of(frame.index, texts)
