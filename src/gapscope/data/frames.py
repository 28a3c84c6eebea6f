"""Raw tables as numbers: text as indicators, missing numbers filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    import pandas

# A column of text with more different values than this, and than half of the rows, is a name and not a category.
MAX_CATEGORIES = 20


def encode_frame(
    frame: pandas.DataFrame, *, like: pandas.DataFrame | None = None
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return a frame of numbers, and notes about what was changed.

    Text columns become one column per value, those of which nearly every row has a different value are dropped, and
    missing numbers are filled with the median of their column.

    Args:
        frame: Columns of numbers and text.
        like: Encoded frame of another part of the data, whose columns are returned (0 where `frame` lacks one).
    """
    import pandas

    text = [name for name in frame if not pandas.api.types.is_numeric_dtype(frame[name])]
    names = [name for name in text if frame[name].nunique() > max(MAX_CATEGORIES, len(frame) // 2)]
    categories = [name for name in text if name not in names]
    missing = int(frame.drop(columns=text).isna().sum().sum())
    notes: list[str] = []
    if names:
        notes.append(f"{', '.join(map(str, names))}: dropped, since nearly every row has a different value.")
    if categories:
        notes.append(f"{', '.join(map(str, categories))}: one column per value.")
    if missing:
        notes.append(f"{missing} missing numbers: filled with the median of their column.")
    encoded = pandas.get_dummies(frame.drop(columns=names), columns=categories, dtype=float)
    encoded = encoded.fillna(encoded.median())
    if like is not None:
        encoded = encoded.reindex(columns=like.columns, fill_value=0.0)
    return encoded, tuple(notes)


def split_frame(frame: Any, target: str) -> tuple[pandas.DataFrame, pandas.Series]:
    """Return the columns other than the target, and the target, of a pandas frame.

    Args:
        frame: Table with a row per sample.
        target: Column of the labels or targets.

    Raises:
        InvalidInput: This is no frame, or it has no such column or no other.
    """
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        raise InvalidInput(f"Got target={target!r} with a {type(frame).__name__}; a pandas DataFrame is needed.")
    if target not in frame:
        hint = did_you_mean(target, [str(name) for name in frame])
        raise InvalidInput(f"Got target={target!r}, which is no column of the frame.{hint}")
    if frame.shape[1] < 2:
        raise InvalidInput(f"Got a frame with the column {target!r} alone; one column of features at least is needed.")
    return frame.drop(columns=target), frame[target]
