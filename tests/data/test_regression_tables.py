from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from gapscope.data.built_in import (
    BOSTON_HOUSING,
    CALIFORNIA_HOUSING,
    CONCRETE,
    RegressionTable,
    load_table,
)
from gapscope.data.location import FileLayout
from gapscope.data.problem import Problem


def all_targets(problem: Problem) -> torch.Tensor:
    assert problem.train.targets is not None and problem.test.targets is not None
    return torch.cat((problem.train.targets, problem.test.targets)).double()


@pytest.mark.parametrize(
    ("table", "n_train", "n_test", "inputs", "mean", "low", "high"),
    [
        (BOSTON_HOUSING, 354, 152, 13, 22.532806, 5.0, 50.0),
        (CALIFORNIA_HOUSING, 14_448, 6_192, 8, 2.06855816909, 0.14999, 5.00001),
        (CONCRETE, 721, 309, 8, 35.8180, 2.33, 82.60),
    ],
)
def test_sizes_and_published_statistics(
    request: pytest.FixtureRequest,
    table: RegressionTable,
    n_train: int,
    n_test: int,
    inputs: int,
    mean: float,
    low: float,
    high: float,
) -> None:
    # the concrete that stands in is the real one
    problem = load_table(table, request.getfixturevalue("data_root" if table is CONCRETE else "real_data_root"))
    assert (len(problem.train), len(problem.test), problem.input_shape) == (n_train, n_test, (inputs,))
    targets = all_targets(problem)
    assert float(targets.mean()) == pytest.approx(mean, abs=5e-5)
    assert float(targets.min()) == pytest.approx(low, rel=1e-6)
    assert float(targets.max()) == pytest.approx(high, rel=1e-6)


def test_inputs_are_standardized_on_the_training_rows_alone(data_root: Path) -> None:
    problem = load_table(CONCRETE, data_root)
    train = problem.train.inputs.double()
    assert train.mean(0).abs().max() < 1e-6
    assert (train.std(0, correction=0) - 1).abs().max() < 1e-6
    assert problem.test.inputs.double().mean(0).abs().max() > 1e-3


def test_raw_inputs_on_request_from_the_same_rows(data_root: Path) -> None:
    raw, standard = (load_table(CONCRETE, data_root, standardize=choice) for choice in (False, True))
    both = torch.cat((raw.train.inputs, raw.test.inputs)).double()
    assert float(both[:, 0].mean()) == pytest.approx(281.167864, abs=1e-5)
    rebuilt = standard.test.inputs * raw.train.inputs.std(0, correction=0) + raw.train.inputs.mean(0)
    assert torch.allclose(rebuilt, raw.test.inputs, rtol=1e-3, atol=1e-2)


def test_both_forms_of_the_boston_table_hold_the_same_numbers(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "boston-housing").mkdir()
    shutil.copyfile(data_root / "boston_housing" / "housing.data", tmp_path / "boston-housing" / "housing.data")
    plain, csv = load_table(BOSTON_HOUSING, tmp_path), load_table(BOSTON_HOUSING, data_root)
    assert torch.equal(plain.train.inputs, csv.train.inputs)
    assert torch.equal(all_targets(plain), all_targets(csv))


def test_a_constant_column_becomes_zero(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.csv").write_text("a,b,y\n" + "".join(f"{i},7,{i}\n" for i in range(10)))
    toy = RegressionTable(FileLayout("toy", ("toy",), {"table": ("toy.csv",)}), "a,b,y")
    problem = load_table(toy, tmp_path)
    assert problem.train.inputs[:, 1].tolist() == [0.0] * 7
    assert problem.train.inputs[:, 0].std() > 0
