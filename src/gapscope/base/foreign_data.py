"""Data of other libraries: sparse matrices, polars and Arrow tables, lists of texts, as arrays or frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, cast

import numpy

from gapscope.base.arrow_types import without_arrow_types
from gapscope.base.budget import MAX_BYTES
from gapscope.base.bunches import as_pair, as_table, is_bunch
from gapscope.base.columns import library_of
from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.file_paths import refuse_file_paths
from gapscope.base.type_guards import is_list_or_tuple, is_mapping

TEXT_COLUMNS = 4096
"""Columns of hashed words: with 10,000 different words and pairs of words in use, few columns are shared by many."""

LABEL_NAMES = ("labels", "label", "targets", "target", "y")
"""Names of the column of the labels in a mapping, the first that it has."""

HASHED = (
    f"frequencies of words and pairs of words, hashed to {TEXT_COLUMNS:,} columns. Embeddings of a language model are "
    "better features: gapscope.embed."
)
TEXTS_READ = f"Texts were read as {HASHED}"
TOKENIZE = "Tokenize them first, as in training: pass (tokenizer(texts, return_tensors='pt', padding=True), y)."
"""Advice about texts for a network."""


def no_labels_message(names: Sequence[str], owner: str = "This function") -> str:
    """Return the message about data without labels, which `owner` needs.

    Args:
        names: Names of the columns of the data; empty without.
        owner: What needs labels.
    """
    if not names:
        return (
            f"{owner} needs targets; got inputs alone. Pass data as (x, y), or a table with target='label' to a "
            "function that takes it. In a mapping name the labels 'label' (or labels, target, targets, y)."
        )
    return (
        f"{owner} needs targets; got the columns {join_names(names)}, none is named {', '.join(LABEL_NAMES[:-1])} or "
        f"{LABEL_NAMES[-1]}. Rename that of the labels, or pass target={names[-1]!r} to a function that takes it."
    )


def _dense(value: Any, *, are_labels: bool) -> Any:
    """Return a sparse matrix of SciPy as an array; inputs in floating point, labels in their own type."""
    size = value.shape[0] * value.shape[1]
    if 4 * size > MAX_BYTES:
        raise InvalidInput(
            f"A sparse matrix is read as a dense one; {list(value.shape)} would take {4 * size / 2**30:.0f} GiB. "
            "Reduce its columns first: sklearn.decomposition.TruncatedSVD(256).fit_transform(x)."
        )
    if are_labels or value.dtype == "float32":
        return value.toarray()
    # digits that float32 lacks, where there is room
    return value.astype("float64" if 8 * size <= MAX_BYTES else "float32").toarray()


def dense_labels(value: Any) -> Any:
    """Return labels in a sparse matrix of SciPy as an array, [n] for one column; other labels as they are.

    Args:
        value: Labels in any form.
    """
    if library_of(value) != "scipy" or not hasattr(value, "toarray"):
        return value
    labels = _dense(value, are_labels=True)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def as_texts(value: Any) -> list[str] | None:
    """Return one string per sample, from a list, an array or a column, which as inputs are texts; else None."""
    is_column = getattr(value, "ndim", None) == 1 and hasattr(value, "tolist")
    if is_column and getattr(value.dtype, "kind", "") in ("O", "U", "T"):
        value = value.tolist()
    if not is_list_or_tuple(value) or not any(isinstance(text, str) for text in value):
        return None
    texts = [isinstance(text, str) for text in value]
    n_texts = sum(texts)
    others = [text for text, is_text in zip(value, texts, strict=True) if not is_text]
    missing = sum(_is_missing(text) for text in others)
    if missing and n_texts + missing == len(value):
        raise InvalidInput(
            f"Every sample needs its text; {missing} of {len(value)} are missing. Drop these samples, or pass '' for "
            "these texts."
        )
    if n_texts == len(value):
        return list(value)
    if n_texts > len(value) / 2 and all(isinstance(text, int | float | bytes) for text in others):
        row = texts.index(False)
        raise InvalidInput(
            f"Every sample needs its text, a str; {len(others)} of {len(value)} are not, such as that of row {row}, "
            f"{type(value[row]).__name__} {value[row]!r}. Pass str(value), or value.decode() of bytes."
        )
    return None


def _is_missing(text: Any) -> bool:
    """Return whether an entry of a column stands for none: None, NaN or pandas.NA, whose comparison has no truth."""
    return text is None or type(text).__name__ == "NAType" or text != text


def _collected(value: Any) -> Any:
    """Return the table that a lazy frame of polars describes, any other value as it is."""
    if library_of(value) == "polars" and hasattr(value, "collect"):
        return value.collect()
    return value


def as_frame(value: Any) -> Any:
    """Return a table or column of polars or Arrow as a pandas object in plain types, any other value as it is.

    Names of columns and the order of declared categories stay. A data set of scikit-learn is a table too.
    """
    return without_arrow_types(as_passed_frame(value))


def as_passed_frame(value: Any) -> Any:
    """Return a table or column of another library as a pandas object, as `as_frame`, but those of pandas as they are.

    Args:
        value: Data in any form.
    """
    if is_bunch(value):
        return as_table(value)
    value = _collected(value)
    library = library_of(value)
    if library == "pyarrow" and hasattr(value, "to_pandas"):
        return value.to_pandas()
    if library == "polars" and hasattr(value, "to_list"):
        return _series(value)
    if library != "polars" or not hasattr(value, "get_columns"):
        return value
    import pandas

    return pandas.DataFrame({column.name: _series(column) for column in value.get_columns()})


def _series(column: Any) -> Any:
    """Return a series of polars as one of pandas, without pyarrow, which its own conversion needs.

    Cells of rows of numbers are arrays, those of structs are dictionaries. A Categorical, which polars sorts as text,
    is text.
    """
    import pandas

    kind = type(column.dtype).__name__
    if kind == "Enum":
        categories = list(column.dtype.categories)
        values = pandas.Categorical(column.to_list(), categories=categories)
    elif kind == "Array":
        values = [None if row is None else row.to_numpy() for row in column]
    elif kind in ("Struct", "Int128", "UInt128"):
        values = column.to_list()
    else:
        values = column.to_numpy()
    return pandas.Series(values, name=column.name)


def _with_index_of(value: Any, other: Any) -> Any:
    """Return a converted table or column with the index of the pandas object next to it, if it has none of its own."""
    import pandas

    if library_of(value) != "pandas" or library_of(other) != "pandas" or len(value) != len(other):
        return value
    if isinstance(value.index, pandas.RangeIndex):
        return value.set_axis(other.index)
    return value


# Thai and Lao, Burmese, Khmer, kana, and Han
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


class WordFrequencies(numpy.ndarray):
    """Frequencies of words, with a key per text: texts that differ in signs alone have equal frequencies.

    Attributes:
        text_keys: Hashes of the texts; None for a part or a copy of the array.
    """

    __module__ = "numpy"  # `library_of` reads it as an array
    text_keys: list[int] | None = None


def _key(text: str) -> int:
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)


TEXT_KEYS = "gapscope_text_keys"
"""Name of the `TextKeys` among the attributes of a frame."""


@dataclass(frozen=True, eq=False)
class TextKeys:
    """Hashes of what a frame of numbers omits, such as texts, which tells its rows apart.

    Attributes:
        index: Index of the rows.
        keys: A hash per row.
    """

    index: list[Any]
    keys: list[int]

    def __deepcopy__(self, memo: Any) -> TextKeys:
        return self  # pandas copies the attributes of a frame in every operation

    @classmethod
    def of(cls, index: Any, texts: Iterable[str]) -> TextKeys:
        """Return the hashes of texts.

        Args:
            index: Index of the rows.
            texts: One text per row.
        """
        return cls(index.tolist(), [_key(text) for text in texts])


def text_keys_of(value: Any) -> list[int] | None:
    """Return the hashes of the texts from which inputs were read, or which they omit; None without.

    Args:
        value: Frequencies of words, or a frame or part of its rows; other inputs have none.
    """
    attributes: Any = getattr(value, "attrs", {})
    found: Any = attributes.get(TEXT_KEYS) if is_mapping(attributes) else None
    if not isinstance(found, TextKeys):
        return getattr(value, "text_keys", None)
    index = value.index.tolist()
    if index == found.index:
        return found.keys
    known = dict(zip(found.index, found.keys, strict=True))
    if len(known) < len(found.index) or any(row not in known for row in index):
        return None
    return [known[row] for row in index]


def with_spaces(text: str) -> str:
    """Return a text in which pairs of adjacent letters stand as words, where its script has no spaces between words."""
    return _WITHOUT_SPACES.sub(_letter_pairs, text)


def _letter_pairs(match: re.Match[str]) -> str:
    letters = [letter for letter in match[0] if letter.isalnum()]  # without marks of vowels
    pairs = [first + second for first, second in pairwise(letters)]
    return f" {' '.join(pairs or letters)} "


def hashed_words(texts: Any) -> WordFrequencies:
    """Return frequencies of words and pairs of words, hashed to columns; the same for every data set.

    In Chinese, Japanese, Thai and other scripts without spaces, each pair of adjacent letters is a word.

    Args:
        texts: One text per sample.

    Raises:
        InvalidInput: They are paths of files.
    """
    refuse_file_paths(texts)
    from sklearn.feature_extraction.text import HashingVectorizer  # pyright: ignore[reportMissingTypeStubs]

    vectorizer = cast("Any", HashingVectorizer)(n_features=TEXT_COLUMNS, ngram_range=(1, 2))
    spaced = [with_spaces(str(text)) for text in texts]
    words = vectorizer.transform(spaced).astype("float32").toarray().view(WordFrequencies)
    words.text_keys = [_key(str(text)) for text in texts]
    return words


def _convert(
    value: Any, *, are_inputs: bool = False, are_labels: bool = False
) -> tuple[Any, list[str]]:
    """Return inputs or labels in a form that `gapscope.base.containers` reads, with notes.

    Args:
        value: Columns of data.
        are_inputs: Whether texts are the inputs.
        are_labels: Whether numbers keep their type.
    """
    library = library_of(value)
    if library == "scipy" and hasattr(value, "toarray"):
        return _dense(value, are_labels=are_labels), ["A sparse matrix was read as a dense one."]
    converted = as_frame(value)
    if converted is not value and library == "pandas":
        return converted, []
    if converted is not value:
        owner = "A polars" if library == "polars" else "An Arrow"
        return converted, [f"{owner} object was read as a pandas one."]
    texts = as_texts(value) if are_inputs else None
    if texts is not None:
        return hashed_words(texts), [TEXTS_READ]
    return value, []


def convert_foreign(data: Any) -> tuple[Any, list[str]]:
    """Return data whose parts are tensors, arrays or pandas objects where they were of another library.

    Args:
        data: Data in any form.

    Returns:
        The data (the same object if nothing was converted), and notes about the conversions.

    Raises:
        InvalidInput: A sparse matrix is too large for a dense copy.
    """
    if is_bunch(data):
        data = as_pair(data)
    if is_list_or_tuple(data) and len(data) == 2:
        x, x_notes = _convert(data[0], are_inputs=True)
        y, y_notes = _convert(data[1], are_labels=True)
        if x is not data[0] and not hasattr(data[0], "iloc"):
            x = _with_index_of(x, data[1])
        if y is not data[1] and not hasattr(data[1], "iloc"):
            y = _with_index_of(y, x)
        notes = list(dict.fromkeys([*x_notes, *y_notes]))
        is_changed = x is not data[0] or y is not data[1]
        return ((x, y) if is_changed else data), notes
    if is_mapping(data):
        parts = {
            name: _convert(part, are_labels=name in LABEL_NAMES) for name, part in data.items()
        }
        notes = [note for _, part_notes in parts.values() for note in part_notes]
        is_changed = any(part is not data[name] for name, (part, _) in parts.items())
        return ({name: part for name, (part, _) in parts.items()} if is_changed else data), notes
    return _convert(data)
