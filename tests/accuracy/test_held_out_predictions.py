"""`gs.out_of_sample`: every source against explicit refits or scikit-learn, groups, forms of the result, messages."""

from __future__ import annotations

import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine, make_classification
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import LinearSVC
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.subset_designs import folds
from gapscope.base.errors import GapscopeError, InvalidInput, NotMeasurable
from gapscope.base.randomness import derive_seed
from gapscope.labels.prediction_columns import to_values
from gapscope.statistics.baselines import feature_matrix, linear_ridge, rbf_ridge
from gapscope.statistics.calibration import fit_calibration
from gapscope.training.alarms.canaries import CanaryAlarm
from gapscope.training.recordings import Recordings
from support.quiet_trainer import training_arguments

DRAWN: Any = make_classification(
    120, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0
)
X, Y = (np.asarray(part) for part in DRAWN)
NAMES = np.array([["cat", "dog", "eel"][label] for label in Y])


def fold_of(groups: np.ndarray, number: int) -> np.ndarray:
    """The folds that are used, as a test fold per sample."""
    fold = np.empty(len(groups), dtype=int)
    for index, split in enumerate(
        folds(groups, number, np.random.default_rng(derive_seed(0, f"{number} folds")))
    ):
        fold[split.scored] = index
    return fold


def test_without_a_network_it_is_the_better_kernel_tempered() -> None:
    result = gs.out_of_sample(None, (X, Y))
    y, features = torch.from_numpy(Y), feature_matrix(torch.tensor(X, dtype=torch.float32))
    expected = {}
    for row in (linear_ridge(features, y), rbf_ridge(features, y)):
        probabilities = fit_calibration(row.predictions, y).probabilities(row.predictions)
        expected[row.method] = (
            float(nn.functional.nll_loss(probabilities.log(), y)),
            probabilities,
        )
    method = min(expected, key=lambda name: expected[name][0])
    assert result.method == f"{method} on the inputs, leave-one-out" and result.cost == 0
    assert result.to_numpy() == pytest.approx(expected[method][1].numpy(), abs=1e-6)
    assert result.cross_entropy == pytest.approx(expected[method][0], abs=1e-6)
    assert (
        result.score == (result.to_numpy().argmax(1) == Y).mean()
        and result.low < result.score < result.high
    )
    assert result.to_numpy().sum(1) == pytest.approx(1)


def test_inputs_and_labels_are_one_argument() -> None:
    with pytest.raises(InvalidInput, match=r"shape \[60\].*None, \(x, y\)"):
        gs.out_of_sample(torch.rand(60, 2), torch.arange(60) % 2)


def test_groups_are_held_out_together() -> None:
    """Each group holds copies of one sample with one random label: only their copies predict them."""
    x = np.random.default_rng(0).normal(size=(40, 5)).repeat(4, 0)
    y, groups = (
        np.random.default_rng(1).integers(2, size=40).repeat(4),
        [f"patient {i // 4}" for i in range(160)],
    )
    alone, together = gs.out_of_sample(None, (x, y)), gs.out_of_sample(None, (x, y), groups=groups)
    assert alone.score > 0.95 and together.low < 0.6
    assert together.groups == 40
    # nothing is better than the frequencies, which are those of all samples
    assert (
        together.to_numpy() == pytest.approx(np.tile(np.bincount(y) / 160, (160, 1)))
        and len(together.notes) == 1
    )
    assert together.high - together.low > 1.5 * (alone.high - alone.low)


def test_a_pretrained_network_serves_with_its_features() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    body = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
    y = (body(x) @ torch.randn(16)).detach()
    network = nn.Sequential(body, nn.Linear(16, 3))
    y = (y > y.median()).long()
    before = copy.deepcopy(network.state_dict())
    result = gs.out_of_sample(network, (x, y))
    assert "features" in result.method and result.score > 0.93
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    by_hand = gs.out_of_sample(gs.embed(network, x), (x, y))
    assert by_hand.score == pytest.approx(result.score, abs=0.03)


