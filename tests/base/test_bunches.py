"""Data sets of scikit-learn, which hold inputs, target and their names."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_linnerud
from sklearn.utils import Bunch

import gapscope as gs
from gapscope.base.bunches import as_pair, is_bunch
from gapscope.base.samples import as_samples
from gapscope.data.named_columns import column_by_name

SPECIES = ("setosa", "versicolor", "virginica")


def _loaded(load: Any, *, as_frame: bool) -> Any:
    return cast(Any, load(as_frame=as_frame))


@pytest.mark.parametrize("as_frame", [False, True])
def test_inputs_and_target_are_read_with_their_names(as_frame: bool) -> None:
    iris = _loaded(load_iris, as_frame=as_frame)
    read = as_samples(iris)
    assert read.columns == tuple(iris.feature_names) and read.class_names == SPECIES
    assert torch.equal(read.y, torch.tensor(np.asarray(iris.target)))
    assert torch.equal(read.inputs, as_samples((np.asarray(iris.data), read.y)).inputs)
    diabetes = _loaded(load_diabetes, as_frame=as_frame)
    read = as_samples(diabetes)
    assert read.kind == "regression" and len(read.columns) == read.inputs.shape[1] == 10
    body = as_samples(_loaded(load_linnerud, as_frame=as_frame))
    assert body.target_columns == ("Weight", "Waist", "Pulse")


def test_numbers_that_name_themselves_stay_numbers() -> None:
    digits = cast(Any, load_digits())
    assert as_pair(digits)[1] is digits.target and not as_samples(digits).class_names


@pytest.mark.parametrize("as_frame", [False, True])
def test_verbs_read_the_same_data(as_frame: bool) -> None:
    diabetes = _loaded(load_diabetes, as_frame=as_frame)
    pair = np.asarray(diabetes.data), np.asarray(diabetes.target)
    expected = gs.out_of_sample(None, pair)
    assert gs.out_of_sample(None, diabetes).score == pytest.approx(expected.score)
    assert gs.forecast_accuracy(None, diabetes).score < 0.6
    assert not gs.check(None, diabetes, only=["GS107"]).codes
    network = torch.nn.Linear(4, 3)
    iris = _loaded(load_iris, as_frame=as_frame)
    assert "accuracy" in gs.measure(network, iris, ["accuracy"])


def test_the_target_can_be_named() -> None:
    for as_frame in (False, True):
        inputs, target = column_by_name(_loaded(load_iris, as_frame=as_frame), "target")
        assert isinstance(inputs, pandas.DataFrame) and inputs.shape == (150, 4)
        assert set(target) == set(SPECIES)


def test_other_bunches_are_mappings() -> None:
    assert not is_bunch(Bunch(images=[1], target=[1]))
    assert not is_bunch(Bunch(data=[1], target=None))
    assert not is_bunch({"data": [1], "target": [1]})
