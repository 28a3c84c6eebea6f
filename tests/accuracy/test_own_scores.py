"""`gs.learning_curve` of any object and metric: estimators, frames, texts, datasets, groups, time order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_classification, make_regression
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, f1_score, log_loss
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor, nn
from torch.utils.data import Dataset

import gapscope as gs
from gapscope.accuracy.row_selection import n_rows
from gapscope.accuracy.scores import block_jackknife
from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.rows import take_rows
from gapscope.statistics.grouped_scores import variance_of_mean

X, Y = (
    np.asarray(part)
    for part in make_classification(240, 6, n_informative=4, flip_y=0.1, random_state=0)
)


def test_an_estimator_is_cloned_and_scored_by_its_accuracy() -> None:
    estimator = LogisticRegression()
    curve = gs.learning_curve(estimator, (X, Y))
    assert not hasattr(estimator, "coef_")
    assert (curve.task, curve.score_name, curve.design) == (
        "classification",
        "accuracy",
        "two halves and quarter",
    )
    assert curve.low <= 0.95 and 0.6 < curve.score < 1
    # the same function, as it would be written for a network
    by_function = gs.learning_curve(
        lambda x, y: LogisticRegression().fit(x, y), (X, Y), design="two halves and quarter",
        score=lambda model, x, y: model.predict(x) == y,
    )  # fmt: skip
    assert by_function.trainings == curve.trainings and by_function.score == curve.score


def test_the_accuracy_of_several_labels_is_named_per_label() -> None:
    labels = np.stack([Y, X[:, 0] > 0, X[:, 1] > 1], 1).astype(int)
    curve = gs.learning_curve(DecisionTreeClassifier(max_depth=3), (X, labels))
    base = np.maximum(labels.mean(0), 1 - labels.mean(0)).mean()
    assert (curve.task, curve.score_name) == ("multi-label", "accuracy per label")
    assert "accuracy per label" in curve.headline and f"{100 * base:.1f} %" in str(curve)


def test_regression_of_an_estimator_is_r2() -> None:
    regression: Any = make_regression(300, 4, noise=20.0, random_state=0)
    x, y = regression
    curve = gs.learning_curve(Ridge(), (x, y), design="five folds and quarter")
    assert (curve.task, curve.score_name) == ("regression", "R^2")
    assert curve.low <= 1 - 400 / y.var() <= curve.high


def test_a_scorer_of_scikit_learn_by_name(tmp_path: Path) -> None:
    estimator = HistGradientBoostingClassifier(max_iter=5)
    curve = gs.learning_curve(estimator, (X, Y), score="f1_macro", cache_dir=tmp_path)
    by_function = gs.learning_curve(
        estimator, (X, Y), score=lambda model, x, y: f1_score(y, model.predict(x), average="macro")
    )
    assert (curve.score_name, curve.score, curve.low) == (
        "f1_macro",
        by_function.score,
        by_function.low,
    )
    with pytest.raises(InvalidInput, match="its score differ"):
        gs.learning_curve(estimator, (X, Y), score="f1_micro", cache_dir=tmp_path)
    with pytest.raises(InvalidInput, match=r"is no scorer.*'f1_macro'"):
        gs.learning_curve(estimator, (X, Y), score="f1macro")
    with pytest.raises(InvalidInput, match=r"score must .* got 3"):
        gs.learning_curve(estimator, (X, Y), score=3)  # type: ignore[arg-type]


def test_a_training_run_is_no_training_function() -> None:
    monitor = gs.Monitor((torch.from_numpy(X), torch.from_numpy(Y)), measures=["loss"])
    with pytest.raises(InvalidInput, match=r"training run \(Monitor\)"):
        gs.learning_curve(monitor, (X, Y))


def test_any_metric_of_one_number() -> None:
    def macro_f1(model: Any, x: Any, y: Any) -> float:
        return float(f1_score(y, model.predict(x), average="macro"))

    curve = gs.learning_curve(HistGradientBoostingClassifier(max_iter=5), (X, Y), score=macro_f1)
    assert (curve.task, curve.score_name) == (
        "own metric",
        "macro_f1",
    ) and 0 < curve.low < curve.score < curve.high <= 1
    assert "macro_f1" in curve.sentences[0] and curve.plot().get_ylabel() == "macro_f1"
    minus_loss = gs.learning_curve(
        LogisticRegression(),
        (X, Y),
        score=lambda model, x, y: -float(((model.predict_proba(x)[:, 1] - y) ** 2).mean()),
    )
    assert minus_loss.low < minus_loss.score < 0 and minus_loss.score_name == "<lambda>"


def test_frames_sparse_matrices_and_texts_are_passed_on_as_they_are() -> None:
    seen: list[type] = []

    class Watched(LogisticRegression):
        def fit(self, x: Any, y: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            seen.append(type(x))
            return super().fit(x, y)

    curves = [
        gs.learning_curve(Watched(), data, design="half and quarter")
        for data in (
            (pandas.DataFrame(X), pandas.Series(Y)),
            (sparse.coo_matrix(X), Y.tolist()),
        )
    ]
    assert seen[::2] == [pandas.DataFrame, sparse.csr_matrix]
    assert len({curve.score for curve in curves}) == 1
    texts = [
        f"{'good' if label else 'bad'} word{number % 7}" for number, label in enumerate(Y[:60])
    ]
    pipeline = make_pipeline(HashingVectorizer(n_features=64), LogisticRegression())
    assert gs.learning_curve(pipeline, (texts, Y[:60].tolist())).score > 0.95


@pytest.mark.parametrize(
    "container",
    [
        np.arange(6),
        torch.arange(6),
        list(range(6)),
        tuple(range(6)),
        pandas.Series(range(6), index=list("abcdef")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_of_every_container(container: Any) -> None:
    part = take_rows(container, np.array([4, 1]))
    assert n_rows(container) == 6 and n_rows(part) == 2
    assert [int(value) for value in part] == [4, 1]
    assert take_rows(None, np.array([1])) is None


def test_rows_of_polars_and_arrow() -> None:
    polars: Any = pytest.importorskip("polars")
    pyarrow: Any = pytest.importorskip("pyarrow")
    frame = polars.DataFrame({"a": range(6), "b": list("abcdef")})
    assert take_rows(frame, np.array([4, 1])).rows() == [(4, "e"), (1, "b")]
    assert take_rows(frame["a"], np.array([4, 1])).to_list() == [4, 1]
    table = pyarrow.table({"a": range(6)})
    assert take_rows(table, np.array([4, 1]))["a"].to_pylist() == [4, 1] and n_rows(table) == 6
    assert take_rows(table["a"], np.array([4, 1])).to_pylist() == [4, 1] and n_rows(table["a"]) == 6
    with_polars = gs.learning_curve(LogisticRegression(), (polars.DataFrame(X), polars.Series(Y)))
    assert with_polars.score == gs.learning_curve(LogisticRegression(), (X, Y)).score


class Boxes(Dataset[Any]):
    """Images of different sizes with a dictionary of boxes, as of a detection data set."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.full((1, 4 + index % 3, 5), float(index % 2)), {
            "labels": torch.tensor([index % 2] * (index % 4))
        }