def test_a_network_that_has_fitted_these_labels_is_not_asked() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(100, 20), torch.arange(100) % 2  # nothing to learn
    network = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 2))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    result = gs.out_of_sample(network, (x, y))
    assert result.low < 0.5 and "features" not in result.method
    assert any("100 %" in note for note in result.notes)


class DictionaryOutput(nn.Module):
    """A network whose outputs are in a dictionary, as those of Hugging Face."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.network(x)}


@pytest.mark.parametrize("form", ["vector", "column", "several", "groups", "dictionary", "labels"])
def test_a_network_that_has_fitted_these_targets_is_not_used(form: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(80, 8), torch.randn(80, 3 if form == "several" else 1)
    if form == "labels":
        y = torch.randint(0, 2, (80, 3)).float()
    network: nn.Module = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, y.shape[1])
    )
    untrained = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()  # outputs of labels are around 0.5
        optimizer.step()
    groups = np.arange(80) // 2 if form == "groups" else None
    targets = y[:, 0] if form == "vector" else y
    if form == "dictionary":
        network = DictionaryOutput(network)
    result = gs.out_of_sample(network, (x, targets), groups=groups)
    assert "features" not in result.method and any("trained on them" in n for n in result.notes)
    assert result.score < 0.7
    other = gs.out_of_sample(untrained, (x, targets), groups=groups)
    assert not any("trained on them" in note for note in other.notes)


def train_fn(x: Tensor, y: Tensor, steps_fraction: float = 1.0) -> nn.Module:
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(round(60 * steps_fraction)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


@pytest.mark.parametrize(("cost", "spent"), [(0, 0.5), (1.9, 0.5), (2, 2.0), (3, 3.0), (5.5, 5.0)])
def test_a_training_function_spends_what_it_may(cost: float, spent: float) -> None:
    data = (torch.tensor(X, dtype=torch.float32), torch.from_numpy(Y))
    result = gs.out_of_sample(train_fn, data, cost=cost)
    assert result.cost == spent and result.score > 0.55
    assert result.to_numpy().sum(1) == pytest.approx(1) and result.calibration is not None


def test_networks_that_do_not_fit_predict_without_a_refitted_layer() -> None:
    def constant(x: Tensor, y: Tensor, steps_fraction: float = 1.0) -> nn.Module:
        network = nn.Linear(5, 3)
        nn.init.zeros_(network.weight)
        nn.init.zeros_(network.bias)
        return network

    x = torch.tensor(X).float() + 5 * torch.tensor(Y)[:, None]
    for cost, spent in ((0.0, 2.5), (1.0, 0.5), (2.0, 2.0)):
        result = gs.out_of_sample(constant, (x, Y), cost=cost)
        assert result.cost == spent and "continued" not in result.method
        assert result.score == pytest.approx((Y == 0).mean())
        assert "refitted" in result.notes[-1]
        assert ("had 0.25 of the steps, and cost=2" in result.notes[-1]) == (cost == 1.0)


def test_the_folds_of_a_training_function_are_those_of_a_loop() -> None:
    def least_squares(x: Tensor, y: Tensor) -> nn.Module:
        network = nn.Linear(5, 3, bias=False)
        network.weight.data = torch.linalg.lstsq(x, nn.functional.one_hot(y, 3).float()).solution.T
        return network

    x, y = torch.tensor(X, dtype=torch.float32), torch.from_numpy(Y)
    groups = np.arange(120) // 3
    result = gs.out_of_sample(least_squares, (x, y), groups=groups)
    scores, fold = torch.empty(120, 3), fold_of(groups, 5)
    for number in range(5):
        rest, out = torch.from_numpy(fold != number), torch.from_numpy(fold == number)
        scores[out] = least_squares(x[rest], y[rest])(x[out]).detach()
    assert len({(group, number) for group, number in zip(groups, fold, strict=True)}) == 40
    assert result.calibration is not None
    assert result.to_numpy() == pytest.approx(
        result.calibration.probabilities(scores.double()).numpy(), abs=1e-6
    )


def test_an_estimator_in_folds_is_cross_val_predict() -> None:
    result = gs.out_of_sample(LogisticRegression(), (pandas.DataFrame(X), NAMES))
    split = PredefinedSplit(fold_of(np.arange(120), 5))
    expected = cross_val_predict(LogisticRegression(), X, Y, cv=split, method="predict_proba")
    assert result.to_numpy() == pytest.approx(expected, abs=1e-6)
    assert (
        result.classes == ("cat", "dog", "eel") and result.calibration is None and result.cost == 5
    )
    groups = np.arange(120) // 4
    grouped = gs.out_of_sample(LogisticRegression(), (X, Y), groups=groups, cost=10)
    split = PredefinedSplit(fold_of(groups, 10))
    expected = cross_val_predict(LogisticRegression(), X, Y, cv=split, method="predict_proba")
    assert grouped.to_numpy() == pytest.approx(expected, abs=1e-6) and grouped.groups == 30


def test_a_forest_needs_one_fit() -> None:
    forest = RandomForestClassifier(30, random_state=0)
    result = gs.out_of_sample(forest, (X, NAMES))
    fitted: Any = RandomForestClassifier(30, random_state=0, oob_score=True).fit(X, Y)
    assert result.to_numpy() == pytest.approx(fitted.oob_decision_function_) and result.cost == 1
    assert not hasattr(forest, "estimators_") and "out-of-bag" in result.method
    few = gs.out_of_sample(RandomForestClassifier(4, random_state=0), (X, Y))
    assert np.isfinite(few.to_numpy()).all() and "every tree" in few.notes[0]
    assert gs.out_of_sample(forest, (X, Y), groups=np.arange(120) // 2).cost == 5
    regression = gs.out_of_sample(RandomForestRegressor(30, random_state=0), (X, X[:, 0] ** 2))
    assert regression.task == "regression" and regression.score > 0.5


def test_regression_in_closed_form_and_in_folds() -> None:
    y = X @ np.arange(5.0) + np.random.default_rng(0).normal(size=120)
    result = gs.out_of_sample(None, (torch.tensor(X), torch.tensor(y)))
    errors = (result.to_numpy()[:, 0] - y) ** 2
    assert result.score == pytest.approx(1 - errors.mean() / y.var(), abs=1e-6)
    assert (
        result.task == "regression" and result.classes == () and np.isnan(result.calibration_error)
    )
    assert result.low < result.score < result.high and result.reliability is None
    in_folds = gs.out_of_sample(Ridge(), (X, y))
    assert in_folds.score == pytest.approx(result.score, abs=0.02)
    assert list(in_folds.to_pandas().columns) == ["target 0", "given target 0"]


def test_several_labels_have_one_closed_form() -> None:
    labels = np.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 1, X[:, 3] > 2], 1)
    result = gs.out_of_sample(None, (torch.tensor(X), torch.from_numpy(labels)))
    assert result.task == "multi-label" and result.to_numpy().shape == (120, 3)
    assert (
        result.score == pytest.approx(((result.to_numpy() > 0.5) == labels).mean())
        and result.score > 0.85
    )
    base = np.maximum(labels.mean(0), 1 - labels.mean(0)).mean()
    assert f"{100 * base:.1f} %" in str(result)
    by_network = gs.out_of_sample(
        lambda x, y: nn.Linear(5, 3).to(x), (torch.tensor(X), torch.from_numpy(labels))
    )
    assert (
        by_network.cost == 5 and by_network.to_numpy().min() > 0 and by_network.to_numpy().max() < 1
    )


def test_omitted_rows_keep_groups_and_numbers() -> None:
    y = torch.from_numpy(Y.copy())
    y[[3, 60]] = -100
    groups = np.arange(120) // 4
    result = gs.out_of_sample(None, (torch.tensor(X), y), groups=groups)
    kept = np.flatnonzero(y.numpy() >= 0)
    direct = gs.out_of_sample(None, (torch.tensor(X[kept]), y[kept]), groups=groups[kept])
    assert result.to_numpy() == pytest.approx(direct.to_numpy())
    assert result.to_pandas().index.tolist() == kept.tolist() and result.groups == 30


def test_an_estimator_of_several_labels() -> None:
    labels = np.stack([Y == 0, Y == 1], 1).astype(int)
    result = gs.out_of_sample(
        RandomForestClassifier(20, bootstrap=False, random_state=0), (X, labels)
    )
    assert (
        result.task == "multi-label" and result.to_numpy().shape == (120, 2) and result.score > 0.7
    )
    exact = ((result.to_numpy() > 0.5) == labels).all(1).mean()
    assert result.score_name == "accuracy per label" and f"{100 * exact:.1f} %" in str(result)
    assert result.plot().get_xlabel() == "stated probability"


def test_a_class_that_a_fold_has_not_seen_has_probability_zero() -> None:
    y = Y.copy()
    y[y == 2] = 0
    y[5] = 2
    result = gs.out_of_sample(LogisticRegression(), (X, y))
    assert result.to_numpy()[5, 2] == 0 and result.to_numpy().sum(1) == pytest.approx(1)
    x = torch.tensor(X, dtype=torch.float32)
    by_network = gs.out_of_sample(
        lambda x, y: nn.Linear(5, int(y.max()) + 1), (x, torch.from_numpy(y)), cost=5
    )
    assert by_network.to_numpy().shape == (120, 3) and by_network.to_numpy()[5, 2] < 0.34


def test_the_result_is_an_array_a_table_and_sentences() -> None:
    result = gs.out_of_sample(None, (X, NAMES))
    assert np.asarray(result).shape == (120, 3) and len(result) == 120
    table = result.to_pandas()
    assert (
        list(table.columns) == ["cat", "dog", "eel", "given label"]
        and table["given label"].tolist() == NAMES.tolist()
    )
    assert (
        set(result.to_dict()) >= {"score", "calibration_error", "samples"}
        and "predictions" not in result.to_dict()
    )
    assert f"{100 * result.score:.1f} %" in repr(result) and "120 rows" not in repr(result)
    copied = result.to_numpy()
    copied[:] = 0
    assert result.predictions.max() > 0
    assert 0 <= result.calibration_error < 0.2
    assert result.plot().get_ylabel() == "observed fraction"


@pytest.mark.parametrize(
    ("source", "data", "options", "facts"),
    [
        (None, None, {}, "no data"),
        (None, (X[:8], Y[:8]), {}, "12 samples"),
        (None, (X, Y), {"cost": -1}, "cost"),
        (None, (X, Y), {"groups": np.zeros(120)}, "2 groups"),
        (None, (X, Y), {"groups": [1, 2]}, "one value per sample; got 2 for 120"),
        (X[:50], (X, Y), {}, "120 samples"),
        (X[:, 0], (X, Y), {}, r"\[120\]"),
        ("features", (X, Y), {}, "got str"),
        (nn.Linear, (X, Y), {}, r"the class Linear. .* Linear\(\)"),
        (None, (X, Y), {"groups": "patient"}, r"frame\[.patient.\]"),
        (LinearSVC(), (X, Y), {}, "predict_proba"),
        (LogisticRegression(), (X, np.zeros(120)), {}, "two classes"),
        (LogisticRegression(), (X[:5], Y[:5]), {}, "12 samples"),
        (None, (np.ones((60, 2)), Y[:60]), {}, "constant"),
    ],
)
def test_messages(source: Any, data: Any, options: dict[str, Any], facts: str) -> None:
    with pytest.raises(InvalidInput, match=facts):
        gs.out_of_sample(source, data, **options)


def _training_run(kind: str, folder: Path) -> Any:
    """A training run in one of the forms that people hold in their hands."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).long()
    if kind == "alarm":
        return CanaryAlarm(gs.Canaries(labels))
    monitor = gs.Monitor((x, labels), measures=["loss"])
    if kind == "recordings":
        monitor.observe(nn.Linear(4, 2), 1)
        monitor.save(folder / "run.json")
        return Recordings.load(folder / "run.json")
    if kind.startswith("lightning"):
        lightning = pytest.importorskip("lightning.pytorch")
        from gapscope.integrations.lightning import MonitorCallback

        callback = MonitorCallback(monitor)
        return (
            callback
            if kind == "lightning callback"
            else lightning.Trainer(callbacks=[callback], logger=False)
        )
    if kind.startswith("transformers"):
        transformers = pytest.importorskip("transformers")
        from gapscope.integrations import MemorizationMonitor

        trainer = transformers.Trainer(nn.Linear(4, 2), training_arguments(folder))
        return trainer if kind == "transformers trainer" else MemorizationMonitor(trainer)
    return monitor


