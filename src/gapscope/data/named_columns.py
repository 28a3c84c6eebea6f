"""Data with named columns: tables, mappings, lists of dictionaries, Hugging Face and torch data sets of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.batches import LABEL_NAMES
from gapscope.base.columns import is_number, library_of, stack_columns
from gapscope.base.errors import InvalidInput, did_you_mean, join_names
from gapscope.base.foreign_data import as_frame, no_labels_message
from gapscope.base.own_classes import own_class_names
from gapscope.base.random_streams import kept_random_states
from gapscope.base.row_numbers import is_index_name
from gapscope.base.tables import check_names
from gapscope.base.type_guards import has_length, is_list, is_list_or_tuple, is_mapping
from gapscope.base.user_data import is_stream, read_sample, refuse_stream

if TYPE_CHECKING:
    import pandas

FORMS = "a table, a mapping of columns, a list of dictionaries or a Dataset"


def _of_rows(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the columns of rows that are mappings; a name that a row lacks is None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): [row.get(name) for row in rows] for name in names}


def _of_hugging_face(data: Any) -> dict[str, Any]:
    """Return the columns of a `datasets.Dataset`, without its format, but with a transform of the user."""
    form = data.format
    if form["type"] == "custom":
        return dict(data[:])
    return dict(data.with_format(None)[:])


@kept_random_states()
def named_columns(data: Any) -> dict[str, Any] | None:
    """Return the columns of data that name them, each with one value per sample; None for other data.

    Args:
        data: Data in any form.

    Raises:
        InvalidInput: The data are several splits of a Hugging Face data set, or a stream.
    """
    data = as_frame(data)
    if library_of(data) == "pandas" and hasattr(data, "columns"):
        return {name: data[name] for name in data.columns if list(data.columns).count(name) == 1}
    if library_of(data) == "datasets" and is_mapping(data):
        raise InvalidInput(
            f"data must be one split of the DatasetDict; it has {', '.join(data)}. Pass data['train']."
        )
    if is_stream(data) or (library_of(data) == "datasets" and not has_length(data)):
        refuse_stream(data)
    if library_of(data) == "datasets":
        return _of_hugging_face(data)
    if library_of(data) == "numpy" and getattr(getattr(data, "dtype", None), "names", None):
        return {name: data[name] for name in data.dtype.names}
    if is_mapping(data):
        return {str(name): stack_columns(value, str(name)) for name, value in data.items()}
    if is_list(data) and data and all(is_mapping(row) for row in data):
        return _of_rows(data)
    if isinstance(data, Dataset) and has_length(data):
        n = len(data)  # pyright: ignore[reportArgumentType]
        if n and is_mapping(read_sample(data, 0)):
            return _of_rows([read_sample(data, row) for row in range(n)])
    return None


def _names_without_reading(data: Any) -> list[str]:
    """Return the names of the columns of data that are no table, from their first sample; none for other data."""
    if library_of(data) == "datasets":
        is_split = has_length(data) and not hasattr(data, "keys")
        return list(data.column_names) if is_split else []
    if isinstance(data, Dataset) and (is_stream(data) or not has_length(data)):
        return []
    if isinstance(data, Dataset) or is_list(data):
        sized: Any = data
        data = read_sample(sized, 0) if len(sized) else None
    return [str(name) for name in data] if is_mapping(data) else []


@kept_random_states()
def labelled_table(data: Any) -> Any:
    """Return the pair (frame, labels) of data that name numbers or texts and labels; other data unchanged.

    Texts alone, token ids, pictures and vectors are no table.

    Args:
        data: Data in any form.
    """
    names = _names_without_reading(data)
    label = next((name for name in LABEL_NAMES if name in names), None)
    if label is None or not len(data):
        return data
    first = data if is_mapping(data) else read_sample(data, 0)
    cells = {str(name): cell for name, cell in first.items() if name != label}
    if is_mapping(data):
        is_column = all(
            getattr(cell, "ndim", 1 if is_list_or_tuple(cell) else 0) == 1 and len(cell)
            for cell in cells.values()
        )
        if not is_column:
            return data
        cells = {name: _plain(cell[:1])[0] for name, cell in cells.items()}
    if not all(is_number(cell) or isinstance(cell, str) for cell in cells.values()):
        return data
    if all(isinstance(cell, str) or is_index_name(name) for name, cell in cells.items()):
        return data
    return column_by_name(data, label)


@kept_random_states()
def lacks_labels(data: Any) -> str:
    """Return the message about data of named columns of which none has a name for labels; empty for other data.

    Args:
        data: Data in any form.
    """
    names = _names_without_reading(data)
    if not names or any(name in LABEL_NAMES for name in names):
        return ""
    return no_labels_message(names)


def _plain(value: Any) -> Any:
    """Return a column as an array or a list; tensors become arrays."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if is_list_or_tuple(value):
        return [_cell(cell) for cell in value]
    return value


