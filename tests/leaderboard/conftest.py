"""The real table of 96 networks that rank protocols are checked on."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest


@pytest.fixture(scope="session")
def pgdl() -> pandas.DataFrame:
    """CIFAR-10 networks of the PGDL competition, task 1: gap, hyperparameters (hp.*), measures (m.*)."""
    return pandas.read_csv(Path(__file__).parents[1] / "fixtures" / "pgdl_task1_v4.csv")