@pytest.mark.parametrize(
    "kind",
    ["monitor", "recordings", "alarm", "lightning callback", "lightning trainer", "transformers trainer",
     "transformers memorization"],
)  # fmt: skip
def test_a_training_run_has_seen_its_samples(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"training run.*function that trains"):
        gs.out_of_sample(_training_run(kind, tmp_path))


class _Passed(ClassifierMixin, BaseEstimator):
    """Classifier whose inputs are its probabilities, as the gallery passes them to MAPIE."""

    classes_ = np.arange(3)

    def fit(self, x: np.ndarray, y: np.ndarray) -> _Passed:
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)


def test_conformal_sets_are_those_of_the_closed_form_and_hold_new_labels() -> None:
    drawn: Any = make_classification(
        1500, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=1
    )
    x, y = (np.asarray(part) for part in drawn)
    forest = RandomForestClassifier(100, random_state=0)
    held_out = np.asarray(gs.out_of_sample(forest, (x[:300], y[:300])))
    new = forest.fit(x[:300], y[:300]).predict_proba(x[300:])
    threshold = np.sort(1 - held_out[np.arange(300), y[:300]])[int(np.ceil(0.9 * 301)) - 1]
    sets = 1 - new <= threshold
    assert 0.86 < sets[np.arange(1200), y[300:]].mean() < 0.97
    if find_spec("mapie") is None:
        return
    mapie: Any = import_module("mapie.classification").SplitConformalClassifier(
        _Passed(), confidence_level=0.9
    )
    mapie.conformalize(held_out, y[:300])
    np.testing.assert_array_equal(mapie.predict_set(new)[1][:, :, 0], sets)