def test_a_detection_dataset_with_the_average_precision() -> None:
    parts: list[int] = []

    def train_fn(data: Any, _: None) -> float:
        parts.append(len(data))
        return float(np.mean([image.mean() for image, _ in data]))

    def score(threshold: float, data: Any, _: None) -> float:
        truth = [bool(target["labels"].float().sum() > 0) for _, target in data]
        return float(
            average_precision_score(truth, [float(image.mean()) - threshold for image, _ in data])
        )

    curve = gs.learning_curve(train_fn, Boxes(), score=score)
    assert parts == [12, 24] and 0.5 < curve.score <= 1 and curve.samples == 48


def test_the_jackknife_of_a_mean_is_its_variance() -> None:
    values = np.random.default_rng(0).normal(size=200)
    rows, groups = np.arange(200), np.arange(200)
    blocks = [block_jackknife(lambda part: float(values[part].mean()), rows, groups)]
    # ten blocks: 9 degrees of freedom
    assert blocks[0] == pytest.approx(variance_of_mean(values, groups), rel=0.6)
    grouped = np.repeat(np.arange(20), 10)
    assert block_jackknife(
        lambda part: float(grouped[part].mean()), rows, grouped
    ) > 5 * variance_of_mean(grouped.astype(float), groups)


def test_later_samples_are_scored() -> None:
    times = pandas.date_range("2020-01-01", periods=240).to_numpy()[::-1]
    seen: list[set[float]] = []

    def train_fn(x: Any, y: Any) -> Any:
        seen.append(set(x[:, 0]))
        return LogisticRegression().fit(x, y)

    curve = gs.learning_curve(
        train_fn, (X, Y), score=lambda model, x, y: model.predict(x) == y, times=times
    )
    assert [run.trained_on for run in curve.trainings] == [
        90,
        180,
    ] and curve.design == "latest quarter"
    assert seen[1] == set(X[60:, 0]) and seen[0] == set(X[60:150, 0])


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"groups": [None, *"ab" * 119, "a"]}, "groups .* 1 of 240 are missing"),
        ({"groups": [float("nan"), *range(239)]}, "1 of 240 are missing"),
        ({"times": [1] * 240}, "1 different values"),
        ({"times": np.array([1, "a"] * 120, dtype=object)}, "sortable.*int, str"),
        ({"times": range(240), "design": "hold-out"}, "times"),
        ({"design": "continued halves"}, "an estimator"),
        ({"score": "F one"}, "'F one'"),
        ({"score": lambda model, x, y: float("nan")}, "NaN"),
        ({"score": lambda model, x, y: [1.0, 2.0]}, r"shape \[2\]"),
        ({"score": lambda model, x, y: "good"}, "str"),
    ],
)
def test_messages(options: dict[str, Any], facts: str) -> None:
    with pytest.raises(InvalidInput, match=facts):
        gs.learning_curve(LogisticRegression(), (X, Y), **options)


