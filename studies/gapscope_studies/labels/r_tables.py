"""Tables of R packages, as Debian distributes them.

They are read from `study-work/r-cran`, a folder of unpacked packages, with the package rdata (pip install rdata):

    for name in aer caret cardata dslabs ipred kernlab mass mclust mda mlbench modeldata; do
        apt-get download r-cran-$name && dpkg-deb -x r-cran-${name}_*.deb study-work/r-cran
    done
"""

from __future__ import annotations

import gzip
import lzma
import struct
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

FOLDER = Path("study-work/r-cran")
MAX_ROWS = 4000
# name -> package, object, columns of the label, and columns that are dropped
TABLES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "crabs": ("MASS", "crabs", ("sp", "sex"), ("index",)),
    "space shuttle": ("MASS", "shuttle", ("use",), ()),
    "students": ("MASS", "survey", ("Sex",), ()),
    "synthetic": ("MASS", "synth.tr", ("yc",), ()),
    "cats": ("MASS", "cats", ("Sex",), ()),
    "banknotes": ("mclust", "banknote", ("Status",), ()),
    "diabetes": ("mclust", "diabetes", ("class",), ()),
    "chevron": ("mclust", "chevron", ("class",), ()),
    "penguins": ("modeldata", "penguins", ("species",), ()),
    "sex of penguins": ("modeldata", "penguins", ("sex",), ()),
    "two classes": ("modeldata", "two_class_dat", ("Class",), ()),
    "parabolic": ("modeldata", "parabolic", ("class",), ()),
    "bivariate": ("modeldata", "bivariate_train", ("Class",), ()),
    "cells": ("modeldata", "cells", ("class",), ("case",)),
    "job times": ("modeldata", "hpc_data", ("class",), ()),
    "dementia": ("modeldata", "ad_data", ("Class",), ()),
    "speech": ("modeldata", "pd_speech", ("class",), ()),
    "churn": ("modeldata", "mlc_churn", ("churn",), ("state",)),
    "credit": ("modeldata", "credit_data", ("Status",), ()),
    "attrition": ("modeldata", "attrition", ("Attrition",), ()),
    "olive oils": ("dslabs", "olive", ("area",), ("region",)),
    "two and seven": ("dslabs", "mnist_27", ("y",), ()),
    "tissues": ("dslabs", "tissue_gene_expression", ("y",), ()),
    "musk": ("kernlab", "musk", ("Class",), ()),
    "soybean": ("mlbench", "Soybean", ("Class",), ()),
    "mixture": ("mda", "ESL.mixture", ("y",), ()),
    "inhibitors": ("caret", "dhfr", ("Y",), ()),
    "glaucoma": ("ipred", "GlaucomaMVF", ("Class",), ()),
    "dystrophy": ("ipred", "dystrophy", ("Class",), ("OBS", "HospID")),
    "bank jobs": ("AER", "BankWages", ("job",), ()),
    "credit cards": ("AER", "CreditCard", ("card",), ()),
    "professors": ("carData", "Salaries", ("rank",), ()),
    "voters": ("carData", "BEPS", ("vote",), ()),
    "labour force": ("carData", "Mroz", ("lfp",), ()),
}


def _stored_object(path: Path, name: str) -> Any:
    """Return one object of a database of R (pairs of files .rdx and .rdb)."""
    import rdata  # pyright: ignore[reportMissingImports]

    convert, parse = rdata.conversion.convert, rdata.parser.parse_data
    index: Any = convert(parse(gzip.decompress(path.with_suffix(".rdx").read_bytes())))
    start, length = (int(value) for value in index["variables"][name])
    # four bytes are the length of the content
    content = path.read_bytes()[start + struct.calcsize(">I") : start + length]
    if content[:1] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        return convert(parse(lzma.decompress(content[1:], lzma.FORMAT_RAW, None, filters)))
    return convert(parse(zlib.decompress(content)))


@cache
def _object(package: str, name: str) -> Any:
    import rdata  # pyright: ignore[reportMissingImports]

    warnings.filterwarnings("ignore", module="rdata")
    folder = next(FOLDER.glob(f"usr/lib/R/*library/{package}/data"))
    if (folder / "Rdata.rdb").exists():
        return _stored_object(folder / "Rdata.rdb", name)
    file = next(path for path in folder.iterdir() if path.stem == name)
    objects: Any = rdata.read_rda(file)
    return objects[name]


def _frame(package: str, name: str) -> pandas.DataFrame:
    """Return a table; arrays with classes become one."""
    found = _object(package, name)
    if isinstance(found, pandas.DataFrame):
        return found
    parts = {str(key): value for key, value in found.items()}
    if "train" in parts:
        return parts["train"]
    frame = pandas.DataFrame(np.asarray(parts["x"], dtype=np.float64))
    return frame.assign(y=np.asarray(parts["y"]))


def read_r_table(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs [n, d] and labels 0 to C - 1 [n] of at most 4,000 rows in random order.

    Text becomes one column per value, missing numbers the median. Rows without a label are dropped.

    Args:
        name: Name in `TABLES`.
    """
    package, stored, target, dropped = TABLES[name]
    frame = _frame(package, stored).dropna(subset=[*target]).reset_index(drop=True)
    frame = frame.sample(frac=1, random_state=0).head(MAX_ROWS)
    labels = frame[[*target]].astype(str).agg(" ".join, axis=1)
    inputs = frame.drop(columns=[*target, *dropped])
    inputs = pandas.get_dummies(inputs)
    inputs = inputs.fillna(inputs.median()).to_numpy(dtype=np.float32)
    return torch.as_tensor(inputs), torch.as_tensor(np.unique(labels, return_inverse=True)[1])
