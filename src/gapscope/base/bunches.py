"""Data sets of scikit-learn, each a `Bunch` of inputs, target, their names and a description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def is_bunch(value: Any) -> bool:
    """Return whether a value is a `sklearn.utils.Bunch` with inputs and a target.

    Args:
        value: Data in any form.
    """
    if type(value).__name__ != "Bunch" or not type(value).__module__.startswith("sklearn."):
        return False
    return value.get("data") is not None and value.get("target") is not None


def _named(values: Any, names: Sequence[Any] | None) -> Any:
    """Return a matrix with a name per column as a frame, other values as they are."""
    import numpy
    import pandas

    is_matrix = type(values) is numpy.ndarray and values.ndim == 2
    if not is_matrix or names is None or len(names) != values.shape[1]:
        return values
    return pandas.DataFrame(values, columns=[str(name) for name in names])


def _named_classes(target: Any, names: Sequence[Any] | None) -> Any:
    """Return class numbers as the names that the data set has for them, other targets as they are."""
    import pandas

    labels = pandas.Series(target)
    is_class = pandas.api.types.is_integer_dtype(labels) and len(labels) > 0
    if not is_class or names is None or labels.min() < 0 or labels.max() >= len(names):
        return target
    if len(set(names)) < len(names) or list(map(str, names)) == [str(k) for k in range(len(names))]:
        return target
    named: Any = pandas.Categorical([str(names[k]) for k in labels], [str(name) for name in names])
    return pandas.Series(named, index=labels.index, name=labels.name)


def as_pair(bunch: Any) -> tuple[Any, Any]:
    """Return the inputs and the target of a data set of scikit-learn, with the names that it has for both.

    Args:
        bunch: A Bunch (`is_bunch`).
    """
    names = bunch.get("target_names")
    target = bunch["target"]
    if getattr(target, "ndim", 1) == 1:
        target = _named_classes(target, names)
    else:
        target = _named(target, names)
    return _named(bunch["data"], bunch.get("feature_names")), target


def as_table(bunch: Any) -> pandas.DataFrame:
    """Return the inputs and the target of a data set of scikit-learn as one frame, the target last.

    Args:
        bunch: A Bunch (`is_bunch`) of inputs [n, d] and one target per sample.
    """
    import numpy
    import pandas

    inputs, target = as_pair(bunch)
    name = getattr(target, "name", None) or "target"
    return pandas.DataFrame(inputs).assign(**{str(name): numpy.asarray(target)})
