"""Regression problems from tables: Boston and California housing, strength of concrete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.data.csv_tables import read_table
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem
from gapscope.data.splits import split_indices


@dataclass(frozen=True)
class RegressionTable:
    """Table whose last column is the target: files, columns, and the target's unit."""

    layout: FileLayout
    header: str
    target_unit: float = 1.0


BOSTON_HOUSING = RegressionTable(
    FileLayout(
        "boston_housing", ("boston_housing", "boston-housing"), {"table": ("boston_housing.csv", "housing.data")}
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


def _standardized(inputs: Tensor, train: Tensor) -> Tensor:
    """Standardize inputs over the training rows (a constant column becomes 0)."""
    mean, std = inputs[train].mean(0), inputs[train].std(0, correction=0)
    return (inputs - mean) / torch.where(std > 0, std, 1.0)


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
    - California housing (Pace & Barry 1997): 20,640 block groups, 8 inputs (counts, not scikit-learn's averages a
      household), median house value in 100,000 USD as in scikit-learn.
    - Concrete (Yeh 1998): 1,030 mixtures, 8 inputs, compressive strength in MPa. Some rows repeat, so that a few test
      rows also stand in the training split.

    Args:
        test_fraction: Fraction of rows to test on, see `split_indices`.
        standardize: Whether inputs get mean 0 and (population) variance 1 over the training rows.
    """
    numbers = read_table(locate(table.layout, root)["table"], table.header.split(","))
    train, test = split_indices(len(numbers), test_fraction, split_seed)
    inputs, targets = numbers[:, :-1], numbers[:, -1:] / table.target_unit
    samples = Samples((_standardized(inputs, train) if standardize else inputs).float(), targets.float())
    return Problem(table.layout.source, "regression", samples.subset(train), samples.subset(test), n_outputs=1)
