"""Columns: arrays, pandas objects and labels as tensors."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.precision import in_default_type
from gapscope.base.type_guards import is_list, is_list_or_tuple

MAX_INT64 = 2**63 - 1
"""The largest integer of torch."""


def library_of(value: Any) -> str:
    """Return the name of the library that a value comes from."""
    return type(value).__module__.split(".")[0]


def is_number(value: Any) -> bool:
    """Return whether a value is a number of Python, NumPy, torch or `decimal`, or a boolean."""
    if isinstance(value, numbers.Real | Decimal):
        return True
    is_scalar = library_of(value) in ("numpy", "torch") and getattr(value, "ndim", None) == 0
    return is_scalar and isinstance(value.item(), numbers.Real)


def _is_whole(value: Any) -> bool:
    """Return whether a number has an integer type, or is a decimal number without decimals."""
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value() and "." not in str(value)
    return isinstance(value, numbers.Integral) or (
        library_of(value) in ("numpy", "torch") and isinstance(value.item(), numbers.Integral)
    )


def decoded(value: Any) -> Any:
    """Return bytes, such as text of an HDF5 file, as text (other values unchanged)."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def as_numbers(array: Any) -> Any:
    """Return an array of objects that are all numbers, or missing, as an array of numbers (others unchanged)."""
    if array.dtype.kind != "O":
        return array
    values = array.ravel().tolist()
    known = [value for value in values if value is not None]
    if not known or not all(map(is_number, known)):
        return array
    if len(known) == len(values) and all(map(_is_whole, values)):
        return array.astype("int64")
    return array.astype("float64")


def _frame_numbers(value: Any) -> Any:
    """Return the numbers of a pandas object."""
    if value.ndim == 1:
        columns = value.to_frame()
    else:
        columns = value
    # by position: several columns can have one name
    invalid = [
        (str(name), columns.iloc[:, i])
        for i, name in enumerate(columns.columns)
        if columns.iloc[:, i].dtype.kind not in "biuf"
        and as_numbers(columns.iloc[:, i].to_numpy()).dtype.kind not in "biuf"
    ]
    if invalid:
        text_columns = [name for name, _ in invalid]
        advice = (
            "Encode them first, one column per value: pandas.get_dummies(frame, dtype=float). For token ids "
            "tokenize them."
        )
        if value.ndim > 1:
            name = repr(
                columns.columns[-1] if columns.columns[-1] in text_columns else text_columns[-1]
            )
            advice = f"If {name} holds the labels, pass (frame.drop(columns={name}), frame[{name}]). {advice}"
        if any(values.dtype.kind in "mM" for _, values in invalid):
            advice = "Turn times into numbers first, for example (frame[name] - frame[name].min()).dt.total_seconds()."
        elif any(values.map(is_row_of_numbers).all() for _, values in invalid):
            advice = "Turn arrays into columns first: numpy.stack(frame[name])."
        raise InvalidInput(
            f"Columns must hold numbers; {join_names(map(repr, text_columns))} do not. {advice}"
        )
    # extension types of pandas with missing values become arrays of objects
    array = as_numbers(value.to_numpy())
    if array.dtype.kind in "biuf":
        return array
    return value.to_numpy(dtype=float, na_value=float("nan"))


def _plain_integers(array: Any) -> Any:
    """Return the numbers of a frame with booleans as floats and other integers as int64."""
    if array.dtype.kind == "b":
        return array.astype("float64")
    if array.dtype.kind in "iu" and array.dtype.itemsize < 8:
        return array.astype("int64")
    if array.dtype.kind == "u" and array.size and array.max() > MAX_INT64:
        return array.astype("float64")
    if array.dtype.kind == "u":  # torch has no arithmetic for them
        return array.astype("int64")
    return array


def is_row_of_numbers(value: Any) -> bool:
    """Return whether the value of a cell is an array, a tensor or a list, such as the features of a sample."""
    return getattr(value, "ndim", 0) > 0 or (is_list_or_tuple(value) and len(value) > 0)


