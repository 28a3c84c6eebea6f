"""Predictions of other models: their form, and whether they have seen the labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.model_selection import cross_val_predict
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.labels.given_predictions import check_probabilities

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, clean labels, and labels of which a fifth is wrong."""
    train = gs.load_dataset("digits").train
    x, y = train.inputs[:400].flatten(1), train.y[:400]
    return x, y, gs.data.inject_label_noise(y, 0.2, n_classes=10)


def _probabilities(x: Tensor, y: Tensor, epochs: int, *, held_out: bool) -> Any:
    model = MLPClassifier(64, max_iter=epochs, random_state=0)
    if held_out:
        return cross_val_predict(model, x.numpy(), y.numpy(), cv=5, method="predict_proba")
    return model.fit(x.numpy(), y.numpy()).predict_proba(x.numpy())


@pytest.mark.thorough
def test_predictions_that_do_not_fit_all_labels_are_recognized(
    digits: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, noisy = digits
    fitted = _probabilities(x, noisy, 300, held_out=False)
    agrees = float((fitted.argmax(1) == noisy.numpy()).mean())
    assert 0.8 < agrees < 0.98
    with pytest.raises(NotMeasurable, match="look fitted"):
        gs.estimate_label_noise(None, (x, noisy), pred_probs=fitted)
    issues = gs.find_label_issues(None, (x, noisy), pred_probs=fitted)
    assert issues.noise is None and "look fitted" in issues.sentences[0]
    held_out = gs.find_label_issues(None, (x, noisy))
    assert issues.method == held_out.method and torch.equal(issues.indices, held_out.indices)
    wrong = (y != noisy)[issues.indices[:40]]
    assert float(wrong.double().mean()) > 0.9
    unseen = gs.find_label_issues(labels=noisy, pred_probs=fitted)
    assert unseen.method == "pred_probs" and any("not looked at" in note for note in unseen.notes)


@pytest.mark.parametrize("pairs", [False, True])
def test_out_of_sample_probabilities_are_used(
    digits: tuple[Tensor, Tensor, Tensor], pairs: bool
) -> None:
    x, y, noisy = digits
    if pairs:  # every error is the next class, so that all models find the given label likely
        noisy = torch.where(y != noisy, (y + 1) % 10, y)
    issues = gs.find_label_issues(
        None, (x, noisy), pred_probs=_probabilities(x, noisy, 60, held_out=True)
    )
    assert issues.method == "pred_probs"
    assert not any("not looked at" in note for note in issues.notes)


def test_a_better_model_is_used_if_it_does_not_follow_errors(
    digits: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Probabilities of the true classes agree with more labels than any kernel of half of the inputs."""
    x, y, noisy = digits
    truth = torch.full((400, 10), 0.01).scatter(1, y[:, None], 0.91)
    issues = gs.find_label_issues(None, (x[:, ::2], noisy), pred_probs=truth)
    assert issues.method == "pred_probs"
    assert set(issues.indices[: issues.n_flagged].tolist()) == set(
        torch.nonzero(y != noisy).flatten().tolist()
    )


def test_what_gapscope_held_out_is_not_asked(digits: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, noisy = digits
    better = torch.cat([x, 20 * torch.eye(10)[y]], 1)
    issues = gs.find_label_issues(
        None, (x[:, ::8], noisy), pred_probs=gs.out_of_sample(better, (x, noisy))
    )
    assert issues.method == "pred_probs" and "look fitted" not in str(issues)


@pytest.mark.thorough
def test_labels_without_noise_that_are_fitted() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(120, 4, generator=generator), torch.randint(3, (120,), generator=generator)
    fitted = torch.full((120, 3), 0.01).scatter(1, y[:, None], 0.98)
    assert "look fitted" in gs.find_label_issues(None, (x, y), pred_probs=fitted).note
    easy = 5 * torch.eye(3)[y] + 0.1 * torch.randn(120, 3, generator=generator)
    assert gs.find_label_issues(None, (easy, y), pred_probs=fitted).n_flagged == 0
    constant = gs.find_label_issues(None, (torch.ones(120, 4), y), pred_probs=fitted)
    assert constant.noise is None and "120 of 120 samples have the same inputs" in constant.note


@pytest.mark.thorough
def test_targets_with_the_wrong_sign_spoil_predictions_but_not_the_list() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    y = 3 * x[:, 0] + 50 + 0.3 * torch.randn(200, generator=generator)
    y[:6] *= -1
    near = torch.cdist(x, x).fill_diagonal_(torch.inf).topk(8, largest=False).indices
    spoiled = y[near].mean(1)
    issues = gs.find_label_issues(None, (x, y), pred_probs=spoiled)
    assert issues.method.endswith("ridge") and any("median residual" in n for n in issues.notes)
    grouped = gs.find_label_issues(None, (x, y), groups=torch.arange(200) // 2)
    for each in (issues, grouped):
        flagged = each.indices[: each.n_flagged].tolist()
        assert set(range(6)) <= set(flagged) and len(flagged) < 15
    alone = gs.find_label_issues(labels=y, pred_probs=spoiled)
    assert alone.method == "pred_probs" and "rarely" not in str(alone)


def test_regression_takes_predicted_targets() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 4))
    y = 10 * x[:, 0] + 3 * x[:, 1] ** 2 + 0.3 * rng.normal(size=300)
    wrong = rng.choice(300, 15, replace=False)
    y[wrong] += 12
    forest = RandomForestRegressor(40, random_state=0)
    held_out = cross_val_predict(forest, x, y, cv=5)
    data = (torch.as_tensor(x).float(), torch.as_tensor(y).float()[:, None])
    calls: list[dict[str, Any]] = [{"data": data}, {"labels": data[1]}]
    for options in calls:
        issues = gs.find_label_issues(None, pred_probs=held_out, **options)
        assert issues.method == "pred_probs"
        assert set(issues.indices[:15].tolist()) == set(wrong.tolist())
        noise = gs.estimate_label_noise(None, pred_probs=held_out, **options)
        assert noise.is_upper_bound and noise.low <= 0.05 <= noise.high
    fitted = forest.fit(x, y).predict(x)
    assert "look fitted" in gs.find_label_issues(None, data, pred_probs=fitted).note
    with pytest.raises(NotMeasurable, match="look fitted"):
        gs.estimate_label_noise(None, data, pred_probs=fitted)


def test_wrong_forms() -> None:
    labels = torch.arange(400) % 3
    probabilities = torch.full((400, 3), 1 / 3)
    with pytest.raises(InvalidInput, match="sums to"):
        check_probabilities(2 * probabilities, labels)
    with pytest.raises(InvalidInput, match=r"\[400, classes\]"):
        check_probabilities(probabilities[:10], labels)
    with pytest.raises(InvalidInput, match="label 2"):
        check_probabilities(torch.full((400, 2), 0.5), labels)
    with pytest.raises(InvalidInput, match="row 3"):
        check_probabilities(probabilities.index_fill(0, torch.tensor([3]), math.nan), labels)
    targets = torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    x = torch.cat([targets, targets.square()], 1)
    for predictions, match in ((torch.zeros(399), "399"), (torch.full((400,), math.nan), "NaN")):
        with pytest.raises(InvalidInput, match=match):
            gs.find_label_issues(None, (x, targets), pred_probs=predictions)
    with pytest.raises(InvalidInput, match="regression targets"):
        gs.find_label_issues(None, (x, targets), pred_probs=torch.full((400, 3), 1 / 3))


def test_several_labels_without_inputs_are_not_looked_at() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 4, generator=generator)
    y = x[:, :2] > 0
    fitted = torch.where(y, 0.9, 0.1)
    notes = gs.find_label_issues(labels=y, pred_probs=fitted).notes
    assert any("not looked at" in note for note in notes)
    for pred_probs in (fitted, gs.out_of_sample(None, (x, y))):
        notes = gs.find_label_issues(None, (x, y), pred_probs=pred_probs).notes
        assert not any("not looked at" in note for note in notes)


@pytest.mark.parametrize("probabilities", [np.full((60, 2), np.nan), np.full((50, 2), 0.5)])
def test_probabilities_without_inputs_are_named(probabilities: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="pred_probs"):
        gs.find_label_issues(labels=[0, 1] * 30, pred_probs=probabilities)


LABELS = torch.arange(90) % 3
CHANCES = nn.functional.one_hot(LABELS, 3) * 0.7 + 0.1


@pytest.mark.parametrize(
    ("probabilities", "facts"),
    [
        (torch.where(torch.arange(90)[:, None] == 7, torch.nan, CHANCES), "NaN .* row 7"),
        (100 * CHANCES, "row 0 sums to 100; .* divide them by 100"),
        (CHANCES.log(), r"logits\.softmax"),
        (0.7 * CHANCES + torch.rand(90, 1) / 10, "all classes"),
    ],
)
def test_what_is_wrong_with_probabilities_is_named(probabilities: Tensor, facts: str) -> None:
    with pytest.raises(InvalidInput, match=facts):
        gs.find_label_issues(labels=LABELS, pred_probs=probabilities)


def test_rounded_probabilities_are_normalized() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = (2 * CHANCES + torch.rand(90, 3, generator=generator)).softmax(1)
    expected = gs.find_label_issues(labels=LABELS, pred_probs=exact)
    for rounded in (exact.bfloat16(), exact.double().numpy().round(1), exact.half()):
        issues = gs.find_label_issues(labels=LABELS, pred_probs=rounded)
        assert issues.n_flagged == expected.n_flagged


def test_held_out_predictions_of_labelled_rows_are_accepted() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    y[50:70] = -100
    held_out = gs.out_of_sample(None, (x, y))
    expected = gs.find_label_issues(None, (x, y), pred_probs=held_out)
    issues = gs.find_label_issues(labels=y, pred_probs=held_out)
    assert torch.equal(issues.indices, expected.indices) and 199 in issues.indices
    labelled = torch.cat([torch.arange(50), torch.arange(70, 200)])
    alone = gs.find_label_issues(labels=y[labelled], pred_probs=held_out)
    assert torch.equal(labelled[alone.indices], expected.indices)
    y[60] = 1
    with pytest.raises(InvalidInput, match="row 60"):
        gs.find_label_issues(labels=y, pred_probs=held_out)


@pytest.mark.parametrize("as_names", [True, False])
def test_columns_of_a_frame_are_matched_with_the_classes(as_names: bool) -> None:
    """Columns in another order are those of the classes that they are named after."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    probabilities = (
        (3 * torch.eye(3)[labels] + torch.randn(90, 3, generator=generator)).softmax(1).numpy()
    )
    names: list[Any] = [2, 0, 1]
    given: Any = labels
    if as_names:
        names = ["c2", "c0", "c1"]
        given = [f"c{k}" for k in labels.tolist()]
    frame = pandas.DataFrame(probabilities[:, [2, 0, 1]], columns=names)
    expected = gs.find_label_issues(labels=given, pred_probs=probabilities)
    assert torch.equal(
        gs.find_label_issues(labels=given, pred_probs=frame).indices, expected.indices
    )


def test_other_forms_of_probabilities_are_equal() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    probabilities = (3 * torch.eye(3)[labels] + torch.randn(90, 3, generator=generator)).softmax(1)
    expected = gs.find_label_issues(labels=labels, pred_probs=probabilities).indices
    reversed_memory = probabilities.numpy()[:, ::-1].copy()[:, ::-1]
    for form in (reversed_memory, probabilities.clone().requires_grad_(), probabilities.tolist()):
        assert torch.equal(gs.find_label_issues(labels=labels, pred_probs=form).indices, expected)
    with pytest.raises(InvalidInput, match="no table of numbers"):
        gs.find_label_issues(labels=labels, pred_probs=[["a"]] * 90)


def test_without_inputs_a_perfect_agreement_gives_no_rate() -> None:
    labels = torch.arange(90) % 3
    probabilities = 0.9 * torch.eye(3)[labels] + 0.1 / 3
    issues = gs.find_label_issues(labels=labels, pred_probs=probabilities)
    assert issues.noise is None
    assert "100.0 % of the labels" in issues.note
    with pytest.raises(NotMeasurable, match="Pass the inputs"):
        gs.estimate_label_noise(labels=labels, pred_probs=probabilities)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_exchanged_columns_get_no_rate(with_inputs: bool) -> None:
    y = torch.arange(120) % 4
    y[:6] = (y[:6] + 1) % 4
    right = torch.nn.functional.one_hot(torch.arange(120) % 4, 4) * 0.8 + 0.05
    x = right + 0.1 * torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    names = np.array(["a", "b", "c", "d"])[y.numpy()]
    data: dict[str, Any] = {"data": (x, names)} if with_inputs else {"labels": names}
    assert gs.find_label_issues(**data, pred_probs=right).noise is not None
    issues = gs.find_label_issues(**data, pred_probs=right[:, [0, 2, 3, 1]])
    assert issues.noise is None and "column 3 belongs to the class 'b'" in issues.note
    assert not issues.n_flagged or issues.note in repr(issues)


def test_columns_of_a_frame_that_are_no_classes() -> None:
    y = np.array(["a", "b"])[torch.arange(60) % 2]
    right = torch.nn.functional.one_hot(torch.arange(60) % 2, 2).double().numpy() * 0.8 + 0.1
    with pytest.raises(InvalidInput, match="class 'b' has none"):
        gs.find_label_issues(labels=y, pred_probs=pandas.DataFrame(right, columns=["a", "x"]))
    more = pandas.DataFrame(right, columns=["b", "a"]).assign(never=0.0)[["never", "b", "a"]]
    assert gs.find_label_issues(labels=y, pred_probs=more).note.count("exchanged") == 1
    more.columns = ["never", "a", "b"]
    assert not gs.find_label_issues(labels=y, pred_probs=more).note.count("exchanged")


@pytest.mark.thorough
def test_predictions_and_features_of_all_rows_serve_the_labelled_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 3
    x = torch.randn(120, 4, generator=generator) + 2 * y[:, None]
    part = y.clone()
    part[:9] = -100
    probabilities = torch.nn.functional.one_hot(y, 3) * 0.7 + 0.1
    of_all, of_labelled = (
        gs.find_label_issues(None, (x, part), pred_probs=given)
        for given in (probabilities, probabilities[9:])
    )
    assert of_all.to_json() == of_labelled.to_json()
    network = torch.nn.Sequential(torch.nn.Linear(4, 3))
    features = gs.embed(network, (x, part), layer="0")
    assert len(features) == 120
    by_labels = gs.find_label_issues(features=features, labels=part)
    assert int(by_labels.indices.min()) >= 9
    labelled = (x[9:], y[9:])
    assert gs.out_of_sample(features, (x, part)).score == (
        gs.out_of_sample(features[9:], labelled).score
    )
    forecasts = (
        gs.forecast_accuracy(None, (x, part), features=features),
        gs.forecast_accuracy(None, labelled, features=features[9:]),
    )
    assert forecasts[0].score == forecasts[1].score


def test_too_low_an_accuracy_is_told_apart_from_the_one_that_is_needed() -> None:
    y = torch.zeros(200, dtype=torch.int64)
    y[7] = 1
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    issues = gs.find_label_issues(None, (x, y))
    assert "99.5 %, at least 99.6 % is needed (the most frequent class has 99.5 %)" in issues.note
