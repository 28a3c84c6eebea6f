"""Fitted scikit-learn estimators: their own containers, folds without repeats, advice that fits them."""

from __future__ import annotations

from typing import Any, cast

import numpy
import pandas
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Lasso, LinearRegression, LogisticRegression, RidgeCV
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import gapscope as gs
from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput
from gapscope.base.rows import take_rows
from gapscope.base.samples import as_samples
from gapscope.checks import estimators
from gapscope.checks.estimators import EstimatorScores
from gapscope.checks.fixes import FIXES
from gapscope.checks.result import CheckResult

WORDS = ("late train", "lost card", "new flat", "old car")


def questions(n: int = 120) -> tuple[list[str], numpy.ndarray]:
    """Texts of four classes, a tenth with another label."""
    rng = numpy.random.default_rng(0)
    labels = numpy.arange(n) % 4
    texts = [f"{WORDS[label]} number {rng.integers(90)} of {rng.integers(90)}" for label in labels]
    labels[rng.permutation(n)[: n // 10]] = 0
    return texts, labels


def folds(result: CheckResult) -> float:
    assert result.account is not None and result.account.expected is not None
    return result.account.expected.value


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sparse_matrices_and_columns_of_texts_are_judged_by_folds() -> None:
    texts, labels = questions()
    sparse = TfidfVectorizer().fit_transform(texts)
    result = gs.check(
        LogisticRegression().fit(sparse, labels),
        (sparse, labels),
        train_fn=True,
        only=["GS402", "GS105"],
    )
    assert folds(result) > 0.8 and result.tried is not None
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, labels)
    as_list = gs.check(pipeline, (texts, labels), only=["GS402"])
    as_array = gs.check(pipeline, (numpy.array(texts, dtype=object), labels), only=["GS402"])
    assert folds(as_list) == folds(as_array) > 0.8


def test_folds_leave_repeats_out_as_the_forecast_does() -> None:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(150, 4))
    y = (x[:, 0] + rng.normal(size=150) > 0).astype(int)
    rows = numpy.concatenate([numpy.arange(150), numpy.arange(100)])
    forest = RandomForestClassifier(20, random_state=0)
    once = gs.check(forest.fit(x, y), (x, y), only=["GS101", "GS402"])
    twice = gs.check(forest.fit(x[rows], y[rows]), (x[rows], y[rows]), only=["GS101", "GS402"])
    assert "GS101" in twice.codes and folds(twice) == folds(once)
    assert "without repeats" in repr(twice) and "without repeats" not in repr(once)


def test_advice_against_overfitting_is_one_for_estimators() -> None:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = (x[:, 0] + rng.normal(size=200) > 0).astype(int)
    result = gs.check(RandomForestClassifier(20, random_state=0).fit(x, y), (x, y), only=["GS402"])
    assert "dropout" not in result.findings[0].action and "trees" in result.findings[0].action
    assert "above" not in result.findings[0].action


def test_an_estimator_is_scored_on_all_samples() -> None:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(2300, 2))
    y = (x[:, 0] > 0).astype(int)
    y[-1] = 1 - y[-1]
    model = LogisticRegression().fit(x, y)
    result = gs.check(model, (x, y), only=["GS402"])
    assert result.account is not None and result.account.training == pytest.approx(
        model.score(x, y), abs=1e-12
    )
    assert result.n_samples == 2300 and "network was read" not in repr(result)
    assert "network was read" not in repr(gs.check(None, (x, y), only=["GS101"]))


def test_rows_of_a_sparse_matrix() -> None:
    sparse = TfidfVectorizer().fit_transform(questions()[0])
    assert (take_rows(sparse, numpy.array([3, 1])).toarray() == sparse.toarray()[[3, 1]]).all()


VERBS = {
    "check": lambda estimator, data: gs.check(estimator, data, only=["GS402"]),
    "out_of_sample": gs.out_of_sample,
    "learning_curve": gs.learning_curve,
}