def test_a_network_in_place_of_a_training_function_is_named() -> None:
    with pytest.raises(InvalidInput, match="forecast_accuracy"):
        gs.learning_curve(nn.Linear(6, 2), (X, Y))
    with pytest.raises(InvalidInput, match="40 samples"):
        gs.learning_curve(LogisticRegression(), (X[:30], Y[:30]))
    with pytest.raises(InvalidInput, match="240 and 30"):
        gs.learning_curve(LogisticRegression(), (X, Y[:30]))


def test_a_failure_without_a_cache_names_no_deleted_folder() -> None:
    def fails(x: Any, y: Any) -> Any:
        raise RuntimeError("no power")

    with pytest.raises(GapscopeError, match="no power") as caught:
        gs.learning_curve(fails, (torch.randn(60, 2), torch.arange(60) % 2))
    assert "trainings" not in str(caught.value) and "cache_dir" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_class_that_one_half_lacks_needs_no_output() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2
    y[7] = 2
    outputs: list[int] = []

    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        outputs.append(int(y.max()) + 1)
        return nn.Linear(3, outputs[-1])

    curve = gs.learning_curve(train_fn, (x, y))
    assert sorted(outputs) == [2, 3] and 0 <= curve.score <= 1


def test_finished_runs_of_an_estimator_are_kept(tmp_path: Any) -> None:
    first = gs.learning_curve(LogisticRegression(), (X, Y), cache_dir=tmp_path)
    assert gs.learning_curve(LogisticRegression(), (X, Y), cache_dir=tmp_path) == first
    with pytest.raises(InvalidInput, match="recipe differ"):
        gs.learning_curve(LogisticRegression(C=2.0), (X, Y), cache_dir=tmp_path)
    with pytest.raises(InvalidInput, match="data differ"):
        gs.learning_curve(LogisticRegression(), (X + 1, Y), cache_dir=tmp_path)