def test_cleanlab_finds_the_wrong_labels_of_the_result_itself() -> None:
    rank: Any = pytest.importorskip("cleanlab.rank")
    wine: Any = load_wine()
    wrong = np.arange(len(wine.target)) % 12 == 0
    labels = np.where(wrong, (wine.target + 1) % 3, wine.target)
    quality = rank.get_label_quality_scores(
        labels, np.asarray(gs.out_of_sample(None, (wine.data, labels)))
    )
    assert roc_auc_score(wrong, -quality) > 0.98


def test_out_of_bag_predictions_of_several_labels_are_those_of_the_forest() -> None:
    several = np.stack([Y == 1, Y > 1], 1).astype(int)
    forest = RandomForestClassifier(60, random_state=0)
    result = gs.out_of_sample(forest, (X, several), seed=1)
    assert result.cost == 1 and result.to_numpy().shape == (120, 2)
    assert [roc_auc_score(several[:, k], result.to_numpy()[:, k]) > 0.8 for k in (0, 1)] == [
        True,
        True,
    ]
    assert ((result.to_numpy() > 0.5) == several).mean() == pytest.approx(result.score)


def test_copies_are_named_unless_groups_hold_them_out() -> None:
    rows = np.concatenate([np.arange(120), np.arange(30)])
    result = gs.out_of_sample(None, (X[rows], Y[rows]))
    assert any("30 of 150" in note and "groups=" in note for note in result.notes)
    assert not any(
        "groups=" in note for note in gs.out_of_sample(None, (X[rows], Y[rows]), groups=rows).notes
    )
    assert not any("groups=" in note for note in gs.out_of_sample(None, (X, Y)).notes)


