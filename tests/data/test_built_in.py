from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits

from gapscope.base.samples import Samples
from gapscope.data.built_in import (
    BOSTON_HOUSING,
    CALIFORNIA_HOUSING,
    CONCRETE,
    RegressionTable,
    digits,
    load_table,
    two_circles,
)
from gapscope.data.location import FileLayout
from gapscope.data.problem import Problem


def test_digits_contain_every_sample_of_scikit_learn_once() -> None:
    problem = digits()
    assert (len(problem.train), len(problem.test), problem.input_shape) == (1297, 500, (1, 8, 8))
    both = torch.cat((problem.train.inputs, problem.test.inputs)).reshape(1797, 64) * 16
    pixels, _ = load_digits(return_X_y=True)
    original = torch.as_tensor(pixels, dtype=torch.float32)
    assert sorted(both.tolist()) == sorted(original.tolist())
    assert problem.train.inputs.dtype == torch.float32 and float(problem.train.inputs.max()) == 1


def test_the_split_of_digits_is_stratified_and_fixed() -> None:
    problem = digits()
    counts = torch.bincount(problem.train.y) + torch.bincount(problem.test.y)
    expected = counts * 500 / 1797
    assert ((torch.bincount(problem.test.y) - expected).abs() < 1).all()
    assert problem.test.y[:10].tolist() == [4, 8, 8, 3, 9, 0, 6, 3, 9, 8]


def radii(samples: Samples, label: int) -> torch.Tensor:
    return samples.inputs[samples.targets == label].norm(dim=1)


def test_without_noise_the_circles_have_their_radii() -> None:
    problem = two_circles(n=101, factor=0.3, noise=0.0, test_size=40)
    assert (len(problem.train), len(problem.test)) == (101, 40)
    for samples in (problem.train, problem.test):
        assert torch.allclose(radii(samples, 0), torch.tensor(1.0))
        assert torch.allclose(radii(samples, 1), torch.tensor(0.3))


def test_accuracy_of_the_best_classifier_of_two_circles() -> None:
    problem = two_circles(test_size=40_000)
    # Likelihood of a point at distance r from the middle of N(0, s^2) around a circle of radius a, up to a factor:
    # exp(-(r^2 + a^2) / 2 s^2) I_0(r a / s^2).
    r = problem.test.inputs.double().norm(dim=1)
    log_outer, log_inner = (
        -(r**2 + a**2) / 0.08 + torch.log(torch.special.i0e(r * a / 0.04)) + r * a / 0.04
        for a in (1.0, 0.5)
    )
    accuracy = ((log_inner > log_outer).long() == problem.test.targets).double().mean()
    assert abs(float(accuracy) - 0.890) < 0.006


def test_test_points_do_not_depend_on_the_number_of_training_points() -> None:
    few, many = two_circles(n=10), two_circles(n=50)
    assert torch.equal(few.test.inputs, many.test.inputs)
    assert not torch.equal(two_circles(seed=1).test.inputs, few.test.inputs)
    assert not torch.equal(
        two_circles(n=20, test_size=20).train.inputs, two_circles(n=20, test_size=20).test.inputs
    )


def all_targets(problem: Problem) -> torch.Tensor:
    return torch.cat((problem.train.y, problem.test.y)).double()


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
    # the fixture has the real concrete table
    problem = load_table(
        table, request.getfixturevalue("data_root" if table is CONCRETE else "real_data_root")
    )
    assert (len(problem.train), len(problem.test), problem.input_shape) == (
        n_train,
        n_test,
        (inputs,),
    )
    targets = all_targets(problem)
    assert float(targets.mean()) == pytest.approx(mean, abs=5e-5)
    assert float(targets.min()) == pytest.approx(low, rel=1e-6)
    assert float(targets.max()) == pytest.approx(high, rel=1e-6)


def test_inputs_are_standardized_on_the_training_rows_unless_raw(data_root: Path) -> None:
    raw, standard = (
        load_table(CONCRETE, data_root, standardize=choice) for choice in (False, True)
    )
    both = torch.cat((raw.train.inputs, raw.test.inputs)).double()
    assert float(both[:, 0].mean()) == pytest.approx(281.167864, abs=1e-5)
    rebuilt = standard.test.inputs * raw.train.inputs.std(0, correction=0) + raw.train.inputs.mean(
        0
    )
    assert torch.allclose(rebuilt, raw.test.inputs, rtol=1e-3, atol=1e-2)
    train = standard.train.inputs.double()
    assert train.mean(0).abs().max() < 1e-6 and (train.std(0, correction=0) - 1).abs().max() < 1e-6


def test_both_forms_of_the_boston_table_hold_the_same_numbers(
    data_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "boston-housing").mkdir()
    shutil.copyfile(
        data_root / "boston_housing" / "housing.data", tmp_path / "boston-housing" / "housing.data"
    )
    text, csv = load_table(BOSTON_HOUSING, tmp_path), load_table(BOSTON_HOUSING, data_root)
    assert torch.equal(text.train.inputs, csv.train.inputs)
    assert torch.equal(all_targets(text), all_targets(csv))


def test_a_constant_column_becomes_zero(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.csv").write_text(
        "a,b,y\n" + "".join(f"{i},7,{i}\n" for i in range(10))
    )
    layout = FileLayout("toy", ("toy",), {"table": ("toy.csv",)})
    problem = load_table(RegressionTable(layout, "a,b,y"), tmp_path)
    assert problem.train.inputs[:, 1].tolist() == [0.0] * 7
    assert problem.train.inputs[:, 0].std() > 0
