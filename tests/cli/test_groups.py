"""`--groups`: a column of groups is held out together, and is no input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from support.commands import gapscope


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Write three nearly equal visits of each of 40 patients, whose labels are those of coin tosses."""
    rng = np.random.default_rng(0)
    patients = rng.permutation(np.repeat(np.arange(40), 3))
    values = rng.normal(size=(40, 6))[patients] + 0.01 * rng.normal(size=(120, 6))
    table = pandas.DataFrame(values, columns=[f"value {i}" for i in range(6)])
    table["patient_age"] = rng.integers(20, 80, 120)
    table["sick"] = rng.integers(0, 2, 40)[patients]
    table["patient"] = [f"p{number}" for number in patients]
    path = tmp_path / "visits.csv"
    table.to_csv(path, index=False)
    return path


def printed(*arguments: str) -> Any:
    done = gapscope(*arguments, "--json")
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_forecast_of_new_patients(visits: Path) -> None:
    alone, held = (
        printed("forecast", str(visits), "--target", "sick", *more)["forecasts"][0]
        for more in ((), ("--groups", "patient"))
    )
    assert alone["score"] == 1.0
    assert held["groups"] == 40
    assert held["abstained_because"] or held["low"] < 0.6


@pytest.mark.thorough
def test_label_errors_that_the_visits_share(visits: Path) -> None:
    given = ("labels", str(visits), "--target", "sick")
    assert not printed(*given)["note"]
    assert "cannot be estimated" in printed(*given, "--groups", "patient")["note"]
    shown = gapscope(*given, "--groups", "patient", "--test", str(visits))
    assert "leave-one-group-out, 40 groups" in shown.stdout


def test_a_column_of_groups_alone_is_left_out(visits: Path, tmp_path: Path) -> None:
    from gapscope.cli.arguments import read_labelled_table

    table = read_labelled_table(visits, None, groups="patient")
    assert table.target == "sick"  # the last column without the groups
    assert list(table.inputs) == [*(f"value {i}" for i in range(6)), "patient_age"]
    assert table.groups is not None and len(set(table.groups)) == 40


@pytest.mark.parametrize("command", ["forecast", "labels"])
def test_bad_groups(command: str, visits: Path, tmp_path: Path) -> None:
    done = gapscope(command, str(visits), "--groups", "patien")
    assert done.returncode != 0 and "Did you mean 'patient'?" in done.stderr
    done = gapscope(command, str(tmp_path), "--groups", "patient")
    assert done.returncode == 2 and "pass a table" in done.stderr
