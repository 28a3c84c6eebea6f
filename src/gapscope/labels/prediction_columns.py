"""Columns of predictions of the user's own model, brought into the order of the classes of the samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.foreign_data import as_frame
from gapscope.base.label_numbers import is_far_above
from gapscope.base.samples import Samples
from gapscope.data.named_columns import named_columns
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize

GIVEN = "given label"
"""Column of a table of `gapscope.out_of_sample` that is no prediction; of targets "given " and their name."""
# standard errors by which one order of columns must agree with more labels than another, by judgment
MIN_ERRORS = 3


def free_name(name: str, taken: Collection[Any]) -> str:
    """Return a name that no column has: the name itself, or with a number.

    Args:
        name: The name.
        taken: Names of columns, such as those of classes.

    >>> [free_name("given label", ["cat", "given label"]), free_name("sample", ["cat"])]
    ['given label (2)', 'sample']
    """
    result = name
    number = 1
    while result in taken:
        number += 1
        result = f"{name} ({number})"
    return result


def given_names(names: Sequence[Any]) -> list[str]:
    """Return a name for the given values of each target, which no other column has.

    Args:
        names: Names of the targets.
    """
    result: list[str] = []
    for name in names:
        result.append(free_name(f"given {name}", [*names, *result]))
    return result


def _is_given(columns: list[Any]) -> list[bool]:
    """Return which columns of a table of `gapscope.out_of_sample` hold labels or targets, no predictions."""
    half = len(columns) // 2
    if columns and columns[-1] == free_name(GIVEN, columns[:-1]):
        n_given = 1
    elif columns[half:] == given_names(columns[:half]):
        n_given = half
    else:  # columns in another order
        given = {GIVEN, *(f"given {name}" for name in columns)}
        return [name in given for name in columns]
    return [False] * (len(columns) - n_given) + [True] * n_given


def to_values(predictions: Any) -> Tensor:
    """Return probabilities or predicted targets as a tensor in float64, without gradients.

    Args:
        predictions: Array in any order of its memory, tensor, frame, list, or result of `gapscope.out_of_sample`.

    Raises:
        InvalidInput: They are no numbers.
    """
    if isinstance(predictions, Tensor):
        return predictions.detach().double().cpu()
    columns = list(getattr(predictions, "columns", ()))
    is_given = _is_given(columns)
    if any(is_given):
        rest = [i for i, given in enumerate(is_given) if not given]
        if hasattr(predictions, "iloc"):
            predictions = predictions.iloc[:, rest]
        else:
            predictions = predictions[[columns[i] for i in rest]]
    return _to_numbers(predictions)


def _to_numbers(predictions: Any) -> Tensor:
    """Return a table of predictions, all columns of it."""
    try:
        return torch.from_numpy(np.array(predictions, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"Got pred_probs that are no table of numbers ({type(predictions).__name__}: {error}); probabilities "
            "[n, classes] or predicted targets [n] are needed."
        ) from error


def check_finite(predictions: Tensor) -> None:
    """Raise InvalidInput if predictions are NaN or infinite, with the first such row.

    Args:
        predictions: Predictions, one row per sample.

    Raises:
        InvalidInput: See above.
    """
    finite = predictions.isfinite().reshape(len(predictions), -1).all(1)
    if bool(finite.all()):
        return
    n = int((~finite).sum())
    row = int((~finite).nonzero()[0])
    raise InvalidInput(
        f"Got pred_probs with NaN or infinity in {pluralize(n, 'row')} (the first is row {row}); finite numbers "
        "are needed. Drop these samples from the data and the predictions."
    )


def present_columns(predictions: Any, shape: Sequence[int]) -> Any:
    """Return the probabilities [n, K] that each label is present, if there is one array [n, 2] per label.

    Estimators of scikit-learn return such a list from `predict_proba` for several labels. Other predictions are
    returned as they are.

    Args:
        predictions: Predictions in any form.
        shape: Shape of the labels, [n, K].
    """
    if not isinstance(predictions, list | tuple) or len(shape) != 2:
        return predictions
    if len(predictions) != shape[1] or {np.shape(part) for part in predictions} != {(shape[0], 2)}:
        return predictions
    return torch.stack([to_values(part)[:, 1] for part in predictions], 1)


def as_table(predictions: Any) -> Any:
    """Return predictions with named columns as a frame, in any form that names them; other ones as they are.

    Args:
        predictions: Mapping of columns, list of dictionaries, records, table of polars or Arrow, or other predictions.
    """
    if is_held_out(predictions):
        return predictions
    frame = as_frame(predictions)
    columns = None if hasattr(frame, "iloc") else named_columns(frame)
    if columns is None:
        return frame
    import pandas

    return pandas.DataFrame(columns)


def inputs_of_labels(predictions: Any, labels: Any) -> Any:
    """Return predictions [n, ...] for all labels that were passed; rows and positions without one are 0.

    Args:
        predictions: Predictions, or a result of `gapscope.out_of_sample`.
        labels: Labels [n], [n, K] or of positions.

    Raises:
        InvalidInput: Predictions of positions have positions that the labels lack.
    """
    values = to_values(present_columns(predictions, np.shape(labels)))
    if not is_held_out(predictions):
        return values
    if predictions.positions is not None:
        index = torch.from_numpy(predictions.positions)
        needed = [int(last) + 1 for last in index.max(0).values]
        shape = list(np.shape(labels))
        if len(shape) != len(needed) or any(a < b for a, b in zip(shape, needed, strict=True)):
            raise InvalidInput(
                f"Got held-out predictions of positions up to {[last - 1 for last in needed]} and labels of shape "
                f"{shape}; one class number per position is needed, {needed} or more. Pass the labels that the "
                "predictions were computed from, one-hot ones as labels.argmax(-1)."
            )
        result = values.new_zeros(*shape, values.shape[1])
        result[tuple(index.unbind(1))] = values
        return result
    if predictions.rows is not None and int(predictions.rows.max()) < len(labels):
        result = values.new_zeros(len(labels), values.shape[1])
        result[torch.from_numpy(predictions.rows)] = values
        return result
    return values


def is_held_out(predictions: Any) -> bool:
    """Return whether predictions are known to be out of sample, as those of `gapscope.out_of_sample` are."""
    return bool(getattr(predictions, "is_held_out", False))


def match_predictions(pred_probs: Any, samples: Samples) -> tuple[Any, tuple[str, ...]]:
    """Return predictions with the rows of the samples, and a column per class (or label) in their order.

    Columns of frames and of results of `gapscope.out_of_sample` are matched by name. Columns without names are those of
    the classes in their order; if this differs from the order of sorted names, which scikit-learn has, the order is the
    one that agrees with more labels.

    Args:
        pred_probs: Probabilities [n, C], or predicted targets [n].
        samples: The samples.

    Returns:
        The predictions, and notes.

    Raises:
        InvalidInput: Columns have names, of which a class that occurs lacks one; or their order is not known.
    """
    if samples.kind == "positions":
        return pred_probs, ()
    if samples.kind == "multi-label":
        shape = (samples.n_rows or len(samples), samples.y.shape[1])
        pred_probs = _of_labelled_rows(present_columns(pred_probs, shape), samples)
        return _match_labels(pred_probs, samples.target_columns), ()
    pred_probs = _of_labelled_rows(pred_probs, samples)
    if not samples.is_classification:
        return pred_probs, ()
    return _match_classes(pred_probs, samples)


def _of_labelled_rows(pred_probs: Any, samples: Samples) -> Any:
    """Return the predictions of the samples, if there is one for every row of the data that were passed."""
    n = samples.n_rows or len(samples)
    if getattr(pred_probs, "rows", None) is not None and len(pred_probs) != n:
        return _of_same_rows(pred_probs, samples)
    rows = samples.rows
    if rows is None or not hasattr(pred_probs, "__len__") or len(pred_probs) != samples.n_rows:
        return pred_probs
    rows = rows.cpu()
    if is_held_out(pred_probs):
        return replace(pred_probs, predictions=np.asarray(pred_probs)[rows.numpy()])
    if hasattr(pred_probs, "iloc"):
        return pred_probs.iloc[rows.tolist()]
    if hasattr(pred_probs, "columns"):
        return pred_probs[rows.tolist()]
    return to_values(pred_probs)[rows]


def _of_same_rows(held_out: Any, samples: Samples) -> Any:
    """Return held-out predictions that lack some rows of the data, with one for each sample.

    Raises:
        InvalidInput: A sample has none.
    """
    place = {row: k for k, row in enumerate(held_out.rows.tolist())}
    wanted = samples.original(torch.arange(len(samples))).tolist()
    missing = [row for row in wanted if row not in place]
    if missing:
        raise InvalidInput(
            f"Got held-out predictions without row {missing[0]}; one for every label is needed. Pass the data that "
            "they were computed from."
        )
    found = [place[row] for row in wanted]
    return replace(held_out, predictions=held_out.predictions[found], rows=np.array(wanted))


def _match_labels(pred_probs: Any, names: Sequence[str]) -> Any:
    """Return probabilities of several labels in the order of the labels, where both have names."""
    columns = _column_names(pred_probs)
    if not columns or not names or _numbers_of(columns) is not None:
        return pred_probs
    texts = [str(column) for column in columns]
    _check_named(texts, names, names, "label")
    return _with_columns(pred_probs, [texts.index(name) for name in names])


def _match_classes(pred_probs: Any, samples: Samples) -> tuple[Any, tuple[str, ...]]:
    """Return probabilities of the classes in the order of the classes, and notes."""
    labels = samples.y.cpu()
    names = samples.class_names
    columns = _column_names(pred_probs)
    if not columns:
        return _unnamed_in_order(pred_probs, labels, samples)
    texts = [str(column) for column in columns]
    occurring = labels.unique().tolist()
    numbers = _numbers_of(columns)
    is_numbered = numbers is not None and sorted(numbers) == list(range(len(numbers)))
    if names and numbers is not None and is_numbered and not set(names) <= set(texts):
        # the classes were numbers to the model
        pred_probs = _with_columns(pred_probs, _by_number(numbers))
        return _unnamed_in_order(pred_probs, labels, samples)
    if names:
        _check_named(texts, [names[k] for k in occurring], names, "class")
        is_given = _is_given(columns)
        others = [k for k, text in enumerate(texts) if text not in names and not is_given[k]]
        own = [texts.index(name) if name in texts else None for name in names]
        return _with_columns(pred_probs, [*own, *others]), ()
    if numbers is None or not set(occurring) <= set(numbers):
        return pred_probs, ()
    if is_far_above(max(numbers), len(numbers)):
        return pred_probs, ()
    return _with_columns(pred_probs, _by_number(numbers)), ()


def _check_named(
    texts: Sequence[str], needed: Sequence[str], names: Sequence[str], noun: str
) -> None:
    """Raise InvalidInput unless all classes that are needed have a column."""
    lacking = [name for name in needed if name not in texts]
    if lacking:
        plural = {"class": "classes", "label": "labels"}[noun]
        raise InvalidInput(
            f"Got pred_probs with the columns {join_names(texts)}; the {noun} {lacking[0]!r} has none. Name the "
            f"columns as the {plural}, or pass an array with the columns in the order of these: {join_names(names)}."
        )


def _column_names(pred_probs: Any) -> list[Any]:
    """Return the classes of the columns of a frame or of a held-out result (none for arrays)."""
    if is_held_out(pred_probs):
        return list(getattr(pred_probs, "classes", ()))
    columns = getattr(pred_probs, "columns", None)
    return [] if columns is None else list(columns)


def _numbers_of(columns: Sequence[Any]) -> list[int] | None:
    """Return names of columns that are all different whole numbers from 0 on as numbers, else None."""
    numbers: list[int] = []
    for name in columns:
        try:
            number = float(name)
        except (TypeError, ValueError):
            return None
        if number < 0 or number % 1:
            return None
        numbers.append(int(number))
    if len(set(numbers)) < len(numbers):
        return None
    return numbers


def _by_number(numbers: Sequence[int]) -> list[int | None]:
    """Return the index of the column of each class number, None where there is no column."""
    found = {number: k for k, number in enumerate(numbers)}
    return [found.get(number) for number in range(max(numbers) + 1)]


def _with_columns(pred_probs: Any, chosen: Sequence[int | None]) -> Any:
    """Return predictions with the columns at these indices; None is a column of zeros."""
    kept = [k for k in chosen if k is not None]
    held: Any = pred_probs if is_held_out(pred_probs) else None
    if held is not None or isinstance(pred_probs, Tensor):
        values = to_values(pred_probs)[:, kept]
    else:
        values = _to_numbers(
            pred_probs.iloc[:, kept]
        )  # a class may have the name of another column
    result = values.new_zeros(len(values), len(chosen))
    result[:, [place for place, k in enumerate(chosen) if k is not None]] = values
    if held is None:
        return result
    classes = tuple(None if k is None else held.classes[k] for k in chosen)
    return replace(held, predictions=result.numpy(), classes=classes)


def _orders(names: Sequence[str], occurring: Sequence[int], width: int) -> list[tuple[int, ...]]:
    """Return the orders of classes that columns without names may have, that of the classes first."""
    keys: list[Any] = [lambda k: k, lambda k: names[k]]
    numbers = _numbers_of(names)
    if numbers is not None:
        keys.append(lambda k: numbers[k])
    orders = [
        tuple(sorted(classes, key=key))
        for classes in (range(len(names)), occurring)
        for key in keys
        if len(classes) == width
    ]
    return list(dict.fromkeys(orders))


def _unnamed_in_order(
    pred_probs: Any, labels: Int[Tensor, " n"], samples: Samples
) -> tuple[Any, tuple[str, ...]]:
    """Return probabilities whose columns have no names in the order of the classes, and notes."""
    values = to_values(pred_probs)
    names = samples.class_names
    if not names or values.ndim != 2 or len(values) != len(labels):
        return pred_probs, ()
    orders = _orders(names, labels.unique().tolist(), values.shape[1])
    if not orders or orders == [tuple(range(values.shape[1]))]:
        return pred_probs, ()
    agreed = torch.stack([torch.tensor(order)[values.argmax(1)] == labels for order in orders])
    best = int(agreed.sum(1).argmax())
    is_decided = all(
        _agrees_more(agreed[best], other) for k, other in enumerate(agreed) if k != best
    )
    listed = [join_names(names[k] for k in order) for order in orders]
    shares = [percent(float(part.double().mean()), 1) for part in agreed]
    if not is_decided and samples.names_are_own:
        best = 0  # numbers were passed, and are those of the columns
    elif not is_decided:
        raise InvalidInput(
            f"Got pred_probs whose columns have no names; in the order of the categories ({listed[0]}) they agree with "
            f"{shares[0]} of the labels, in that of sorted names ({listed[1]}) with {shares[1]}, so that their order "
            "is not known. Pass pandas.DataFrame(pred_probs, columns=estimator.classes_)."
        )
    order = orders[best]
    if order == tuple(range(len(order))) and samples.names_are_own:
        return pred_probs, ()
    found = {number: column for column, number in enumerate(order)}
    matched = _with_columns(values, [found.get(k) for k in range(len(names))])
    if is_held_out(pred_probs):
        matched = replace(pred_probs, predictions=matched.numpy(), classes=tuple(names))
    if len(orders) == 1:
        return matched, ()
    others = ", ".join(f"{shares[k]} as {listed[k]}" for k in range(len(orders)) if k != best)
    note = (
        f"The columns of pred_probs have no names. They were read as {listed[best]}, which agrees with {shares[best]} "
        f"of the labels ({others})."
    )
    return matched, (note,)


def _agrees_more(first: Tensor, second: Tensor) -> bool:
    """Return whether the first predictions agree with significantly more labels than the second."""
    more = int((first & ~second).sum())
    fewer = int((second & ~first).sum())
    return more - fewer > MIN_ERRORS * (more + fewer) ** 0.5


def exchanged_columns(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], class_names: Sequence[str] = ()
) -> str:
    """Return why columns of probabilities look exchanged ("" if they do not).

    They do if some classes are a permutation of each other: of the labels of each, more than half are predicted as the
    next one. Errors in labels do so only where more than half of the labels of these classes are wrong.

    Args:
        probabilities: Probabilities [n, C].
        labels: Given labels.
        class_names: Names of the classes; empty if they are numbers.
    """
    n_classes = probabilities.shape[1]
    counts = torch.zeros(n_classes, n_classes, dtype=torch.float64)
    counts.index_put_(
        (labels, probabilities.argmax(1)),
        torch.ones(len(labels), dtype=torch.float64),
        accumulate=True,
    )
    most, column = counts.max(1)
    # fewer labels of a class may all be wrong by chance, by judgment
    is_moved = (
        (most > counts.sum(1) / 2) & (counts.sum(1) >= 5) & (column != torch.arange(n_classes))
    )
    moved = is_moved.nonzero().flatten().tolist()
    if not moved or sorted(column[moved].tolist()) != moved:
        return ""
    names = dict(enumerate(class_names))
    listed = join_names(
        f"column {column[k]} belongs to the class {names.get(k, k)!r}" for k in moved
    )
    if class_names:
        order = f", in this order: {join_names(class_names)}"
    else:
        order = ""
    return (
        f"The rate is not estimated from pred_probs, whose columns look exchanged: by most labels, {listed}. "
        f"Column k is needed for the class k{order}. Pass a frame with columns named as the classes."
    )