def test_a_function_on_a_raw_frame_is_told_of_the_score_and_a_class_of_its_object() -> None:
    frame = pandas.DataFrame({"size": X[:, 0], "colour": ["red", "blue"] * 120})
    with pytest.raises(InvalidInput, match=r"'colour' do not.*score="):
        gs.learning_curve(lambda x, y: LogisticRegression().fit(x, y), (frame, Y))
    with pytest.raises(InvalidInput, match=r"such as LogisticRegression\(\)"):
        gs.learning_curve(LogisticRegression, (X, Y))


def test_a_named_scorer_needs_an_estimator() -> None:
    with pytest.raises(InvalidInput, match=r"'accuracy'.*needs an estimator.*Linear"):
        gs.learning_curve(lambda x, y: nn.Linear(6, 2), (X, Y), score="accuracy")
    trained = gs.learning_curve(lambda x, y: Ridge().fit(x, y), (X, Y), score="r2")
    assert trained.score_name == "r2"


def test_swapped_arguments_are_named_without_their_values() -> None:
    with pytest.raises(InvalidInput, match=r"got tuple.*before the data"):
        gs.learning_curve((X, Y), Ridge())


def test_a_loss_is_no_score() -> None:
    def loss(model: Any, x: np.ndarray, y: np.ndarray) -> float:
        return log_loss(y, model.predict_proba(x))

    estimator = HistGradientBoostingClassifier(max_iter=20)
    curve = gs.learning_curve(estimator, (X, Y), score=loss, design="half and quarter")
    assert "is it a loss? Return its negative" in curve.abstained_because
    negative = gs.learning_curve(
        estimator, (X, Y), score=lambda *given: -loss(*given), design="half and quarter"
    )
    assert not negative.abstained_because


def test_what_may_be_a_loss_is_noted() -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 240)
    x = generator.normal(size=(240, 4)) + y[:, None]

    def loss(model: Any, inputs: np.ndarray, targets: np.ndarray) -> float:
        return log_loss(targets, model.predict_proba(inputs))

    curve = gs.learning_curve(LogisticRegression(), (x, y), score=loss)
    assert "is it a loss?" in repr(curve)
    negative = gs.learning_curve(LogisticRegression(), (x, y), score=lambda *given: -loss(*given))
    assert "is it a loss?" not in repr(negative)


def test_a_metric_of_targets_and_predictions_is_no_score() -> None:
    with pytest.raises(InvalidInput, match=r"\(object, inputs, targets\).*score='f1'"):
        gs.learning_curve(LogisticRegression(), (X, Y), score=f1_score)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"<lambda> takes \(y, found\)"):
        gs.learning_curve(Ridge(), (X, Y), score=lambda y, found: 1.0)  # type: ignore[arg-type]


def test_the_name_of_a_loss_tells_it() -> None:
    def mae(model: Any, inputs: np.ndarray, targets: np.ndarray) -> float:
        return float(np.abs(targets - targets.mean()).mean())

    def loss(model: Any, inputs: np.ndarray, targets: np.ndarray) -> float:
        return 0.0 if len(targets) < 100 else 0.01

    for design in ("auto", "hold-out"):
        assert "'mae'" in repr(gs.learning_curve(Ridge(), (X, Y), score=mae, design=design))
    curve = gs.learning_curve(Ridge(), (X, Y), score=loss, design="half and quarter")
    assert "is it a loss?" in repr(curve)


def test_zeros_on_training_samples_alone_may_be_a_loss() -> None:
    def plain(model: Any, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (model.predict(inputs) != targets).astype(float)

    y = np.array([0, 1] * 40)
    x = y[:, None] + np.where(np.arange(80) == 5, -2.0, 0.0)[:, None]
    curve = gs.learning_curve(DecisionTreeClassifier(), (x, y), score=plain)
    assert "samples of training score 0" in repr(curve).lower()


@pytest.mark.parametrize(("value", "got"), [(None, "NoneType"), (1e300, "numbers above")])
def test_what_is_no_score_is_named(value: float | None, got: str) -> None:
    with pytest.raises(InvalidInput, match=got):
        gs.learning_curve(LogisticRegression(), (X, Y), score=lambda *_: value)