def with_canonical_strides(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor with the usual strides, also along dimensions of size 1 (a view).

    `contiguous()` keeps any stride there, with which the tensor cannot be viewed as bytes.
    """
    if not tensor.is_contiguous() or tensor.is_sparse or tensor.numel() == 0:
        return tensor
    strides: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        strides.insert(0, step)
        step *= size
    if tensor.stride() == tuple(strides):
        return tensor
    return tensor.as_strided(tensor.shape, strides)


def is_column(value: Any) -> bool:
    """Return whether a value is a tensor, a numpy array or a pandas object."""
    library = library_of(value)
    is_frame = library == "pandas" and hasattr(value, "columns")
    return (
        isinstance(value, Tensor)
        or is_frame
        or (library in ("numpy", "pandas") and hasattr(value, "dtype"))
    )


def unique_names(names: Sequence[Any]) -> list[Any]:
    """Return names of columns, numbered from the second of one name on as pandas does for a file: a, a.1, a.2.

    >>> unique_names(["a", "a", "b", "a.1"])
    ['a', 'a.2', 'b', 'a.1']
    """
    taken = {str(name) for name in names}
    seen: set[str] = set()
    result: list[Any] = []
    for name in names:
        unique = name
        number = 0
        while str(unique) in seen or (number and str(unique) in taken):
            number += 1
            unique = f"{name}.{number}"
        seen.add(str(unique))
        result.append(unique)
    return result


def column_names(value: Any) -> tuple[str, ...]:
    """Return the names of the columns of a pandas frame, each once (none for other values)."""
    if library_of(value) != "pandas" or not hasattr(value, "columns"):
        return ()
    return tuple(str(name) for name in unique_names(list(value.columns)))


def _mask_of(value: Any) -> Any:
    """Return which values of an array of NumPy are masked (None for other values, and if none is)."""
    mask = getattr(value, "mask", None)
    if library_of(value) != "numpy" or mask is None or not mask.any():
        return None
    return mask


def check_unmasked(value: Any) -> None:
    """Raise InvalidInput if an array of NumPy hides some of its values."""
    mask = _mask_of(value)
    if mask is not None:
        raise InvalidInput(
            f"data must hold numbers; got a masked array, {int(mask.sum())} of whose values are masked. Fill them with "
            "x.filled(value), or drop these samples."
        )


def column(value: Any, names: Sequence[str] = ()) -> Tensor:
    """Return a tensor, array or pandas object as a tensor.

    Arrays in float64 become the default type, unless that loses digits that matter (`gapscope.base.precision`).

    Args:
        value: Tensor, array, series or frame.
        names: Name for messages; empty for the names of a frame, or numbers.

    Raises:
        InvalidInput: The values are no numbers, or too large.
    """
    check_unmasked(value)
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InvalidInput(f"data must be dense tensors; got {value.layout}. Use x.to_dense().")
        return value.detach() if value.requires_grad else value
    if (
        value.ndim == 1
        and value.dtype == object
        and len(value)
        and all(map(is_row_of_numbers, value))
    ):
        value = _stacked(list(value))
    if library_of(value) == "pandas":
        array = _plain_integers(_frame_numbers(value))
    else:
        array = as_numbers(value)
    if array.dtype.names:
        raise InvalidInput(
            f"data must hold numbers; got a structured array with the fields {join_names(array.dtype.names)}. Pass "
            "pandas.DataFrame(x)."
        )
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"data must hold numbers; got a NumPy array of {array.dtype}. Use x.astype(float)."
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype("float64")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # a copy in C order: torch takes no negative strides
    tensor = with_canonical_strides(torch.from_numpy(array.copy(order="C")))  # pyright: ignore[reportUnknownMemberType]
    if tensor.dtype == torch.float64:
        return in_default_type(tensor, names or column_names(value))
    return tensor


def input_column(value: Any) -> Tensor:
    """Return inputs as a tensor; the columns of a frame are numbers, also whole ones."""
    tensor = column(value)
    if tensor.is_floating_point() or not column_names(value):
        return tensor
    return in_default_type(tensor.double(), column_names(value))


def label_column(value: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as a tensor, and the names of classes that are strings or categories.

    Strings are numbered in alphabetical order, categories in their declared order. Objects that are all numbers are
    numbers.

    Raises:
        InvalidInput: Labels are missing, or are dates.
    """
    if isinstance(value, Tensor):
        return column(value), ()
    if library_of(value) == "pandas" and value.ndim == 2 and value.shape[1] == 1:
        value = value.iloc[:, 0]
    if value.ndim == 2 and value.shape[1] == 1:
        value = value[:, 0]
    is_number = library_of(value) != "pandas" and value.dtype.kind not in "OUST"
    if not is_number or _mask_of(value) is not None:  # NaN in numbers is refused with the targets
        check_labels_present(value)
    if library_of(value) == "pandas" and value.ndim == 1 and hasattr(value, "categories"):
        import pandas

        value = pandas.Series(value)  # a Categorical, or an index of it
    if value.ndim == 1 and hasattr(value, "cat"):  # a frame has its columns as attributes
        categories = value.cat.categories
        names = tuple(str(name) for name in categories)
        codes = torch.from_numpy(value.cat.codes.to_numpy().astype("int64"))  # pyright: ignore[reportUnknownMemberType]
        return codes, names
    if library_of(value) == "pandas":
        array = value.to_numpy()
    else:
        array = value
    array = as_numbers(array)
    if array.dtype.kind in "mM":
        raise InvalidInput(
            f"Labels must be classes or numbers; got {array.dtype}. Pass y.astype(str) for one class per value, or the "
            "days since a date as numbers: (y - y.min()) / numpy.timedelta64(1, 'D')."
        )
    if array.dtype.kind not in "OUST" or not array.ndim:
        return column(array, ("the targets",)), ()
    labels = [str(decoded(label)) for label in array.ravel().tolist()]
    codes = {name: code for code, name in enumerate(sorted(set(labels)))}
    numbered = torch.tensor([codes[label] for label in labels])
    return numbered.reshape(array.shape), tuple(codes)


def check_labels_present(labels: Any) -> None:
    """Raise InvalidInput if labels are None, NaN, `pandas.NA` or masked.

    Args:
        labels: Array, series, frame, tensor or list.

    Raises:
        InvalidInput: Some are.
    """
    import numpy
    import pandas

    is_masked = _mask_of(labels)
    value: Any = labels if library_of(labels) == "pandas" else numpy.asarray(labels)
    missing = numpy.asarray(cast("Any", pandas).isna(value))
    if is_masked is not None:
        missing = missing | is_masked
    n_missing = int(missing.sum())
    if n_missing and value.ndim > 1:
        raise InvalidInput(
            f"Every sample needs a value in each column; {n_missing} of {value.size} are missing. Drop these samples, "
            "or pass one column at a time. In labels of positions (tokens, pixels), -100 marks one that does not count."
        )
    if n_missing:
        raise InvalidInput(
            f"Every sample needs a label; {n_missing} of {len(value)} are missing (None, NaN or masked). "
            "Drop these samples."
        )


def check_row_order(x: Any, y: Any, name: str = "y") -> None:
    """Check that two pandas objects do not have the same index in another order.

    Rows are matched by position. One of the two has been shuffled or sorted, or has lost its index: which of these
    cannot be known.

    Raises:
        InvalidInput: The values of both indexes are the same, and their order differs.
    """
    if library_of(x) != "pandas" or library_of(y) != "pandas" or len(x) != len(y):
        return
    first, second = (value.index if hasattr(value, "index") else None for value in (x, y))
    if first is None or second is None or first.equals(second):
        return
    if first.is_unique and second.is_unique and bool(first.isin(second).all()):
        raise InvalidInput(
            f"Rows of x and {name} are matched by position; got indexes with the same values in another order. Pass "
            f"{name}.loc[x.index] to match them by index, or {name}.to_numpy() if their positions match."
        )


def naming_note(names: tuple[str, ...]) -> list[str]:
    """Return the note about the numbers of named classes (none without names)."""
    if not names:
        return []
    listed = join_names(f"{code} = {name!r}" for code, name in enumerate(names))
    order = "categories"
    if list(names) == sorted(names):
        order = "sorted names"
    return [f"Labels are numbered by their {order}: {listed}."]


def stack_columns(value: Any, name: str = "x") -> Any:
    """Stack lists of numbers per sample, which torch collates transposed, and lists of lists.

    Raises:
        InvalidInput: The lists have several lengths.
    """
    if (
        is_list(value)
        and value
        and all(isinstance(part, Tensor) and part.ndim == 1 for part in value)
    ):
        return torch.stack(value, dim=1)
    is_nested = is_list(value) and value and all(is_list_or_tuple(row) and row for row in value)
    if not is_nested:
        return value
    lengths = {len(row) for row in value}
    if len(lengths) > 1:
        raise InvalidInput(
            f"All samples must have one length; {name!r} holds lists of {min(lengths)} to {max(lengths)} values. Pad "
            "them, for example by the tokenizer: tokenizer(texts, padding=True, return_tensors='pt')."
        )
    return label_rows(value)


def stack_label_tensors(labels: Any, n: int) -> Any:
    """Return a list of vectors as one tensor [n, K]: one per sample, or one per label as torch collates lists.

    Args:
        labels: Labels of n samples in any form; others are returned as they are.
        n: Number of samples.
    """
    if not is_list_or_tuple(labels) or not labels:
        return labels
    if not all(isinstance(part, Tensor) and part.ndim == 1 for part in labels):
        return labels
    lengths = {len(part) for part in labels}
    if lengths == {n}:
        return torch.stack(list(labels), 1)
    if len(lengths) == 1 and len(labels) == n:
        return torch.stack(list(labels))
    return labels


def stack_words(labels: Any, n: int) -> Any:
    """Return K sequences of n strings, as torch collates a list of K strings per sample, as one list per sample.

    Args:
        labels: Labels of n samples in any form; others are returned as they are.
        n: Number of samples.
    """
    if not is_list_or_tuple(labels) or not labels or not all(map(is_list_or_tuple, labels)):
        return labels
    are_words = all(isinstance(word, str) for part in labels for word in part)
    are_collated = len(labels) != n or all(isinstance(part, tuple) for part in labels)
    if are_words and are_collated and all(len(part) == n for part in labels):
        return [list(row) for row in zip(*labels, strict=True)]
    return labels


def label_rows(rows: list[Any]) -> Any:
    """Return lists of numbers, or of strings, of one length as an array (others unchanged)."""
    values = [value for row in rows for value in row]
    are_words = all(isinstance(value, str) for value in values)
    if not are_words and not all(isinstance(value, numbers.Real) for value in values):
        return rows
    import numpy

    return numpy.array(rows)


def label_array(value: Any) -> Any:
    """Return a list of strings or numbers, or of lists of these, as an array (other values unchanged).

    Raises:
        InvalidInput: Lists in it have several lengths, or are sets.
    """
    if not is_list_or_tuple(value) or not value:
        return value
    if all(isinstance(label, list | tuple | set | frozenset) for label in value):
        return _nested_labels(list(value))
    import numpy

    n_missing = sum(label is None for label in value)
    if 0 < n_missing < len(value):
        return numpy.array(value, dtype=object)  # `label_column` counts what is missing
    if all(isinstance(label, str | bytes) for label in value):
        return numpy.array([decoded(label) for label in value])
    if not all(map(is_number, value)):
        return value
    if any(isinstance(label, Tensor | Decimal) for label in value):
        plain = [label.item() if isinstance(label, Tensor) else label for label in value]
        return numpy.array(plain)
    return numpy.array(value)


def _nested_labels(rows: list[Any]) -> Any:
    """Return lists of labels, one list per sample, as an array; raise InvalidInput if their lengths differ."""
    lengths = {len(row) for row in rows}
    if any(isinstance(row, set | frozenset) for row in rows) or len(lengths) > 1 or 0 in lengths:
        raise InvalidInput(
            "Labels must have one shape per sample; got lists or sets of several lengths. For several labels per "
            "sample pass sklearn.preprocessing.MultiLabelBinarizer().fit_transform(y); pad labels of positions by -100."
        )
    return label_rows(rows)


def stack_rows(x: Any, n: int) -> Any:
    """Return a list of n samples, each a list of numbers, an array or a tensor, as one array (others unchanged).

    A list of several inputs, each with n rows, is no such list.

    Raises:
        InvalidInput: The samples have several shapes.
    """
    if (
        not is_list(x)
        or len(x) != n
        or any(is_column(row) and row.ndim and len(row) == n for row in x)
    ):
        return x
    if not all(is_column(row) or (is_list_or_tuple(row) and row) for row in x):
        return x
    return _stacked(x)


def _stacked(samples: list[Any]) -> Any:
    """Return samples, each a list of numbers, an array or a tensor, as one array."""
    import numpy

    rows = [numpy.asarray(sample) for sample in samples]
    shapes = sorted({row.shape for row in rows})
    if len(shapes) > 1:
        listed = ", ".join(str(list(shape)) for shape in shapes[:4])
        raise InvalidInput(
            f"All samples must have the same shape; got {listed}. Pad or crop them to one."
        )
    return numpy.stack(rows)
