"""Results compare by identity; estimators, scores and repeats of any form are recognized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestClassifier, StackingClassifier, StackingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import TensorDataset

import gapscope as gs
from gapscope.accuracy.row_selection import count_repeats
from gapscope.base.errors import DamagedFile, InvalidInput
from gapscope.inspection.network_checks import is_estimator

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


def test_results_with_arrays_are_compared_by_identity() -> None:
    results: list[Any] = [
        call()
        for _ in range(2)
        for call in (
            lambda: gs.forecast_accuracy(None, (X, Y)),
            lambda: gs.out_of_sample(None, (X, Y)),
            lambda: gs.check(LogisticRegression().fit(X, Y), (X, Y)),
        )
    ]
    assert len(set(results)) == 6 and results[0] == results[0]
    assert all(results[k] != results[k + 3] for k in range(3))
    curves = [gs.learning_curve(LogisticRegression(), (X, Y)) for _ in range(2)]
    assert curves[0] == curves[1]  # which has numbers and texts alone


@pytest.mark.parametrize(
    "value",
    [
        StackingClassifier([("a", LogisticRegression())]),
        StackingRegressor([("a", Ridge())]),
        make_pipeline(StandardScaler(), StackingClassifier([("a", LogisticRegression())])),
    ],
)
def test_estimators_that_predict_once_they_are_fitted(value: Any) -> None:
    assert is_estimator(value)


def test_a_transformer_is_no_estimator() -> None:
    assert not is_estimator(make_pipeline(StandardScaler()))
    assert is_estimator(KMeans())  # refused by its kind


@pytest.mark.parametrize("form", ["sparse", "mapping", "data set", "array"])
def test_repeats_are_counted_in_any_form(form: str) -> None:
    x = np.concatenate([X * (X > 0), X[:7] * (X[:7] > 0)])
    n = len(x) - len(np.unique(x, axis=0))
    forms = {
        "sparse": sparse.csr_array(x),
        "mapping": {"a": x[:, :1], "b": x[:, 1:]},
        "data set": TensorDataset(torch.from_numpy(x)),
        "array": x,
    }
    assert count_repeats(forms[form]) == n >= 7


def test_the_range_of_a_score_is_not_that_of_the_observed_ones() -> None:
    data = (X, np.where(RANDOM.random(60) < 0.1, 1 - Y, Y))
    curve = gs.learning_curve(LogisticRegression(), data, score="matthews_corrcoef")
    bounded = gs.learning_curve(LogisticRegression(), data, score="f1_macro")
    assert 0 <= bounded.low < bounded.high <= 1 and curve.high <= 1
    noise = (X, RANDOM.integers(0, 2, 60))
    assert gs.learning_curve(LogisticRegression(), noise, score="matthews_corrcoef").low < 0


def test_booleans_as_objects_are_labels_of_an_estimator() -> None:
    plain = gs.learning_curve(LogisticRegression(), (X, Y))
    objects = gs.learning_curve(LogisticRegression(), (X, Y.astype(bool).astype(object)))
    assert objects.score == plain.score


def test_an_estimator_spends_no_more_than_cost() -> None:
    with pytest.raises(InvalidInput, match="two folds"):
        gs.out_of_sample(LogisticRegression(), (X, Y), cost=1)
    assert gs.out_of_sample(RandomForestClassifier(20), (X, Y), cost=1).cost == 1
    assert gs.out_of_sample(LogisticRegression(), (X, Y)).cost == 5


def test_a_cache_that_holds_no_object_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "twin.json").write_text("[]")
    with pytest.raises(DamagedFile, match="JSON object"):
        gs.learning_curve(LogisticRegression(), (X, Y), cache_dir=tmp_path)


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
def test_one_hot_labels_are_classes_of_an_estimator(dtype: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    x = rng.normal(size=(60, 3)) + y[:, None]
    frame = pandas.DataFrame(np.eye(3, dtype=dtype)[y], columns=["ant", "bee", "cow"])
    expected = gs.out_of_sample(LogisticRegression(), (x, y))
    for targets in (frame, frame.to_numpy()):
        found = gs.out_of_sample(LogisticRegression(), (x, targets))
        assert found.score == expected.score
        assert any("one-hot" in note for note in found.notes)
    several = gs.out_of_sample(MultiOutputClassifier(LogisticRegression()), (x, frame.to_numpy()))
    assert several.score_name == "accuracy per label"
