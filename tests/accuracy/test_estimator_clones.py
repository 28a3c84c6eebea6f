"""Estimators with a module of torch: clones that have learned nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import gapscope as gs
from gapscope.accuracy.estimator_clones import unfitted_clone
from gapscope.base.errors import InvalidInput


class NeuralNet(ClassifierMixin, BaseEstimator):
    """As skorch's: a module that is an object is trained in place, a class is built first."""

    def __init__(self, module: Any = None) -> None:
        self.module = module

    def initialize(self) -> NeuralNet:
        self.module_ = self.module() if isinstance(self.module, type) else self.module
        self.history: list[Any] = []
        return self

    def fit(self, x: Any, y: Any) -> NeuralNet:
        self.initialize()
        self.classes_ = np.unique(y)
        self.history.append(gs.train(self.module_, (x, y), gs.TrainingSpec(epochs=1)))
        return self

    def predict_proba(self, x: Any) -> Any:
        with torch.no_grad():
            return self.module_(torch.as_tensor(x).float()).softmax(1).numpy()

    def predict(self, x: Any) -> Any:
        return self.predict_proba(x).argmax(1)


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)


def samples() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
    return x, (x[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    "wrap",
    [lambda net: net, lambda net: make_pipeline(StandardScaler(), net), CalibratedClassifierCV],
)
def test_clones_of_a_module_that_was_trained_in_place_are_refused(wrap: Any) -> None:
    x, y = samples()
    net = NeuralNet(Linear())
    unfitted_clone(wrap(net)).fit(x, y)
    unfitted_clone(wrap(net.initialize())).fit(x, y)
    with pytest.raises(InvalidInput, match="an object, a Linear"):
        unfitted_clone(wrap(net.fit(x, y)))
    unfitted_clone(wrap(NeuralNet(Linear).fit(x, y))).fit(x, y)


def test_functions_that_fit_parts_refuse_what_has_learned_from_all_samples() -> None:
    data = samples()
    net = NeuralNet(Linear()).fit(*data)
    for function in (gs.learning_curve, lambda *parts: gs.out_of_sample(*parts, cost=2)):
        with pytest.raises(InvalidInput, match="learned from all samples"):
            function(net, data)
    calibrated = CalibratedClassifierCV(net).fit(*data)
    reason = gs.check(calibrated, data, only=["GS402"]).not_checked[0].reason
    assert "has learned from all samples" in reason


def test_held_out_predictions_of_networks_that_are_not_fitted_are_those_of_folds() -> None:
    data = samples()
    for net in (NeuralNet(Linear()), make_pipeline(StandardScaler(), NeuralNet(Linear))):
        assert "5 folds" in gs.out_of_sample(net, data).method
    fitted = NeuralNet(Linear).fit(*data)
    assert "leave-one-out" in gs.out_of_sample(fitted, data).method
    assert "3 folds" in gs.out_of_sample(fitted, data, cost=3).method
