"""Data sets by name, with their readers and origins.

Studies add theirs by the attribute `data_sets` of the objects that the entry points `gapscope.studies` name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import DataNotFound, check_choice
from gapscope.base.options import check_known, coerce
from gapscope.data import built_in, image_sets
from gapscope.data.built_in import (
    BOSTON_HOUSING,
    CALIFORNIA_HOUSING,
    CONCRETE,
    RegressionTable,
    load_table,
)
from gapscope.data.downloads import Origin, Progress, RemoteFile, download
from gapscope.data.facial_keypoints import FACIAL_KEYPOINTS, facial_keypoints
from gapscope.data.image_folder import IMAGE_FOLDER, image_folder
from gapscope.data.location import FileLayout, data_root, locate
from gapscope.data.problem import Problem, Task


@dataclass(frozen=True)
class Source:
    """One data set."""

    name: str
    task: Task
    sizes: str  # numbers of training and test samples of the complete set, as text
    licence: str  # as stated by its publishers
    # takes the data root, if there are files; keyword-only arguments are its options
    load: Callable[..., Problem]
    layout: FileLayout | None = None  # None if it is built in
    origin: Origin | None = (
        None  # None if files cannot be fetched; `by_hand` then explains how to get them
    )
    by_hand: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """Option -> default."""
        parameters = inspect.signature(self.load).parameters.values()
        return {
            item.name: item.default
            for item in parameters
            if item.kind is inspect.Parameter.KEYWORD_ONLY
        }


_MNIST_FILES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
_MNIST_FILES += ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")


def _mnist_origin(base_url: str, *md5: str) -> Origin:
    files = (
        RemoteFile(name, f"md5:{digest}") for name, digest in zip(_MNIST_FILES, md5, strict=True)
    )
    return Origin(base_url, tuple(files))


def _archive_origin(base_url: str, name: str, checksum: str, folder: str, *members: str) -> Origin:
    return Origin(
        base_url, (RemoteFile(name, checksum, tuple(f"{folder}/{member}" for member in members)),)
    )


_MNIST = _mnist_origin(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION_MNIST = _mnist_origin(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_CIFAR10 = _archive_origin(
    "https://www.cs.toronto.edu/~kriz/",
    "cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    *(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test_batch.bin",
)
_CIFAR100 = _archive_origin(
    "https://www.cs.toronto.edu/~kriz/",
    "cifar-100-binary.tar.gz",
    "md5:03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    *("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"),
)
_BOSTON = Origin(
    "https://archive.ics.uci.edu/ml/machine-learning-databases/housing/",
    (
        RemoteFile(
            "housing.data",
            "sha256:baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
        ),
    ),
)
_CALIFORNIA = _archive_origin(
    "https://ndownloader.figshare.com/files/",
    "5976036",
    "sha256:aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",
    "CaliforniaHousing",
    "cal_housing.data",
)


def _table(
    table: RegressionTable,
    sizes: str,
    licence: str,
    origin: Origin | None = None,
    by_hand: str = "",
) -> Source:
    load = partial(load_table, table)
    return Source(
        table.layout.source, "regression", sizes, licence, load, table.layout, origin, by_hand
    )


def _images(
    load: Callable[..., Problem], layout: FileLayout, sizes: str, licence: str, origin: Origin
) -> Source:
    return Source(layout.source, "classification", sizes, licence, load, layout, origin)


_TABLE = (
    Source("digits", "classification", "1,297 + 500", "CC BY 4.0", built_in.digits),
    Source("two_circles", "classification", "100 + 1,000", "generated", built_in.two_circles),
    _images(image_sets.mnist, image_sets.MNIST, "60,000 + 10,000", "CC BY-SA 3.0", _MNIST),
    _images(
        image_sets.fashion_mnist, image_sets.FASHION_MNIST, "60,000 + 10,000", "MIT", _FASHION_MNIST
    ),
    _images(image_sets.cifar10, image_sets.CIFAR10, "50,000 + 10,000", "none stated", _CIFAR10),
    _images(image_sets.cifar100, image_sets.CIFAR100, "50,000 + 10,000", "none stated", _CIFAR100),
    _table(BOSTON_HOUSING, "354 + 152", "none stated", _BOSTON),
    _table(CALIFORNIA_HOUSING, "14,448 + 6,192", "none stated", _CALIFORNIA),
    _table(
        CONCRETE,
        "721 + 309",
        "CC BY 4.0",
        by_hand="Download the table from https://doi.org/10.24432/C5PK67 and save it as {path}, a CSV file with the "
        f"columns {CONCRETE.header}.",
    ),
    Source(
        "facial_keypoints",
        "regression",
        "1,498 + 642",
        "Kaggle's rules",
        facial_keypoints,
        FACIAL_KEYPOINTS,
        by_hand="Kaggle requires an account: accept the rules on https://www.kaggle.com/c/facial-keypoints-detection, "
        "download training.zip, and unpack training.csv to {path}.",
    ),
    Source(
        "image_folder",
        "classification",
        "yours",
        "yours",
        image_folder,
        IMAGE_FOLDER,
        by_hand="Copy your photographs to {path}/CLASS/*.jpg, and those of the test split to val, next to train.",
    ),
)
SOURCES = {source.name: source for source in _TABLE}


def dataset_names() -> tuple[str, ...]:
    """Return the names of all data sets of the package."""
    return tuple(SOURCES)


@cache
def _sources_of_studies() -> dict[str, Source]:
    studies = []
    for point in entry_points(group="gapscope.studies"):
        with suppress(ImportError):  # a broken study must not hide the data sets of the others
            studies.append(point.load())
    return {source.name: source for study in studies for source in getattr(study, "data_sets", ())}


def _source(name: str) -> Source:
    if name in SOURCES:
        available = SOURCES
    else:
        available = SOURCES | _sources_of_studies()
    check_choice("Name of a data set", name, tuple(available))
    return available[name]


def check_dataset_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for unknown data sets and options, or options of the wrong type.

    Args:
        name: Name of the data set; `gapscope data list` shows them.
        options: Settings of the data set by name, such as `noise` of "two_circles".
    """
    defaults = _source(name).options
    check_known(f"Data set '{name}'", options, defaults)
    for option, value in options.items():
        coerce(f"Option {option!r} of data set '{name}'", value, type(defaults[option]))


