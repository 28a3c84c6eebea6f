"""The one way to any data set: by its name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gapscope.base.errors import DataNotFound, check_choice
from gapscope.base.options import check_known, coerce
from gapscope.data.catalogue import SOURCES, Source
from gapscope.data.downloads import Progress, download
from gapscope.data.location import data_root, locate
from gapscope.data.problem import Problem


def dataset_names() -> tuple[str, ...]:
    """Names of all data sets."""
    return tuple(SOURCES)


def _source(name: str) -> Source:
    check_choice("Name of a data set", name, dataset_names())
    return SOURCES[name]


def check_dataset_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for unknown data sets and options, or options of wrong type.

    Raises:
        InvalidInput: The name, an option or its type is wrong.
    """
    known = _source(name).options
    check_known(f"Data set '{name}'", options, known)
    for option, value in options.items():
        coerce(f"Option {option!r} of data set '{name}'", value, type(known[option]))


def find_dataset(name: str, *, root: str | Path | None = None) -> str:
    """Return a data set's folder ("built in" without files, "" if missing).

    Raises:
        InvalidInput: There is no such data set.

    >>> find_dataset("digits")
    'built in'
    """
    layout = _source(name).layout
    if layout is None:
        return "built in"
    try:
        return str(next(iter(locate(layout, root).values())).parent)
    except DataNotFound:
        return ""


def load_dataset(name: str, *, root: str | Path | None = None, **options: Any) -> Problem:
    """Load a data set as a Problem (images in [0, 1], labels int64).

    Args:
        options: Settings of the data set, for example `noise` of "two_circles".

    Raises:
        InvalidInput: The name or an option does not exist.
        DataNotFound: The files are not on this machine.
        UnreadableFile: A file is truncated or of another format.

    >>> load_dataset("digits").input_shape
    (1, 8, 8)
    """
    check_dataset_options(name, options)
    source = SOURCES[name]
    return source.load(**options) if source.layout is None else source.load(root, **options)


def fetch(
    name: str, *, root: str | Path | None = None, base_url: str | None = None, progress: Progress | None = None
) -> list[Path]:
    """Return the official files of a data set (none if built in), downloading missing ones.

    Args:
        progress: Called with the file's name, the bytes that have arrived, and all bytes (None if unknown).

    Raises:
        InvalidInput: There is no such data set, or base_url is no address.
        DataNotFound: The set cannot be fetched automatically.
        UnreadableFile: What arrived has another checksum; it is deleted.
        GapscopeError: The server cannot be reached or responds with an error, or the data root cannot be written.
    """
    source = _source(name)
    if source.layout is None:
        return []
    folder = data_root(root) / source.layout.folders[0]
    if source.origin is None:
        path = folder / next(iter(source.layout.required.values()))[0]
        raise DataNotFound(f"Data set '{name}' cannot be fetched. {source.by_hand.format(path=path)}")
    return download(source.origin, folder, base_url=base_url, progress=progress)
