"""Tables, scikit-learn pipelines and skorch networks against the steps by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pandas
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput

N = 120


def network(width: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2))


def table() -> tuple[pandas.DataFrame, pandas.Series]:
    rng = numpy.random.default_rng(0)
    frame = pandas.DataFrame({"a": 50 + 9 * rng.normal(size=N), "b": rng.normal(size=N)})
    return frame, pandas.Series(numpy.where(frame["a"] > 60, "ill", "well"))


def test_a_pipeline_is_its_network_on_what_its_steps_return() -> None:
    frame, labels = table()
    pipeline = make_pipeline(StandardScaler().fit(frame), "passthrough", network())
    by_hand = (StandardScaler().fit_transform(frame), labels)
    for call in (
        lambda n, d: gs.measure(n, d, ["loss", "ntk_trace"]).values(),
        lambda n, d: gs.forecast_accuracy(n, d).score,
        lambda n, d: gs.find_label_issues(n, d).indices.tolist(),
        lambda n, d: gs.record_network(n, d, test=d, name="a", measures=["loss"]).scores,
        lambda n, d: len(gs.check(n, d, only=["GS104"]).to_dict()["findings"]),
    ):
        assert call(pipeline, (frame, labels)) == pytest.approx(call(network(), by_hand), rel=1e-4)


def test_sparse_steps_are_made_dense() -> None:
    towns = pandas.DataFrame({"town": ["x", "y", "z"] * 20})
    labels = pandas.Series([0, 1, 1] * 20)
    pipeline = make_pipeline(OneHotEncoder().fit(towns), network(3))
    dense = (pandas.get_dummies(towns, dtype=float), labels)
    expected = gs.measure(network(3), dense, ["loss"]).values()
    assert gs.measure(pipeline, (towns, labels), ["loss"]).values() == pytest.approx(expected)


class NeuralNet:
    """As skorch's: the module is made by `initialize`."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def initialize(self) -> NeuralNet:
        self.module_ = self.module
        return self


def test_a_skorch_network_is_its_module() -> None:
    frame, labels = table()
    data = frame.to_numpy(), labels
    expected = gs.measure(network(), data, ["loss"]).values()
    assert gs.measure(NeuralNet(network()).initialize(), data, ["loss"]).values() == expected
    inside = make_pipeline(StandardScaler().fit(frame), NeuralNet(network()).initialize())
    assert gs.measure(inside, (frame, labels), ["loss"]).values() != expected
    with pytest.raises(InvalidInput, match=r"Call \.initialize"):
        gs.measure(NeuralNet(network()), data)


@pytest.mark.parametrize("estimator", [MLPClassifier(), LogisticRegression()])
def test_estimators_without_gradients_name_what_needs_none(estimator: Any) -> None:
    frame, labels = table()
    for function in (gs.measure, gs.forecast_accuracy, gs.estimate_accuracy):
        with pytest.raises(
            InvalidInput,
            match=f"{type(estimator).__name__}, which has no gradients.*learning_curve",
        ):
            function(estimator, (frame, labels))
    with pytest.raises(InvalidInput, match="has no gradients"):
        gs.train(estimator, (frame, labels), gs.TrainingSpec(epochs=1))


def test_an_error_of_a_step_without_a_message_is_named() -> None:
    frame, labels = table()

    def fails(x: Any) -> Any:
        raise ValueError

    pipeline = make_pipeline(FunctionTransformer(fails), network())
    with pytest.raises(InvalidInput, match="raised ValueError: no message"):
        gs.measure(pipeline, (frame, labels), ["loss"])


def test_a_pipeline_that_is_not_fitted_names_how() -> None:
    frame, labels = table()
    with pytest.raises(InvalidInput, match=r"'standardscaler'.*pipeline\[:-1\]\.fit\(x\)"):
        gs.measure(make_pipeline(StandardScaler(), network()), (frame, labels))


@pytest.mark.parametrize("kind", ["float", "Float64", "array"])
def test_missing_values_name_an_imputer_and_its_result_is_accepted(kind: Any) -> None:
    frame, labels = table()
    frame.iloc[3, 0] = float("nan")
    x: Any = frame.astype(kind) if kind != "array" else frame.to_numpy()
    with pytest.raises(
        InvalidInput, match=r"1 of 120 samples.*SimpleImputer\(\)\.fit_transform\(x\)"
    ):
        gs.forecast_accuracy(network(), (x, labels))
    imputed = SimpleImputer().fit_transform(frame)
    assert gs.forecast_accuracy(network(), (imputed, labels)).samples == N


def test_categorical_columns_name_one_hot_columns_which_are_accepted() -> None:
    frame, labels = table()
    frame = frame.assign(town=pandas.Series(["x", "y", "z"] * 40, dtype="category"))
    with pytest.raises(
        InvalidInput, match=r"'town' do not.*pandas\.get_dummies\(frame, dtype=float\)"
    ):
        gs.forecast_accuracy(network(), (frame, labels))
    encoded = pandas.get_dummies(frame, dtype=float)
    assert gs.forecast_accuracy(network(5), (encoded, labels)).samples == N


def test_unequal_classes_have_balanced_accuracy_and_area() -> None:
    frame, labels = table()
    forecast = gs.forecast_accuracy(None, (frame, labels))
    assert forecast.unequal_classes is not None and len(forecast.combined) == 1
    codes, row = (labels == "well").to_numpy().astype(int), forecast.row(forecast.combined[0])
    assert row is not None
    predictions = row.predictions.numpy()
    balanced = balanced_accuracy_score(codes, predictions.argmax(1))
    assert forecast.unequal_classes.balanced_accuracy == pytest.approx(balanced)
    area = roc_auc_score(codes, predictions[:, 1] - predictions[:, 0])
    assert forecast.unequal_classes.auc == pytest.approx(area)
    assert f"{balanced:.1%}".replace("%", " %") in repr(forecast)
    assert forecast.to_dict()["unequal_classes"]["auc"] == forecast.unequal_classes.auc
    equal = pandas.Series([0, 1] * (N // 2))
    assert gs.forecast_accuracy(None, (frame, equal)).unequal_classes is None
    record = gs.record_network(network(), (frame, labels), name="a", measures=["loss"])
    with torch.no_grad():
        logits = network()(torch.tensor(frame.to_numpy()).float())
    assert record.scores["train_auc"] == pytest.approx(
        roc_auc_score(codes, logits[:, 1] - logits[:, 0])
    )
    assert record.scores["train_balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(codes, logits.argmax(1))
    )


def test_estimators_on_raw_frames_are_refused_as_estimators_and_not_for_their_columns() -> None:
    frame = pandas.DataFrame({"size": [1.0, 2.0] * 30, "colour": ["red", "blue"] * 30})
    labels = [0, 1] * 30
    model: Any = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(
        frame, labels
    )
    a_class: Any = LogisticRegression
    calls: list[Callable[[], object]] = [
        lambda: gs.forecast_accuracy(model, (frame, labels)),
        lambda: gs.compare({"a": model, "b": model}, (frame, labels)),
        lambda: gs.rank_networks({"a": model, "b": model}, (frame, labels)),
        lambda: gs.estimate_accuracy(model, (frame, labels)),
        lambda: gs.find_label_issues(model, (frame, labels)),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match=r"Pipeline, which has no gradients.*learning_curve"):
            call()
    for call in (lambda: gs.check(a_class, (frame, labels)), lambda: gs.measure(a_class, frame)):
        with pytest.raises(
            InvalidInput, match=r"the class LogisticRegression.*LogisticRegression\(\)"
        ):
            call()
