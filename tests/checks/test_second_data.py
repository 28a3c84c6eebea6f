"""Test samples: whether they differ from the training samples, and the account of regression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import mean_squared_error, r2_score
from torch import Tensor, nn
from typer.testing import CliRunner

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.cli import app
from gapscope.results.formatting import format_number
from gapscope.statistics.intervals import r_squared_interval

Data = tuple[Tensor, Tensor]


def draw(n: int, seed: int, kind: str = "regression") -> Data:
    """Samples of one kind, drawn from one distribution."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    signal = x @ torch.tensor([1.0, -1.0, 0.5, 0.0]) + 0.3 * torch.randn(n, generator=g)
    if kind == "regression":
        return x, 10 * signal[:, None]
    if kind == "multi-label":
        return x, torch.stack([signal > 0, signal > 1, x[:, 3] > 0], 1)
    labels = (signal > 0).long() + (signal > 1).long()
    if kind == "images":
        return x[:, :, None, None] + torch.rand(n, 4, 6, 6, generator=g), labels
    if kind == "tokens":
        return torch.randint(0, 30, (n, 12), generator=g) + labels[:, None], labels
    if kind == "positions":
        ids = torch.randint(0, 30, (n, 8), generator=g)
        return ids, ids % 3
    return x, labels


def table(n: int, seed: int) -> pandas.DataFrame:
    """A raw table with text, gaps and a price in whole numbers."""
    x, y = draw(n, seed)
    frame = pandas.DataFrame(x.numpy(), columns=["a", "b", "c", "d"])
    frame["colour"] = np.where(frame["d"] > 0, "red", "blue")
    frame.loc[::20, "a"] = np.nan
    return frame.assign(price=(1000 + 10 * y[:, 0].numpy()).astype(int))


@pytest.mark.parametrize(
    "kind", ["regression", "classification", "multi-label", "images", "tokens", "positions"]
)
def test_samples_of_one_distribution_are_fine(kind: str) -> None:
    result = gs.check(None, draw(400, 0, kind), test=draw(200, 1, kind), only=["GS110"])
    assert [item.code for item in result.fine] == ["GS110"], repr(result)


def moved(kind: str) -> tuple[Data, Data, str]:
    """Training samples, test samples with one change, and a word of the finding."""
    base = {"brighter": "images", "other tokens": "tokens", "label": "multi-label", "class": "classification",
            "tags": "positions"}.get(kind, "regression")  # fmt: skip
    train, (x, y) = draw(400, 0, base), draw(200, 1, base)
    if kind == "column":
        x[:, 2] += 1
    elif kind == "marker":
        x[::12, 3] = -999
    elif kind == "target":
        y = y + 10
    elif kind == "range":
        y[::15] += 200
    elif kind == "brighter":
        x = x + 1
    elif kind == "other tokens":
        x = x // 2
    elif kind == "label":
        y[:, 1] = True
    elif kind == "class":
        x, y = x[y > 0], y[y > 0]
    else:
        y = torch.where(torch.arange(8) < 4, 0, y)
    words = {"column": "column 2", "marker": "outside", "target": "the target", "range": "outside", "label": "label 1",
             "brighter": "mean of channel", "other tokens": "tells", "class": "class 0", "tags": "class 0"}  # fmt: skip
    return train, (x, y), words[kind]


@pytest.mark.parametrize("kind", ["column", "marker", "target", "range", "brighter", "other tokens", "label", "class",
                                  "tags"])  # fmt: skip
def test_what_moved_is_named(kind: str) -> None:
    train, test, word = moved(kind)
    finding = gs.check(None, train, test=test, only=["GS110"]).findings[0]
    assert finding.code == "GS110" and word in finding.evidence


def test_texts_are_told_apart_as_a_whole() -> None:
    train = [f"{'good' if i % 2 else 'bad'} film {i}" for i in range(120)]
    test = [f"the weather is {'fine' if i % 2 else 'cold'} today {i}" for i in range(80)]
    labels = [i % 2 for i in range(120)]
    finding = gs.check(None, (train, labels), test=(test, labels[:80]), only=["GS110"]).findings[0]
    assert "tells" in finding.evidence


def test_copies_of_training_samples_are_counted_for_regression() -> None:
    x, y = draw(300, 0)
    test = draw(100, 1)
    both = torch.cat([test[0], x[20:40]]), torch.cat([test[1], y[20:40]])
    result = gs.check(None, (x, y), test=both, only=["GS101"])
    assert (
        result.indices("GS101") == list(range(20, 40))
        and "20 of 120 test samples" in result.findings[0].evidence
    )