def test_features_may_be_an_arrow_table() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.Table.from_pandas(pandas.DataFrame(X))
    assert gs.out_of_sample(table, (X, Y)).score == gs.out_of_sample(X, (X, Y)).score


@pytest.mark.parametrize("cost", [0, 3])
def test_an_error_of_the_training_function_is_named_with_its_cause(cost: float) -> None:
    def fails(x: Tensor, y: Tensor) -> nn.Module:
        raise KeyError("learning_rate")

    with pytest.raises(GapscopeError, match="train_fn raised KeyError: 'learning_rate'") as caught:
        gs.out_of_sample(fails, (torch.from_numpy(X).float(), torch.from_numpy(Y)), cost=cost)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_an_estimator_is_named_with_its_cause() -> None:
    x = np.where(np.arange(X.size).reshape(X.shape) == 7, np.nan, X)
    with pytest.raises(GapscopeError, match=r"LogisticRegression.* raised ValueError") as caught:
        gs.out_of_sample(LogisticRegression(), (x, Y))
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e18, 1e30])
@pytest.mark.filterwarnings("error")
def test_the_scale_of_targets_changes_no_score(scale: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 3)).astype("float32")
    y = x[:, 0] + 0.3 * generator.normal(size=80)
    own, scaled = (gs.out_of_sample(None, (x, y * unit)) for unit in (1.0, scale))
    for name in ("score", "low", "high"):
        assert getattr(scaled, name) == pytest.approx(getattr(own, name), abs=1e-5)
    issues, of_scaled = (gs.find_label_issues(None, (x, y * unit)) for unit in (1.0, scale))
    assert issues.noise is not None and of_scaled.noise is not None
    assert of_scaled.noise.r_squared == pytest.approx(issues.noise.r_squared, abs=1e-5)
    assert of_scaled.to_pandas()["sample"].tolist() == issues.to_pandas()["sample"].tolist()


