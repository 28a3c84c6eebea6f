"""Small data sets: digits, two circles, and tables for regression."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.data.file_formats import read_table
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem, split_indices


def digits() -> Problem:
    """Load 1,797 handwritten digits of 8 x 8 pixels from scikit-learn (500 for the test).

    Pixels are divided by 16. The split is stratified by class and fixed (scikit-learn's train_test_split with
    random_state 0).

    Reference: Alpaydin & Kaynak 1998, UCI "Optical Recognition of Handwritten Digits", test part.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch: Any = load_digits()
    inputs = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    train, test = (
        torch.from_numpy(indices)
        for indices in train_test_split(
            np.arange(len(labels)), test_size=500, stratify=bunch.target, random_state=0
        )
    )
    samples = Samples(inputs, labels)
    names = tuple(str(digit) for digit in range(10))
    return Problem(
        "digits", "classification", samples.subset(train), samples.subset(test), 10, names
    )


def two_circles(
    *, n: int = 100, factor: float = 0.5, noise: float = 0.2, test_size: int = 1000, seed: int = 0
) -> Problem:
    r"""Make two concentric circles with noise: class 0 on radius 1, class 1 on radius `factor`.

    Points are equally spaced on each circle, $x = r (\cos t, \sin t) + \epsilon$, $\epsilon \sim N(0, noise^2 I)$
    (scikit-learn's make_circles). At factor 0.5 and noise 0.2 the accuracy of the best classifier is 0.890.

    Args:
        n: Training points of both circles together, at least 2.
        factor: Radius of the inner circle, in [0, 1).
        noise: Standard deviation of the noise of each coordinate.
        test_size: Test points, at least 2, sampled independently of n.
        seed: Seed of the samples, or of their split into training and test.
    """
    from sklearn.datasets import make_circles

    for option, value, low in (
        ("n", n, 2),
        ("test_size", test_size, 2),
        ("noise", noise, 0),
        ("seed", seed, 0),
    ):
        check_range(f"{option} of two_circles", value, low)
    check_range("factor of two_circles", factor, 0, 1, high_open=True)
    splits = []
    for stream, size in enumerate((n, test_size)):
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, stream))))
        points, labels = make_circles(
            n_samples=size, factor=factor, noise=noise, random_state=random
        )
        splits.append(
            Samples(torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels).long())
        )
    return Problem(
        "two_circles", "classification", *splits, n_outputs=2, class_names=("outer", "inner")
    )


@dataclass(frozen=True)
class RegressionTable:
    """Table whose last column is the target: files, columns, and the target's unit."""

    layout: FileLayout
    header: str
    target_unit: float = 1.0


BOSTON_HOUSING = RegressionTable(
    FileLayout(
        "boston_housing",
        ("boston_housing", "boston-housing"),
        {"table": ("boston_housing.csv", "housing.data")},
    ),
    "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT,MEDV",
)
CALIFORNIA_HOUSING = RegressionTable(
    FileLayout(
        "california_housing",
        ("california_housing", "california-housing"),
        {"table": ("california_housing.csv", "cal_housing.data")},
    ),
    "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,median_income,"
    "median_house_value",
    target_unit=100_000.0,
)
CONCRETE = RegressionTable(
    FileLayout("concrete", ("concrete",), {"table": ("concrete.csv",)}),
    "cement,blast_furnace_slag,fly_ash,water,superplasticizer,coarse_aggregate,fine_aggregate,age,compressive_strength",
)


def load_table(
    table: RegressionTable,
    root: str | Path | None = None,
    *,
    test_fraction: float = 0.3,
    split_seed: int = 0,
    standardize: bool = True,
) -> Problem:
    """Return the problem of a table, inputs [n, columns - 1], target [n, 1].

    - Boston housing (Harrison & Rubinfeld 1978): 506 towns, 13 inputs, median home value in 1000 USD, capped at 50.
      One input was built from the proportion of Black residents: for comparison with published numbers only.
    - California housing (Pace & Barry 1997): 20,640 block groups, 8 inputs (counts, not scikit-learn's averages per
      household), median house value in 100,000 USD as in scikit-learn.
    - Concrete (Yeh 1998): 1,030 mixtures, 8 inputs, compressive strength in MPa. Some rows are duplicates, so that the
      training split contains a few test rows.

    Args:
        table: `BOSTON_HOUSING`, `CALIFORNIA_HOUSING` or `CONCRETE`.
        root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
        test_fraction: Fraction of rows for the test, see `split_indices`.
        split_seed: Seed of the samples, or of their split into training and test.
        standardize: Whether to scale inputs to mean 0 and (population) variance 1 over the training rows.
    """
    numbers = read_table(locate(table.layout, root)["table"], table.header.split(","))
    train, test = split_indices(len(numbers), test_fraction, split_seed)
    inputs = numbers[:, :-1]
    targets = numbers[:, -1:] / table.target_unit
    if standardize:
        mean = inputs[train].mean(0)
        std = inputs[train].std(0, correction=0)
        inputs = (inputs - mean) / torch.where(std > 0, std, 1.0)  # a constant column becomes 0
    samples = Samples(inputs.float(), targets.float())
    return Problem(
        table.layout.source, "regression", samples.subset(train), samples.subset(test), n_outputs=1
    )
