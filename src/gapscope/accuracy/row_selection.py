"""Rows of data in any container: arrays, frames, sparse matrices, lists, mappings and datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gapscope.base.arrays import tensor_of
from gapscope.base.batches import LABEL_NAMES
from gapscope.base.class_names import notes_on_class_names
from gapscope.base.columns import (
    as_numbers,
    check_labels_present,
    check_row_order,
    check_unmasked,
    label_column,
    library_of,
)
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.foreign_data import as_frame, dense_labels
from gapscope.base.label_marks import notes_on_marks
from gapscope.base.row_numbers import row_number_note
from gapscope.base.rows import take_rows
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import (
    IGNORED,
    ONE_HOT_NOTE,
    are_several,
    is_one_hot,
    labelled_rows,
    refuse_missing,
)
from gapscope.base.type_guards import has_length, is_list_or_tuple, is_mapping
from gapscope.base.user_data import check_length
from gapscope.data.named_columns import lacks_labels
from gapscope.data.table_targets import split_frame
from gapscope.inspection.network_checks import estimator_task, is_estimator

ROWS = (
    "a pair (x, y) of arrays, tensors, frames (pandas, polars), Arrow tables, sparse matrices or lists, a mapping of "
    "such columns for x, or a Dataset"
)

READ = Samples | DataLoader | Mapping | IterableDataset
"""Forms of data that are read into tensors."""


def n_rows(value: Any) -> int:
    """Return the number of rows of a container."""
    if isinstance(value, Mapping):
        return n_rows(next(iter(value.values())))
    shape = getattr(value, "shape", None)
    if shape:
        return int(shape[0])
    return len(value)


def count_repeats(inputs: Any) -> int:
    """Return the number of rows that repeat another one (0 for data sets of objects, which are not read)."""
    import pandas

    def as_columns(value: Any) -> pandas.DataFrame:
        if isinstance(value, pandas.DataFrame):
            return value.reset_index(drop=True)
        values = np.asarray(value)
        return pandas.DataFrame(values.reshape(len(values), -1))

    if isinstance(inputs, TensorDataset):
        inputs = inputs.tensors[0]
    if isinstance(inputs, Dataset):
        return 0
    try:
        if hasattr(inputs, "tocsr"):
            rows = inputs.tocsr(copy=True)
            rows.sum_duplicates()
            rows.eliminate_zeros()
            ends = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
            return rows.shape[0] - len({
                (rows.indices[start:end].tobytes(), rows.data[start:end].tobytes())
                for start, end in ends
            })  # fmt: skip
        columns = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
        frame = pandas.concat([as_columns(column) for column in columns], axis=1)
        return int(frame.duplicated().sum())
    except (TypeError, ValueError):  # objects that cannot be compared, or of different sizes
        return 0


def inputs_of(samples: Samples) -> Any:
    """Return the inputs in the user's form: a tensor, a mapping of tensors or a tuple."""
    if samples.form is None:
        return samples.inputs
    parts = samples.form.unpack(samples.inputs)
    if samples.form.names is None:
        return parts
    return dict(zip(samples.form.names, parts, strict=True))


@dataclass(frozen=True)
class Rows:
    """Rows of data in the form in which they were passed, without those that have no label.

    Attributes:
        inputs: Inputs.
        targets: Targets; None for a Dataset.
        notes: Notes about omitted rows.
        kept: Row number of each row in the data that were passed, if some were omitted; else None.
        n_passed: Number of rows that were passed.
    """

    inputs: Any
    targets: Any
    notes: tuple[str, ...] = ()
    kept: np.ndarray | None = None
    n_passed: int = 0

    def per_row(self, values: Any) -> Any:
        """Return one value per row, from one per row that was passed.

        Args:
            values: A column, such as groups; None is returned.
        """
        if values is None or self.kept is None or len(values) != self.n_passed:
            return values
        return take_rows(values, self.kept)


def as_rows(data: Any, estimator: Any = None) -> Rows:
    """Return inputs and targets as they were passed, without conversion.

    A Dataset stays whole: the inputs are the Dataset, the targets None. A mapping with labels, a loader and Samples are
    read into tensors. Rows with the label -100 are omitted: integers [n], and those of a classifier in any form.
    What an estimator would not see is refused: masks and missing labels.

    Args:
        data: The data.
        estimator: What is fitted. Targets of regressors are numbers, of which none is omitted.

    Raises:
        InvalidInput: The data have no targets or another form, no label, or some of several labels per sample are
            missing; or inputs and targets differ in length.
    """
    rows = _as_rows(data)
    if rows.targets is None or not n_rows(rows.targets):
        return rows
    if is_estimator(estimator):
        kind = estimator_task(estimator, rows.targets)
    else:
        kind = ""
    if kind == "classifier":
        rows = _one_hot_as_classes(rows, estimator)
    if kind and isinstance(data, READ) and is_mapping(rows.inputs):
        raise InvalidInput(
            f"An estimator needs data as a pair (x, y); got {type(data).__name__} of {', '.join(rows.inputs)}. Pass "
            "(x, y)."
        )
    if kind:
        notes = _check_for_estimator(rows, kind, is_read=isinstance(data, READ))
        rows = replace(rows, notes=(*rows.notes, *notes))
    values = np.asarray(rows.targets)
    if kind == "regressor" or values.dtype.kind not in ("ifO" if kind else "i"):
        return rows
    is_missing = np.asarray(values == IGNORED, dtype=bool).reshape(len(values), -1)
    if is_missing.shape[1] != 1:
        if kind:
            refuse_missing(torch.from_numpy(is_missing))
        return rows
    notes: list[str] = []
    is_labelled = labelled_rows(tensor_of(np.where(is_missing[:, 0], IGNORED, 0)), notes)
    if not notes:
        return rows
    kept = np.flatnonzero(is_labelled.numpy())
    x, y = (take_rows(part, kept) for part in (rows.inputs, rows.targets))
    if rows.kept is not None:
        kept = rows.kept[kept]
    return Rows(x, y, (*rows.notes, *notes), kept, rows.n_passed or len(values))