def test_an_interval_of_r_squared_ends_at_1() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    y = x[:, 0] + 1e-4 * np.random.default_rng(1).standard_t(1, size=20)
    result = gs.out_of_sample(None, (x, y))
    assert result.score <= result.high <= 1


@pytest.mark.parametrize("source", [None, "a function"])
def test_numbers_of_classes_without_a_sample_have_no_probability(source: Any) -> None:
    gaps = np.array([0, 5, 10])[Y]
    if source is None:
        dense, sparse = (gs.out_of_sample(None, (X, labels)) for labels in (Y, gaps))
        assert sparse.score == dense.score and sparse.method == dense.method
        np.testing.assert_allclose(sparse.to_numpy()[:, [0, 5, 10]], dense.to_numpy(), atol=1e-9)
        assert sparse.calibration is not None and dense.calibration is not None
        for name in ("temperature", "background"):
            of_sparse, of_dense = (getattr(each.calibration, name) for each in (sparse, dense))
            assert of_sparse == pytest.approx(of_dense)
    else:
        sparse = gs.out_of_sample(_eleven_outputs, (torch.tensor(X).float(), gaps))
    empty = np.setdiff1d(np.arange(11), [0, 5, 10])
    assert sparse.to_numpy().shape == (120, 11) and not sparse.to_numpy()[:, empty].any()


@pytest.mark.parametrize(
    ("classes", "noted"),
    [([0, 1, 2], ""), ([1, 2, 3], "y - 1"), ([0, 5, 10], "8 of 11"), ([2, 3, 4], "2 of 5")],
)
def test_columns_without_a_sample_are_noted(classes: list[int], noted: str) -> None:
    labels = np.array(classes)[Y]
    notes = " ".join(gs.out_of_sample(None, (X, labels)).notes)
    assert noted in notes and ("zero" in notes) == bool(noted)
    assert "zero" not in " ".join(gs.out_of_sample(None, (X, labels.astype(str))).notes)


def test_labels_beyond_the_outputs_of_a_network_are_noted() -> None:
    x = torch.tensor(X).float()
    for n_outputs, is_noted in ((3, True), (4, False), (9, False)):
        network = nn.Linear(5, n_outputs)
        notes = " ".join(gs.out_of_sample(network, (x, torch.tensor(Y) + 1)).notes)
        assert ("features alone are used" in notes) == is_noted
    with pytest.raises(InvalidInput, match="pass y - 1"):
        gs.forecast_accuracy(nn.Linear(5, 3), (x, torch.tensor(Y) + 1))


def _eleven_outputs(x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Linear(5, 11)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


class _NotFinite(nn.Module):
    """Network with finite features and outputs that are NaN."""

    def __init__(self, kernel: int = 0) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, kernel, padding=1) if kernel else nn.Linear(5, 8)
        self.last = nn.Conv1d(4, 3, 1) if kernel else nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu()) * float("nan")