def _cell(cell: Any) -> Any:
    """Return a tensor as an array, or as a number if it is one."""
    if not isinstance(cell, Tensor):
        return cell
    array = cell.detach().cpu().numpy()
    return array if array.ndim else array.item()


def _is_input_of_networks(value: Any) -> bool:
    """Return whether the samples of a column are token ids, pictures or other tensors, which are no row of a table."""
    import numpy

    if library_of(value) == "pandas":
        return False
    if is_list(value):
        if not value or not (is_list_or_tuple(value[0]) or getattr(value[0], "ndim", 0)):
            return bool(value) and library_of(value[0]) == "PIL"
        cell = numpy.asarray(value[0])
        return cell.ndim > 1 or cell.dtype.kind in "iu"
    array = numpy.asarray(value)
    return array.ndim > 2 or (array.ndim == 2 and array.dtype.kind in "iu")


def _check_lengths(columns: dict[str, Any], target: str) -> None:
    """Raise InvalidInput unless all columns have a value for each sample."""
    n = len(columns[target])
    for name, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, str) or len(column) != n:
            length = len(column) if hasattr(column, "__len__") else 1
            raise InvalidInput(
                f"All columns must have one value per sample; {name!r} has {length:,}, {target!r} has {n:,}. Correct "
                "or leave out one of them."
            )


def _as_frame(columns: dict[str, Any]) -> pandas.DataFrame:
    """Return columns as a frame, whose cells hold the rows of a matrix."""
    import pandas

    return pandas.DataFrame(
        {
            name: list(value) if getattr(value, "ndim", 1) > 1 else value
            for name, value in columns.items()
        }
    )


def _labels_of(data: Any, target: str, values: Any) -> Any:
    """Return the labels of a column, as the names that a Hugging Face data set gives to their numbers."""
    import pandas

    if library_of(data) != "datasets":
        return values
    names = own_class_names(data, (target,))
    if not names or not all(isinstance(code, int) and 0 <= code < len(names) for code in values):
        return values
    return pandas.Categorical([names[code] for code in values], categories=list(names))


@kept_random_states()
def column_by_name(data: Any, target: str | int) -> tuple[Any, Any]:
    """Return the inputs, and the labels or targets in the column of a name.

    Args:
        data: A table, a mapping of columns, a list of dictionaries or a Dataset.
        target: Name of the column of the labels or targets.

    Returns:
        A frame of the other columns, or a mapping of them where they hold token ids or pictures; and the column, a
        series.

    Raises:
        InvalidInput: The data have no named columns, none of this name, or no other.
    """
    import pandas

    frame = as_frame(data)
    is_table = isinstance(frame, pandas.DataFrame)
    columns = {} if is_table else named_columns(data)
    if data is None:
        raise InvalidInput(
            f"Got target={target!r} without data. Where a source (None, or a network) is passed too, it comes first: "
            f"f(None, frame, target={target!r})."
        )
    if columns is None:
        raise InvalidInput(
            f"Got target={target!r} with a {type(data).__name__}; {FORMS} is needed, whose columns have names. Pass "
            "one, or (x, y) without target=."
        )
    names: list[Any] = list(frame.columns) if is_table else [*columns]
    name: Any = target if is_table else str(target)
    if is_table:
        check_names(frame, [target])
    if name not in names:
        words = [str(name) for name in names]
        hint = did_you_mean(str(target), words) or f" Pass one of {join_names(words)}."
        owner = "the frame" if is_table else "the data"
        raise InvalidInput(f"Got target={target!r}, which is no column of {owner}.{hint}")
    if len(names) < 2:
        raise InvalidInput(
            f"Got a frame with the column {target!r} alone; one column of features at least is needed."
        )
    if is_table:
        return frame.drop(columns=[target]), frame[target]
    columns = {name: _plain(value) for name, value in columns.items()}
    _check_lengths(columns, name)
    values = _labels_of(data, name, columns.pop(name))
    if getattr(values, "ndim", 1) > 1:
        raise InvalidInput(
            f"Column {target!r} must hold one label or target per sample; it has {list(values.shape)} values. Pass "
            "(x, y)."
        )
    labels = pandas.Series(values, name=target)
    if any(map(_is_input_of_networks, columns.values())):
        return columns, labels
    return _as_frame(columns), labels