def _one_hot_as_classes(rows: Rows, estimator: Any) -> Rows:
    """Return rows with class labels in place of one-hot ones, unless the classifier takes several labels alone."""
    values = np.asarray(rows.targets)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        return rows
    targets = tensor_of(values)
    from sklearn.utils import get_tags

    has_tags = hasattr(estimator, "__sklearn_tags__")
    needs_several = has_tags and not get_tags(estimator).target_tags.single_output
    if needs_several or not are_several(targets) or not is_one_hot(targets):
        return rows
    classes = values.argmax(1)
    if hasattr(rows.targets, "columns"):
        classes = np.asarray(rows.targets.columns)[classes]
    return replace(rows, targets=classes, notes=(*rows.notes, ONE_HOT_NOTE))


def numbered_classes(y: Any, n: int) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return the classes that occur, in the order in which all functions number them, and their numbers [n].

    Categories have their declared order, other labels that of their sorted values. Objects that are no numbers are
    classes by their text.

    Args:
        y: Class labels of any form, [n] or [n, 1].
        n: Number of labels.
    """
    y = as_frame(y)
    if library_of(y) == "pandas" and y.ndim == 2:
        y = y.iloc[:, 0]
    elif library_of(y) == "pandas":
        import pandas

        y = pandas.Series(y)
    values: Any = y if hasattr(y, "cat") else np.asarray(y).reshape(n)
    is_text = hasattr(y, "cat") or as_numbers(values).dtype.kind in "OUST"
    if not is_text:
        classes, numbers = np.unique(values, return_inverse=True)
        return tuple(classes.tolist()), numbers
    codes, names = label_column(values)
    occurring, numbers = codes.unique(return_inverse=True)
    known = y.cat.categories.tolist() if hasattr(y, "cat") else names
    return tuple(known[code] for code in occurring.tolist()), numbers.numpy()


def _check_for_estimator(rows: Rows, kind: str, *, is_read: bool) -> list[str]:
    """Return notes on names of classes; raise InvalidInput if values are masked, or labels missing."""
    for part in rows.inputs.values() if is_mapping(rows.inputs) else [rows.inputs]:
        check_unmasked(part)
    labels = as_frame(rows.targets)
    check_labels_present(labels)
    if kind == "regressor" or np.prod(np.shape(labels)) != n_rows(labels):
        return []
    classes, codes = numbered_classes(labels, n_rows(labels))
    numbers = tensor_of(codes)
    notes = [] if is_read else notes_on_marks(numbers, [str(name) for name in classes])
    if all(isinstance(name, str) for name in classes):
        notes += notes_on_class_names(classes, numbers)
    return notes


def _as_rows(data: Any) -> Rows:
    """Return all rows of the data (see `as_rows`)."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        check_length(data)
        return Rows(data, None)
    if library_of(data) == "datasets" and has_length(data) and not is_mapping(data):
        if message := lacks_labels(data):
            raise InvalidInput(message)
        names: list[str] = getattr(data, "column_names", [])
        data = split_frame(data, next(name for name in LABEL_NAMES if name in names))
    if isinstance(data, READ):
        samples = as_samples(data)
        kept = None if samples.rows is None else samples.rows.cpu().numpy()
        return Rows(inputs_of(samples), samples.y, samples.notes, kept, samples.n_rows)
    if not is_list_or_tuple(data) or len(data) != 2:
        raise InvalidInput(f"data must be {ROWS}; got {type(data).__name__}. Pass (x, y).")
    x, y = data[0], dense_labels(data[1])
    check_same_length("inputs", n_rows(x), "targets", n_rows(y))
    check_row_order(x, y)
    return Rows(x, y, tuple(row_number_note(x)))


def has_rows_of_any_kind(data: Any) -> bool:
    """Return whether data that are no samples have rows that a function with `score` may take: no arrays of numbers.

    Args:
        data: The data.
    """
    try:
        inputs = as_rows(data).inputs
    except InvalidInput:
        return False
    dtype = getattr(inputs, "dtype", None)
    return not isinstance(dtype, torch.dtype) and getattr(dtype, "kind", "O") in "OUS"
