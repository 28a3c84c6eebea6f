"""The table of data sets, and the one way to load any of them by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gapscope.data import built_in, image_sets
from gapscope.data.drawn_faces import drawn_faces
from gapscope.data.facial_keypoints import FACIAL_KEYPOINTS, facial_keypoints
from gapscope.data.location import Layout, locate
from gapscope.data.problem import Problem, Task
from gapscope.data.regression_tables import (
    BOSTON_HOUSING,
    CALIFORNIA_HOUSING,
    CONCRETE,
    RegressionTable,
    load_table,
)
from gapscope.errors import DataNotFound, InvalidInput, check_choice, nearest


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        name: Its name.
        task: "classification" or "regression".
        sizes: Training and test samples of the whole set, for people.
        licence: Licence as its publishers state it.
        load: Function that makes the Problem; its keyword-only arguments are the set's options, its argument
            `root`, if it has one, is the data root.
        layout: Its files, None where it is built in.
    """

    name: str
    task: Task
    sizes: str
    licence: str
    load: Callable[..., Problem]
    layout: Layout | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Option -> default."""
        parameters = inspect.signature(self.load).parameters.values()
        return {item.name: item.default for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}


def _table_source(table: RegressionTable, sizes: str, licence: str) -> Source:
    return Source(table.layout.source, "regression", sizes, licence, partial(load_table, table), table.layout)


_TABLE = (
    Source("digits", "classification", "1,297 + 500", "CC BY 4.0", built_in.digits),
    Source("two_circles", "classification", "100 + 1,000", "generated", built_in.two_circles),
    Source("mnist", "classification", "60,000 + 10,000", "CC BY-SA 3.0", image_sets.mnist, image_sets.MNIST),
    Source(
        "fashion_mnist",
        "classification",
        "60,000 + 10,000",
        "MIT",
        image_sets.fashion_mnist,
        image_sets.FASHION_MNIST,
    ),
    Source("cifar10", "classification", "50,000 + 10,000", "none stated", image_sets.cifar10, image_sets.CIFAR10),
    Source("cifar100", "classification", "50,000 + 10,000", "none stated", image_sets.cifar100, image_sets.CIFAR100),
    _table_source(BOSTON_HOUSING, "354 + 152", "none stated"),
    _table_source(CALIFORNIA_HOUSING, "14,448 + 6,192", "none stated"),
    _table_source(CONCRETE, "721 + 309", "CC BY 4.0"),
    Source("facial_keypoints", "regression", "1,498 + 642", "Kaggle's rules", facial_keypoints, FACIAL_KEYPOINTS),
    Source("drawn_faces", "regression", "2,000 + 500", "generated", drawn_faces),
)
SOURCES = {source.name: source for source in _TABLE}


def names() -> tuple[str, ...]:
    """Names of all data sets."""
    return tuple(SOURCES)


def _source(name: str) -> Source:
    check_choice("Name of a data set", name, names())
    return SOURCES[name]


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless the data set exists, knows all options, and they have the right types.

    Args:
        name: Name of a data set.
        options: Its options.

    Raises:
        InvalidInput: The name, an option or its type is wrong; the nearest right name is given.
    """
    known = _source(name).options
    for option, value in options.items():
        if option not in known:
            raise InvalidInput(
                f"Data set '{name}' has no option {option!r}; it knows {', '.join(known) or 'none'}."
                f"{nearest(option, known)}"
            )
        kind = type(known[option])
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool) == isinstance(value, bool)
        if not fits:
            raise InvalidInput(
                f"Option {option!r} of data set '{name}' must be of type {kind.__name__}; "
                f"got {value!r} ({type(value).__name__})."
            )


def found(name: str, *, root: str | Path | None = None) -> str:
    """Return the folder that holds a data set, "built in" for one that needs no files, "" where it is not here.

    Args:
        name: Name of a data set.
        root: The data root, see `gapscope.data.location.data_root`.

    Returns:
        Where it is.

    Raises:
        InvalidInput: There is no such data set.

    >>> found("digits")
    'built in'
    """
    layout = _source(name).layout
    if layout is None:
        return "built in"
    try:
        return str(next(iter(locate(layout, root).values())).parent)
    except DataNotFound:
        return ""


def load(name: str, *, root: str | Path | None = None, **options: Any) -> Problem:
    """Return a data set as a Problem: inputs float32, images in [0, 1], labels int64, regression targets float32.

    Args:
        name: One of `names()`.
        root: The data root, see `gapscope.data.location.data_root`.
        options: Settings of the data set, for example `noise` of "two_circles".

    Returns:
        The problem.

    Raises:
        InvalidInput: The name or an option does not exist; the nearest right one is named.
        DataNotFound: The files are not on this machine; the message says what to run.
        UnreadableFile: A file is truncated or of another format.

    >>> load("digits").input_shape
    (1, 8, 8)
    """
    check_options(name, options)
    source = SOURCES[name]
    return source.load(**options) if source.layout is None else source.load(root, **options)