def find_dataset(name: str, *, root: str | Path | None = None) -> str:
    """Return a data set's folder ("built in" without files, "" if missing).

    Args:
        name: Name of the data set; `gapscope data list` shows them.
        root: Folder of the data sets; None for GAPSCOPE_DATA or the cache folder of the user.
    """
    layout = _source(name).layout
    if layout is None:
        return "built in"
    try:
        return str(next(iter(locate(layout, root).values())).parent)
    except DataNotFound:
        return ""


@check_arguments
def load_dataset(name: str, *, root: str | Path | None = None, **options: Any) -> Problem:
    """Load a data set as a Problem (images in [0, 1], labels int64).

    Args:
        name: Name of the data set; `gapscope data list` shows them.
        root: Folder of the data sets; None for GAPSCOPE_DATA or the cache folder of the user.
        options: Settings of the data set, for example `noise` of "two_circles".

    Raises:
        DataNotFound: The files are not on this machine.
        UnreadableFile: A file is truncated or of another format.

    >>> load_dataset("digits").input_shape
    (1, 8, 8)
    """
    check_dataset_options(name, options)
    source = _source(name)
    if source.layout is None:
        return source.load(**options)
    return source.load(root, **options)


def fetch(
    name: str,
    *,
    root: str | Path | None = None,
    base_url: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Return the official files of a data set (none if built in), downloading missing ones.

    Args:
        name: Name of a data set, one of `dataset_names()`.
        root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
        base_url: Another server with the same files.
        progress: Called with the name of the file, the bytes received, and all bytes (None if unknown).

    Raises:
        DataNotFound: The set cannot be fetched automatically.
        UnreadableFile: The received file has another checksum; it is deleted.
        GapscopeError: The server cannot be reached or responds with an error, or the data root cannot be written.
    """
    source = _source(name)
    if source.layout is None:
        return []
    folder = data_root(root) / source.layout.folders[0]
    if source.origin is None:
        path = folder / next(iter(source.layout.required.values()))[0]
        raise DataNotFound(
            f"Data set '{name}' cannot be fetched. {source.by_hand.format(path=path)}"
        )
    return download(source.origin, folder, base_url=base_url, progress=progress)
