"""Leave-one-out baselines against kernels of scikit-learn and its neighbours."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from torch import Tensor

from gapscope.statistics.baselines import (
    RIDGES,
    feature_matrix,
    kernel_row,
    linear_ridge,
    most_frequent_class,
    nearest_neighbours,
    rbf_ridge,
    rbf_spectrum,
    target_matrix,
)
from gapscope.statistics.kernel_ridge import loo_predictions, spectrum


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(40, generator=generator, dtype=torch.float64) > 0).long() + (
        x[:, 1] > 1
    ).long()
    return x, y


@pytest.mark.parametrize("method", [linear_ridge, rbf_ridge])
def test_ridge_rows_have_the_best_ridge(data: tuple[Tensor, Tensor], method: object) -> None:
    x, y = data
    features = feature_matrix(x)
    row = method(features, y)  # type: ignore[operator]
    if method is linear_ridge:
        kernel = features @ features.T
    else:
        squares = torch.cdist(features, features).square()
        median = squares[~torch.eye(40, dtype=torch.bool)].median()
        kernel = torch.tensor(RBF(length_scale=float((median / 2).sqrt()))(features.numpy()))
    b = target_matrix(y)
    # leave-one-out predictions are compared with refits in test_kernel_ridge.py
    unit = float(kernel.trace()) / 40
    candidates = [
        loo_predictions(spectrum(kernel), b, ridge * unit).predictions for ridge in RIDGES
    ]
    best = min(candidates, key=lambda predictions: float((predictions - b).square().sum()))
    torch.testing.assert_close(row.predictions, best, rtol=1e-6, atol=1e-8)
    assert row.score == float((best.argmax(1) == y).double().mean())


@pytest.mark.parametrize("k", [1, 5])
def test_neighbours_are_scikit_learns(data: tuple[Tensor, Tensor], k: int) -> None:
    features, targets = feature_matrix(data[0]), data[0][:, :1] + data[0][:, 1:2]
    row = nearest_neighbours(features, targets, ks=(k,))
    oracle: Any = cross_val_predict(
        KNeighborsRegressor(n_neighbors=k), features.numpy(), targets.numpy(), cv=LeaveOneOut()
    )
    numpy.testing.assert_allclose(row.predictions.numpy(), oracle.reshape(-1, 1))
    first = nearest_neighbours(features, data[1], ks=(1,))
    classes: Any = cross_val_predict(
        KNeighborsClassifier(1), features.numpy(), data[1].numpy(), cv=LeaveOneOut()
    )
    assert first.predictions.argmax(1).tolist() == classes.tolist()


def test_most_frequent_class_is_its_fraction() -> None:
    assert most_frequent_class(torch.tensor([0, 0, 0, 1])).score == 0.75
    assert most_frequent_class(torch.tensor([0.0, 1.0, 2.0])).score == pytest.approx(0.0)


def test_regression_score_is_r_squared_against_the_leave_one_out_mean(
    data: tuple[Tensor, Tensor],
) -> None:
    x = data[0]
    y = 2 * x[:, :1] - x[:, 1:2]
    row = linear_ridge(feature_matrix(x), y)
    means = (y.sum(0) - y) / 39
    assert row.score == pytest.approx(
        1 - float((row.predictions - y).square().sum() / (means - y).square().sum())
    )
    assert row.score > 0.999


def test_features_are_standardized_and_constant_columns_dropped() -> None:
    table = torch.tensor([[1.0, 5.0, 100.0], [2.0, 5.0, 300.0], [3.0, 5.0, 200.0]])
    features = feature_matrix(table)
    assert features.shape == (3, 2)
    torch.testing.assert_close(
        features.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(features.std(0, correction=0), torch.ones(2, dtype=torch.float64))
    far = torch.tensor([[1e12, 0.1 + 0.2], [1e12 + 20, 0.3], [1e12 + 40, 0.3]], dtype=torch.float64)
    assert feature_matrix(far)[:, 0].tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])
    assert feature_matrix(far).shape == (3, 1)  # the rest is rounding
    images = torch.rand(4, 3, 2, 2) * torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    channels = feature_matrix(images).reshape(4, 3, 4)
    assert channels.std((0, 2), correction=0).tolist() == pytest.approx([1, 1, 1])


@pytest.mark.thorough
def test_landmarks_are_close_to_the_exact_kernel() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2400, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()
    squares = torch.cdist(x, x).square()
    width = squares[~torch.eye(2400, dtype=torch.bool)].median()
    exact = kernel_row("RBF ridge", "inputs", spectrum((-squares / width).exp()), y)
    sampled = kernel_row("RBF ridge", "inputs", rbf_spectrum(x), y)
    assert sampled.score == pytest.approx(exact.score, abs=0.01)


def test_neighbours_of_many_samples_are_those_of_principal_components(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 10, generator=generator, dtype=torch.float64)
    features = (
        x @ torch.linalg.qr(torch.randn(70, 10, generator=generator, dtype=torch.float64)).Q.T
    )
    y = (x[:, 0] > 0).long()
    exact = nearest_neighbours(features, y)
    monkeypatch.setattr("gapscope.statistics.baselines.MAX_EXACT_NEIGHBOURS", 50)
    assert torch.equal(nearest_neighbours(features, y).predictions, exact.predictions)


@pytest.mark.parametrize("n", [400, 2400])
def test_neighbours_in_tables_of_few_values_are_as_right_as_others(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 12, (n, 1), generator=generator)
    y = (x[:, 0] % 2) ^ (torch.rand(n, generator=generator) < 0.1).long()
    expected = torch.as_tensor(cross_val_predict(KNeighborsClassifier(15), x, y, cv=50)) == y
    row = nearest_neighbours(feature_matrix(x), y, ks=(15,))
    assert row.score == pytest.approx(float(expected.double().mean()), abs=0.02)


@pytest.mark.parametrize("n_values", [2, 20])
def test_neighbours_without_signal_score_as_chance_does(n_values: int) -> None:
    scores: list[float] = []
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, n_values, (200, 1), generator=generator)
        scores += [
            nearest_neighbours(feature_matrix(x), torch.arange(200) % 2, ks=(k,)).score
            for k in (1, 15)
        ]
    assert sum(scores) / len(scores) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("outlier", [0.5, 1e4, 1e6])
def test_neighbours_beside_an_outlier_stay_the_same(outlier: float) -> None:
    x = torch.rand(400, 1, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * 12).long() % 2
    x[0] = outlier
    assert nearest_neighbours(feature_matrix(x), y).score > 0.95