def test_a_network_whose_outputs_are_nan_has_no_answer() -> None:
    x = torch.tensor(X).float()
    for network, data in (
        (_NotFinite(), (x, Y)),
        (_NotFinite(), (x, x[:, :3])),
        (_NotFinite(3), (torch.randn(20, 2, 6), torch.randint(3, (20, 6)))),
    ):
        with pytest.raises(NotMeasurable, match="Outputs must be finite"):
            gs.out_of_sample(network, data)


@pytest.mark.parametrize("form", ["array", "frame", "frame with text", "regression"])
def test_groups_of_near_copies_are_noted_for_estimators(form: str) -> None:
    rng = np.random.default_rng(0)
    group = np.arange(240) // 6
    x: Any = rng.normal(size=(40, 12))[group] + 0.003 * rng.normal(size=(240, 12))
    y: Any = rng.integers(0, 2, 40)[group]
    estimator: Any = KNeighborsClassifier(1)
    if form == "regression":
        estimator, y = KNeighborsRegressor(1), y + 0.5
    if form.startswith("frame"):
        x = pandas.DataFrame(x, columns=[f"x{i}" for i in range(12)])
    if form == "frame with text":
        x["kind"] = np.where(y == 1, "b", "a")
        encode = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
        estimator = make_pipeline(encode, estimator)
    for function in (gs.out_of_sample, gs.learning_curve):
        assert any("several near copies" in note for note in function(estimator, (x, y)).notes)
        grouped = function(estimator, (x, y), groups=group)
        assert not any("several near copies" in note for note in grouped.notes)


def test_names_of_classes_hide_no_column_of_the_table() -> None:
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    names = np.array(["given label", "sample", "given label (2)"])[y.numpy()]
    result = gs.out_of_sample(None, (x, names))
    table = result.to_pandas()
    assert list(table.columns) == [*result.classes, "given label (3)"]
    assert (table.iloc[:, :3].to_numpy() == result.predictions).all()
    assert table["given label (3)"].tolist() == names.tolist()
    by_table = gs.find_label_issues(data=(x, names), pred_probs=table)
    by_result = gs.find_label_issues(data=(x, names), pred_probs=result)
    assert by_table.to_pandas().equals(by_result.to_pandas())


def test_names_of_labels_hide_no_column_of_the_table() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    frame = pandas.DataFrame((x > 0).int().numpy(), columns=["a", "given a"])
    result = gs.out_of_sample(None, (x, frame))
    table = result.to_pandas()
    assert list(table.columns) == ["a", "given a", "given a (2)", "given given a"]
    assert (table[["given a (2)", "given given a"]].to_numpy() == frame.to_numpy()).all()
    assert (to_values(table).numpy() == result.predictions).all()


@pytest.mark.parametrize("is_several", [True, False])
def test_targets_that_the_outputs_do_not_fit_are_refused(is_several: bool) -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    targets = x[:, :2] > 0 if is_several else (torch.arange(60) % 3).double()
    with pytest.raises(InvalidInput, match="output"):
        gs.out_of_sample(torch.nn.Linear(4, 3), (x, targets))


@pytest.mark.parametrize("source", [None, Ridge()], ids=["kernel", "estimator"])
def test_predicted_targets_have_the_names_of_their_columns(source: Any) -> None:
    frame = pandas.DataFrame(X[:60], columns=list("abcde"))
    one, two = frame["a"] + 0.1, frame[["a", "b"]]
    for y, names in ((one, ["a"]), (frame[["a"]], ["a"]), (two, ["a", "b"])):
        result = gs.out_of_sample(source, (frame, y))
        assert list(result.to_pandas()) == [*names, *(f"given {name}" for name in names)]
    for y in (one.to_numpy(), two.to_numpy(), pandas.DataFrame(two.to_numpy())):
        assert gs.out_of_sample(source, (frame, y)).target_names == ()
    classes = gs.out_of_sample(
        LogisticRegression() if source else None, (X, pandas.Series(Y, name="kind"))
    )
    assert list(classes.to_pandas()) == ["0", "1", "2", "given label"]
