"""Columns that give the label away: indicators without the first value, ranges with repeats, strong features."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression

import gapscope as gs
from gapscope.base.samples import as_samples
from gapscope.labels.copied_inputs import leaking_column_note
from gapscope.labels.leaking_columns import find_leaking_columns

RNG = np.random.default_rng(0)
X, Y = cast(Any, load_wine(return_X_y=True, as_frame=True))
Y = Y.to_numpy().copy()
WRONG = RNG.choice(len(Y), 27, replace=False)
Y[WRONG] = (Y[WRONG] + 1) % 3
DAYS = Y * 30 + RNG.integers(0, 20, len(Y))
INDICATORS = pandas.get_dummies(pandas.Series(Y).map({0: "a", 1: "b", 2: "c"}), drop_first=True)
RARE = (RNG.random(len(Y)) < 0.03).astype(float)
LEAKS: dict[str, dict[str, Any]] = {
    "the label": {"code": Y},
    "indicators": {"b": INDICATORS["b"], "c": INDICATORS["c"]},
    "indicators after a flag": {"flag": RARE, "b": INDICATORS["b"], "c": INDICATORS["c"]},
    "ranges with repeats": {"days": DAYS},
    "values": {"lot": 3 * Y + RNG.integers(0, 3, len(Y))},
}


@pytest.mark.parametrize("kind", LEAKS)
def test_columns_that_decide_the_label_are_found(kind: str) -> None:
    samples = as_samples((X.assign(**LEAKS[kind]).astype(float), Y))
    columns = find_leaking_columns(samples)
    assert columns.is_leak and columns.others is not None and columns.others < 0.9
    assert any(name in columns.evidence for name in LEAKS[kind])
    assert len(leaking_column_note(samples)) == 1
    assert not leaking_column_note(as_samples((X, Y)))


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer, load_wine])
def test_strong_features_are_no_leak(load: Any) -> None:
    x, y = load(return_X_y=True)
    assert not find_leaking_columns(as_samples((x, y))).is_leak
    assert not find_leaking_columns(as_samples((x[:, -1:].repeat(2, 1), y))).is_leak


def test_labels_of_an_unrelated_column_with_few_repeats_are_not_predicted() -> None:
    for n_values in (40, 100, 400):
        column = RNG.integers(0, n_values, 150)
        samples = as_samples((np.stack([column, column % 3], 1).astype(float), np.arange(150) % 3))
        assert find_leaking_columns(samples).score < 0.7


@pytest.mark.filterwarnings("ignore")  # a fit that does not converge
def test_every_verb_has_a_note_on_the_column() -> None:
    frame = X.assign(code=Y)
    data = frame, Y
    results: list[Any] = [
        gs.out_of_sample(None, data),
        gs.out_of_sample(LinearRegression(), (frame, Y + RNG.normal(size=len(Y)) / 100)),
        gs.out_of_sample(LogisticRegression(C=1e-3, max_iter=5), data),
        gs.forecast_accuracy(None, data),
        gs.estimate_label_noise(None, data),
        gs.find_label_issues(None, data),
    ]
    for result in results:
        assert sum("olumn code" in note for note in result.notes) == 1


@pytest.mark.parametrize("jitter", [0.0, 1e-3])
@pytest.mark.parametrize("is_regression", [False, True])
def test_columns_that_name_a_group_of_copies_are_no_leak(
    jitter: float, is_regression: bool
) -> None:
    rng = np.random.default_rng(1)
    y: Any = rng.normal(size=40) if is_regression else rng.integers(0, 2, 40)
    order = rng.permutation(400)
    x = np.tile(rng.normal(size=(40, 5)), (10, 1))[order]
    x = x + jitter * rng.normal(size=x.shape)
    y = np.tile(y, 10)[order]
    assert not find_leaking_columns(as_samples((x, y))).is_leak
    assert not leaking_column_note(as_samples((x, y)))
    result = gs.check(None, (x, y), only=["GS101", "GS107", "GS108"])
    assert result.codes == (("GS108",) if jitter else ("GS101",))
    leak = np.column_stack([x, y])
    assert is_regression or find_leaking_columns(as_samples((leak, y))).is_leak


def test_few_different_rows_are_not_judged() -> None:
    x = np.tile(np.random.default_rng(0).normal(size=(6, 3)), (20, 1))
    result = gs.check(None, (x, np.tile([0, 1, 1, 0, 1, 0], 20)), only=["GS107"])
    assert "6" in result.not_checked[0].reason and not result.fine


@pytest.mark.parametrize(("fraction", "n"), [(0.08, 200), (0.12, 800)])
def test_strong_features_of_rare_classes_are_no_leak(fraction: float, n: int) -> None:
    found = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = (rng.random(n) < fraction).astype(int)
        x = rng.normal(size=(n, 3))
        x[:, 0] += 3 * y
        found += find_leaking_columns(as_samples((x, y))).is_leak
        x[:, 0] = y + 0.01 * rng.normal(size=n)
        assert find_leaking_columns(as_samples((x, y))).is_leak
    assert found <= 1


def test_two_different_rows_are_read_by_label_issues() -> None:
    frame = pandas.DataFrame({"text": ["x", "y"] * 30, "kind": ["p", "q"] * 30})
    issues = gs.find_label_issues(None, frame, target="kind")
    assert not any("alone predict" in note for note in issues.notes)


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize(
    "leak", [lambda y: y / 2, lambda y: 1 - y, lambda y: y.map({0: "a", 1: "b", 2: "c"})]
)
def test_a_copy_of_the_label_is_a_leak_beside_columns_that_predict_it_as_well(
    load: Any, leak: Any
) -> None:
    x, y = load(return_X_y=True, as_frame=True)
    frame = x.assign(leak=leak(y))
    finding = gs.check(None, (frame, y), only=["GS107"]).findings[0]
    assert "column leak alone" in finding.evidence and finding.cost is not None
    assert 0 <= finding.cost < 0.03
    samples = as_samples((pandas.get_dummies(frame).astype(float), y))
    assert len(leaking_column_note(samples)) == 1
    wrong = y.copy()
    wrong[:3] = (wrong[:3] + 1) % 2
    assert not find_leaking_columns(as_samples((x.assign(leak=wrong), y))).is_copy


def test_a_target_in_other_units_is_a_leak_beside_columns_that_predict_it_as_well() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200))
    y = a + b
    for leak, expected in ((32 - 1.8 * y, True), (y + 1e-2 * rng.normal(size=200), False)):
        samples = as_samples((np.stack([a, b, leak], 1), y), is_exact=True)
        assert find_leaking_columns(samples).is_leak is expected


@pytest.mark.parametrize("share", [0.5, 0.15])
@pytest.mark.parametrize("kind", ["date", "number"])
def test_missing_values_of_one_class_give_the_label_away(kind: str, share: float) -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(150) < share).astype(int)
    frame = pandas.DataFrame(rng.normal(size=(150, 3)), columns=["a", "b", "c"])
    days = rng.integers(0, 8, 150)
    values = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(days, "D")
    column = pandas.Series(values if kind == "date" else days.astype(float))
    closed = frame.assign(closed=column.where(y == 1), y=y)
    (finding,) = gs.check(None, closed, target="y", only=["GS107"]).findings
    assert "column closed, by its missing values" in finding.evidence
    # gaps in a part of one class, or in both, give nothing away
    for lacks in ((y == 1) & (rng.random(150) < 0.8), rng.random(150) < 0.5):
        other = frame.assign(closed=column.mask(lacks), y=y)
        assert not gs.check(None, other, target="y", only=["GS107"]).findings


def test_gaps_belong_to_the_rows_with_a_label() -> None:
    rng = np.random.default_rng(0)
    y = pandas.Series(rng.integers(0, 2, 120))
    frame = pandas.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "c"])
    frame["closed"] = pandas.Series(rng.integers(0, 5, 120).astype(float)).where(y == 1)
    frame["y"] = y.where(rng.random(120) < 0.8, -100)
    (finding,) = gs.check(None, frame, target="y", only=["GS107"]).findings
    assert "by its missing values" in finding.evidence


def test_columns_that_predict_less_than_the_mean_are_no_error() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = gs.Samples(
        torch.randn(80, 2, generator=generator), torch.randn(80, 1, generator=generator)
    )
    assert find_leaking_columns(samples).score < 0.5


def test_rows_with_one_value_have_no_order() -> None:
    """Rows in the order of time: the next row with the same weekday is near in time."""
    days = torch.arange(365.0).double()
    season = (days / 58).sin()[:, None]
    weekday = days % 7
    table = torch.stack([weekday, days.cos()], 1)
    assert find_leaking_columns(gs.Samples(table, season)).score < 0.1
    mixed = torch.randperm(365, generator=torch.Generator().manual_seed(0))
    found = [
        find_leaking_columns(gs.Samples(table[r], season[r])).score
        for r in (mixed, mixed.sort()[0])
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-9)
    # values of one or two rows are predicted by the values next to them
    pairs = torch.stack([days // 2, days.cos()], 1)
    assert find_leaking_columns(gs.Samples(pairs, season)).score > 0.99


@pytest.mark.parametrize("is_regression", [False, True])
def test_one_of_many_columns_is_found(is_regression: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 700))
    y = x[:, 0] + rng.normal(size=100)
    y = y if is_regression else (y > 0).astype(int)
    x[:, 555] = y + 0.01 * rng.normal(size=100)
    (note,) = leaking_column_note(as_samples((x, y)))
    assert note.startswith("Column 555 alone")
    result = gs.check(None, (x, y), only=["GS103", "GS107"], time_budget=5)
    assert result.codes == ("GS107",) and [item.code for item in result.not_checked] == ["GS103"]
    x[:, 600] = np.arange(100)
    (finding,) = gs.check(None, (x, y), only=["GS107"]).findings
    assert "counts the rows: 600" in finding.evidence


@pytest.mark.parametrize(("n", "share"), [(30, 0.2), (40, 0.1)])
def test_the_best_of_many_columns_of_noise_is_no_leak(n: int, share: float) -> None:
    rng = np.random.default_rng(0)
    y = (np.arange(n) < share * n).astype(int)
    columns = find_leaking_columns(as_samples((rng.normal(size=(n, 1500)), y)))
    assert not columns.is_leak and columns.score < 0.98


@pytest.mark.parametrize(
    ("n", "n_rare", "d"), [(40, 5, 10), (48, 8, 10), (45, 15, 50), (90, 9, 20), (45, 20, 200)]
)
def test_a_column_that_separates_few_rows_is_found(n: int, n_rare: int, d: int) -> None:
    """Noise has as few borders between classes in less than 1 of 200 tables."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(n) < n_rare).astype(int)
    x = rng.normal(size=(n, d))
    assert not find_leaking_columns(as_samples((x, y))).is_leak
    x[:, 3] = rng.random(n) + 2 * y
    columns = find_leaking_columns(as_samples((x, y)))
    assert columns.is_leak and columns.score == 1


@pytest.mark.parametrize(("n", "n_rare", "d"), [(30, 2, 400), (32, 16, 10)])
def test_two_rows_of_a_class_are_together_by_chance(n: int, n_rare: int, d: int) -> None:
    x = np.random.default_rng(0).normal(size=(n, d))
    x[:, 3] = np.arange(n)
    y = np.isin(np.arange(n) // 2, np.arange(n_rare // 2) * (n // n_rare)).astype(int)
    columns = find_leaking_columns(as_samples((x, y)))
    assert y.sum() == n_rare and not columns.is_leak