@pytest.mark.parametrize("kind", ["clusterer", "outlier detector", "density estimator", "pipeline"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_predicts_no_labels_is_refused(verb: str, kind: str) -> None:
    x = numpy.random.default_rng(0).normal(size=(120, 3))
    estimator: Any = {
        "clusterer": KMeans(2),
        "outlier detector": IsolationForest(n_estimators=5),
        "density estimator": GaussianMixture(2),
        "pipeline": make_pipeline(StandardScaler(), KMeans(2)),
    }[kind].fit(x)
    for labels in ((x[:, 0] > 0).astype(int), numpy.where(x[:, 0] > 0, "a", "b")):
        with pytest.raises(InvalidInput, match="predict labels or targets"):
            VERBS[verb](estimator, (x, labels))


class Least:
    """Least squares of another library: neither tags nor base classes of scikit-learn."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {}

    def set_params(self, **options: Any) -> Least:
        return self

    def fit(self, x: Any, y: Any) -> Least:
        self.classes = numpy.unique(y)
        targets = y if numpy.asarray(y).dtype.kind == "f" else numpy.searchsorted(self.classes, y)
        self.weights = numpy.linalg.lstsq(x, targets - numpy.mean(targets), rcond=None)[0]
        self.mean = numpy.mean(targets)
        self.is_regressor = numpy.asarray(y).dtype.kind == "f"
        return self

    def predict(self, x: Any) -> Any:
        values = x @ self.weights + self.mean
        return values if self.is_regressor else self.classes[(values > 0.5).astype(int)]


def test_the_labels_say_what_an_estimator_without_tags_predicts() -> None:
    x = numpy.random.default_rng(0).normal(size=(120, 3))
    positive = x[:, 0] > 0
    for labels in (
        positive.astype(int),
        numpy.where(positive, "a", "b"),
        numpy.where(positive, 1, -1),
    ):
        assert gs.learning_curve(Least(), (x, labels)).score_name == "accuracy"
        result = gs.check(Least().fit(x, labels), (x, labels), only=["GS402"])
        assert result.account is not None and result.account.score == "accuracy"
    assert gs.learning_curve(Least(), (x, x[:, 0])).score_name == "R^2"
    # such as a wrapper of networks of any task
    with_probabilities = type("WithProbabilities", (Least,), {"predict_proba": Least.predict})
    assert gs.learning_curve(with_probabilities(), (x, x[:, 0])).score_name == "R^2"
    assert gs.out_of_sample(Least(), (x, x[:, 0])).score > 0.9


@pytest.mark.parametrize("classes", [(-1, 1), (-2, -1), (-8, 3)])
def test_negative_integers_are_classes_of_a_classifier(classes: tuple[int, int]) -> None:
    x = numpy.random.default_rng(0).normal(size=(120, 3))
    positive = x[:, 0] > 0
    plain, labels = positive.astype(int), numpy.where(positive, classes[1], classes[0])
    expected = gs.check(
        LogisticRegression().fit(x, plain),
        (x, plain),
        test=(x[:50] + 1, plain[:50]),
        only=["GS402"],
    )
    found = gs.check(
        LogisticRegression().fit(x, labels),
        (x, pandas.Series(labels)),
        test=(x[:50] + 1, labels[:50]),
        only=["GS402"],
    )
    assert found.account == expected.account and found.findings == expected.findings


def test_an_estimator_is_fitted_again_without_moving_random_states() -> None:
    x, y = load_wine(return_X_y=True)
    forest = RandomForestClassifier(5).fit(x, y)
    before: Any = numpy.random.get_state()
    accounts = [gs.check(forest, (x, y)).account for _ in range(2)]
    after: Any = numpy.random.get_state()
    assert before[2] == after[2] and numpy.array_equal(before[1], after[1])
    assert accounts[0] == accounts[1]


def test_columns_of_a_frame_are_scaled_where_advice_is_tried() -> None:
    x, y = load_wine(as_frame=True, return_X_y=True)
    result = gs.check(KNeighborsClassifier().fit(x, y), (x, y), train_fn=True)
    assert result.best_fix is not None and result.best_fix.name == "standardize inputs"


def wines(*, wrong: int = 0) -> tuple[Any, Any]:
    """Wines as a frame of named columns, and names of classes; some are wrong."""
    x, y = cast(Any, load_wine(return_X_y=True, as_frame=True))
    names = y.map({0: "red", 1: "rose", 2: "white"})
    index = [f"bottle {number}" for number in range(len(x))]
    names.iloc[:wrong] = "white"
    return x.set_axis(index), names.set_axis(index)


def test_the_best_fix_returns_rows_of_the_frame_and_names_of_classes() -> None:
    frame, names = wines()
    # weights by name: clones are fitted to the names, not to their numbers
    model = LogisticRegression(max_iter=20, class_weight={"red": 1, "rose": 2, "white": 1})
    with pytest.warns():
        result = gs.check(
            model.fit(frame, names), (frame, names), train_fn=True, only=["GS105"], time_budget=None
        )
    assert result.best_fix is not None and result.best_fix.name == "standardize inputs"
    (scaled, labels), _ = result.apply()
    pandas.testing.assert_series_equal(labels, names)
    numpy.testing.assert_allclose(scaled, (frame - frame.mean()) / frame.std(ddof=0), atol=1e-9)
    assert list(scaled.columns) == list(frame.columns)


@pytest.mark.thorough
def test_corrected_and_dropped_rows_of_a_frame_keep_their_names() -> None:
    frame, names = wines(wrong=20)
    forest = RandomForestClassifier(20, random_state=0).fit(frame, names)
    scores = EstimatorScores(forest, (frame, names), as_samples((frame, names)))
    samples = as_samples((frame, names))
    kept, labels = scores.changed(FIXES["drop flagged labels"], samples)
    assert 150 < len(kept) < 178 and (kept.index == labels.index).all()
    pandas.testing.assert_frame_equal(kept, frame.loc[kept.index])
    pandas.testing.assert_series_equal(labels, names.loc[labels.index])
    same, corrected = scores.changed(FIXES["correct flagged labels"], samples)
    pandas.testing.assert_frame_equal(same, frame)
    assert (corrected.index == frame.index).all() and set(corrected) == {"red", "rose", "white"}
    assert (corrected.iloc[:20] == "red").sum() > 3


def test_clones_that_cannot_be_fitted_are_a_reason_not_an_error() -> None:
    frame = pandas.DataFrame({"size": numpy.arange(60.0) % 7, "town": ["a", "b"] * 30})
    frame.loc[11, "town"] = "c"  # a category that one fold alone holds
    labels = (frame["size"] > 3).astype(int)
    encode = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    model = make_pipeline(encode, LogisticRegression()).fit(frame, labels)
    result = gs.check(model, (frame, labels), only=["GS402"])
    assert "unknown categories" in result.not_checked[0].reason


@pytest.mark.filterwarnings("ignore")  # of ill-conditioned matrices
@pytest.mark.parametrize("test_rows", [0, 200])
@pytest.mark.parametrize("model", [RidgeCV(), LinearRegression(), Lasso()], ids=repr)
def test_unscaled_columns_cost_an_estimator_what_its_own_clones_lose(
    model: Any, test_rows: int
) -> None:
    frame, y = cast(Any, load_diabetes(return_X_y=True, as_frame=True, scaled=False))
    frame["s1"] *= 1e5
    train = frame.iloc[test_rows:], y.iloc[test_rows:]
    test = (frame.iloc[:test_rows], y.iloc[:test_rows]) if test_rows else None
    result = gs.check(model.fit(*train), train, test=test)
    costs = [finding.cost for finding in result.findings if finding.code == "GS105"]
    # shuffled folds: 0.00, 0.04 and 0.01
    assert all(cost is not None and cost < 0.1 for cost in costs)
    if isinstance(model, RidgeCV) and not test_rows:
        assert "training run limits" not in result.headline


def test_a_gain_from_standardized_columns_is_the_cost() -> None:
    frame, names = wines()
    frame["ash"] *= 1e4
    result = gs.check(KNeighborsClassifier().fit(frame, names), (frame, names), only=["GS105"])
    (low, high) = result.findings[0].interval or (0.0, 0.0)
    folds = [
        float(cross_val_score(model, frame, names, cv=5).mean())
        for model in (
            make_pipeline(StandardScaler(), KNeighborsClassifier()),
            KNeighborsClassifier(),
        )
    ]
    assert low < folds[0] - folds[1] < high


def test_trees_are_not_tried_on_scaled_columns() -> None:
    frame, names = wines()
    forest = RandomForestClassifier(5, random_state=0).fit(frame, names)
    result = gs.check(forest, (frame, names), train_fn=True, only=["GS105"], time_budget=None)
    assert "standardize inputs" not in " ".join(result.tried_lines)


def three_classes() -> tuple[numpy.ndarray, numpy.ndarray, Any]:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    y = (x @ rng.normal(size=(6, 3))).argmax(1)
    return x, y, LogisticRegression().fit(x[:120], y[:120])


def expected_on_test(model: Any, data: Any, test: Any) -> float:
    return folds(gs.check(model, data, test=test, only=["GS402"]))


def test_labels_of_test_samples_are_compared_in_the_form_of_the_training_labels() -> None:
    x, y, model = three_classes()
    truth = model.score(x[120:], y[120:])
    for labels in (y[120:], numpy.eye(3)[y[120:]], pandas.Series(y[120:], name="y").to_frame()):
        assert expected_on_test(model, (x[:120], y[:120]), (x[120:], labels)) == truth
    unlabelled = numpy.where(numpy.arange(80) < 40, -100, y[120:])
    half = model.score(x[160:], y[160:])
    assert expected_on_test(model, (x[:120], y[:120]), (x[120:], unlabelled)) == half
    names = numpy.array(["c", "a", "b"])[y]
    named = LogisticRegression().fit(x[:120], names[:120])
    categories = pandas.Series(names[120:]).astype("category")
    assert expected_on_test(named, (x[:120], names[:120]), (x[120:], categories)) == truth


def test_labels_that_an_estimator_was_not_fitted_with_are_refused() -> None:
    x, y, model = three_classes()
    with pytest.raises(InvalidInput, match="are 0, 1, 2"):
        gs.check(model, (x[:120], y[:120]), test=(x[120:], numpy.where(y[120:] == 2, 5, y[120:])))
    with pytest.raises(InvalidInput, match="got 0, 1, 2"):
        gs.check(LogisticRegression().fit(x, numpy.array(list("abc"))[y]), (x, y))
    with pytest.raises(InvalidInput, match="1, 2; got 0"):
        gs.check(LogisticRegression().fit(x, 1 + (y > 0)), (x, (y > 0).astype(int)))
    with pytest.raises(InvalidInput, match="the data have 3"):
        gs.check(model, (x, numpy.eye(3)[y]))


def test_columns_of_a_test_frame_are_found_by_name() -> None:
    x, y, _ = three_classes()
    frame = pandas.DataFrame(x, columns=list("abcdef"))
    train, test = frame[:120], frame[120:]
    model = LogisticRegression().fit(train, y[:120])
    truth = model.score(test, y[120:])
    assert expected_on_test(model, (train, y[:120]), (test[list("fcbade")], y[120:])) == truth
    with pytest.raises(InvalidInput, match="data has not: z"):
        gs.check(model, (train, y[:120]), test=(test.assign(z=1.0), y[120:]))
    with pytest.raises(InvalidInput, match=r"on test; .* NaN"):
        gs.check(model, (train, y[:120]), test=(test.assign(a=numpy.nan), y[120:]))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_columns_of_a_test_table_are_matched_by_name(library: str) -> None:
    module = pytest.importorskip(library)
    columns = {name: [float(k), 2.0] for k, name in enumerate("abc")}
    make = module.table if library == "pyarrow" else module.DataFrame
    first, second = (make({name: columns[name] for name in order}) for order in ("abc", "cab"))
    ordered = estimators._in_order_of(second, first)
    assert list(getattr(ordered, "column_names", ordered.columns)) == [*"abc"]
    wider = make(columns | {"d": [0.0, 0.0]})
    with pytest.raises(InvalidInput, match="data has not: d"):
        estimators._in_order_of(wider, first)


@pytest.mark.parametrize("as_array", [False, True])
def test_new_rows_are_scaled_as_the_training_rows(as_array: bool) -> None:
    frame, names = wines()
    frame["ash"] *= 1e4
    x: Any = frame.to_numpy() if as_array else frame
    model = KNeighborsClassifier()
    result = gs.check(model.fit(x[::2], names[::2]), (x[::2], names[::2]), train_fn=True)
    assert result.best_fix is not None and result.best_fix.name == "standardize inputs"
    assert "map_inputs" in result.tried_lines[-1]
    (scaled, labels), _ = result.apply()
    numpy.testing.assert_allclose(result.map_inputs(x[::2]), scaled, atol=1e-9)
    model.fit(scaled, labels)
    assert model.score(result.map_inputs(x[1::2]), names[1::2]) > 0.9
    narrow = x[:, 1:] if as_array else x.drop(columns="ash")
    for wrong in (narrow, (x, names), gs.Samples(tensor_of(numpy.zeros((2, 13))), None), None):
        with pytest.raises(InvalidInput, match="form of the training"):
            result.map_inputs(wrong)


def test_an_estimator_that_reads_the_texts_of_a_frame_is_judged_on_them() -> None:
    texts = [f"{WORDS[k % 3]} number {k}" for k in range(90)]
    frame = pandas.DataFrame({"t": texts, "num": [k * k % 7 for k in range(90)]})
    labels = [k % 3 for k in range(90)]
    model = make_pipeline(
        make_column_transformer((TfidfVectorizer(), "t"), remainder="drop"), LogisticRegression()
    )
    result = gs.check(model.fit(frame, labels), (frame, labels), only=["GS101", "GS106", "GS402"])
    assert folds(result) > 0.9 and not result.findings