@pytest.mark.parametrize("n_targets", [1, 2])
def test_account_of_a_regressor_is_r_squared_on_test_samples(n_targets: int) -> None:
    (x, y), (x_test, y_test) = draw(200, 0), draw(300, 1)
    arrays = [part.numpy() for part in (x, y, x_test, y_test)]
    if n_targets == 2:
        arrays[1], arrays[3] = (
            np.concatenate([part, part[::-1]], 1) for part in (arrays[1], arrays[3])
        )
    forest = RandomForestRegressor(20, random_state=0).fit(arrays[0], arrays[1].squeeze())
    result = gs.check(forest, (arrays[0], arrays[1]), test=(arrays[2], arrays[3]))
    predicted = forest.predict(arrays[2]).reshape(300, -1)
    assert (
        result.account is not None
        and result.account.expected is not None
        and result.account.score == "R^2"
    )
    expected = result.account.expected
    weights = "uniform_average" if n_targets == 1 else "variance_weighted"
    assert expected.value == pytest.approx(r2_score(arrays[3], predicted, multioutput=weights))
    assert expected.low < expected.value < expected.high and "expected R^2" in repr(result)
    assert result.account.metrics["expected_r2"] == pytest.approx(expected.value)
    if n_targets == 1:
        assert f"{mean_squared_error(arrays[3], predicted) ** 0.5:.3g}" in repr(result)
    assert "GS402" in result.codes and not result.not_judged


def test_a_linear_model_does_not_depend_on_scales_and_folds_judge_it() -> None:
    x, y = draw(300, 0)
    x[:, 1] *= 1000
    result = gs.check(LinearRegression().fit(x.numpy(), y.numpy()), (x.numpy(), y.numpy()))
    assert {"GS105", "GS401", "GS402"} <= {item.code for item in result.fine}
    assert result.account is not None and result.account.expected is not None
    assert result.account.expected.source == "in five folds"


def test_a_network_that_learned_too_little_costs_r_squared() -> None:
    torch.manual_seed(0)
    train, test = draw(300, 0), draw(300, 1)
    network = nn.Linear(4, 1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    result = gs.check(network, train, test=test, time_budget=None)
    assert result.findings[0].code in ("GS401", "GS302") and "GS401" in result.codes
    assert result.account is not None and result.account.entries[0].cost > 0.3
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    # without test samples, weights that explain nothing are those of a network before training
    alone = gs.check(network, train, time_budget=None)
    assert alone.account is None and "GS401" in {item.code for item in alone.not_checked}


def test_the_interval_of_r_squared_is_that_of_a_bootstrap() -> None:
    random = np.random.default_rng(0)
    y = random.normal(size=(400, 1))
    predicted = 0.8 * y + 0.4 * random.normal(size=(400, 1))
    value, low, high = r_squared_interval(predicted, y)
    draws = [random.integers(400, size=400) for _ in range(500)]
    ends = np.quantile([r2_score(y[rows], predicted[rows]) for rows in draws], [0.05, 0.95])
    assert value == pytest.approx(r2_score(y, predicted))
    assert (low, high) == pytest.approx(tuple(ends), abs=0.01)
    assert np.isnan(r_squared_interval(predicted, 0 * y)[0])


def test_whole_numbers_of_a_raw_table_are_targets_of_regression_in_both_spellings(
    tmp_path: Path,
) -> None:
    train, test = table(300, 0), table(150, 1)
    test["b"] += 2
    result = gs.check(None, train, target="price", test=test)
    assert result.task == "regressor" and "GS110" in result.codes
    for name, frame in (("train", train), ("test", test)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    arguments = [
        "check",
        str(tmp_path / "train.csv"),
        "--target",
        "price",
        "--test",
        str(tmp_path / "test.csv"),
    ]
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(answer.stdout)["networks"][0]["findings"]
    evidence = {finding.code: finding.evidence for finding in result.findings}
    assert {finding["code"]: finding["evidence"] for finding in found} == evidence


@pytest.mark.parametrize("numbers", [range(30), range(1, 31), range(500, 520)])
def test_numbered_classes_stay_classes(numbers: range) -> None:
    frame = pandas.DataFrame({"a": np.arange(300.0), "y": np.resize(np.array(numbers), 300)})
    assert gs.check(None, frame, target="y", only=["GS104"]).task == "classifier"


def test_labels_of_a_fitted_classifier_stay_classes() -> None:
    frame = pandas.DataFrame(
        {"a": np.random.default_rng(0).normal(size=300), "y": np.resize(np.arange(3, 93, 3), 300)}
    )
    classifier: Any = LogisticRegression().fit(frame[["a"]], frame["y"])
    assert gs.check(classifier, frame, target="y", only=["GS104"]).task == "classifier"


def test_a_second_table_needs_all_columns_and_gets_the_medians_of_the_first() -> None:
    train, test = table(200, 0), table(60, 1)
    with pytest.raises(InvalidInput, match=r"lacks b\."):
        gs.check(None, train, target="price", test=test.drop(columns="b"))
    test["a"] = np.nan
    finding = gs.check(None, train, target="price", test=test, only=["GS110"]).findings[0]
    assert format_number(float(train["a"].median())) in finding.evidence
