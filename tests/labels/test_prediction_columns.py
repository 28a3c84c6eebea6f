"""Columns of pred_probs: each belongs to the class that it was made for, also if classes are not in sorted order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.labels.prediction_columns import match_predictions

NAMES = ["low", "medium", "high"]


@pytest.fixture(scope="module")
def graded() -> tuple[np.ndarray, pandas.Series, np.ndarray]:
    """Inputs, labels of ordered categories of which one never occurs, and scikit-learn's probabilities."""
    numbers = np.arange(150) % 3
    rng = np.random.default_rng(0)
    x = np.eye(3)[numbers] + 0.6 * rng.normal(size=(150, 3))
    y = pandas.Series(pandas.Categorical([NAMES[k] for k in numbers], [*NAMES, "extreme"]))
    probabilities = cross_val_predict(
        LogisticRegression(), x, y.astype(str), cv=5, method="predict_proba"
    )
    return x, y, np.asarray(probabilities)


def _agreement(y: pandas.Series, predictions: Any) -> float:
    values, _ = match_predictions(predictions, as_samples((np.zeros((len(y), 1)), y)))
    values = np.asarray(values)
    return float((values.argmax(1) == y.cat.codes).mean())


def test_an_estimator_numbers_categories_as_all_functions_do(graded: Any) -> None:
    x, y, _ = graded
    held = gs.out_of_sample(LogisticRegression(), (x, y))
    assert held.classes == ("low", "medium", "high")
    assert list(held.targets) == list(y.cat.codes)
    assert _agreement(y, held) == pytest.approx(held.score)
    framed = gs.out_of_sample(LogisticRegression(), (x, y.to_frame()))
    assert framed.classes == held.classes


@pytest.mark.parametrize("form", ["held-out", "of strings", "table", "array", "scikit-learn"])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_every_form_of_predictions_has_the_columns_of_its_classes(
    graded: Any, form: str, with_inputs: bool
) -> None:
    x, y, probabilities = graded
    held = gs.out_of_sample(LogisticRegression(), (x, y))
    predictions = {
        "held-out": held,
        "of strings": gs.out_of_sample(LogisticRegression(), (x, y.astype(str))),
        "table": held.to_pandas(),
        "array": held.to_numpy(),
        "scikit-learn": probabilities,
    }[form]
    data: dict[str, Any] = {"data": (x, y)} if with_inputs else {"labels": y}
    assert _agreement(y, predictions) > 0.7
    issues = gs.find_label_issues(**data, pred_probs=predictions)
    expected = gs.find_label_issues(
        labels=torch.tensor(y.cat.codes.to_numpy()).long(),
        pred_probs=np.asarray(held) if form != "scikit-learn" else probabilities[:, [1, 2, 0]],
    )
    assert set(issues.indices[:10].tolist()) == set(expected.indices[:10].tolist())
    assert any("have no names" in note for note in issues.notes) == (
        form in ("array", "scikit-learn")
    )


def test_columns_without_names_and_without_information_are_refused(graded: Any) -> None:
    _, y, _ = graded
    with pytest.raises(InvalidInput, match=r"have no names.*their order is not known"):
        _agreement(y, np.full((150, 3), 1 / 3))
    numbered = pandas.DataFrame(np.full((150, 3), 1 / 3))
    with pytest.raises(InvalidInput, match="order is not known"):
        _agreement(y, numbered)


def test_numbers_of_classes_with_gaps_are_matched(graded: Any) -> None:
    x, y, _ = graded
    labels = np.array([1, 4, 7])[y.cat.codes]
    held = gs.out_of_sample(LogisticRegression(), (x, labels))
    values, _ = match_predictions(held, as_samples((x, labels)))
    assert (np.asarray(values).argmax(1) == labels).mean() == pytest.approx(held.score)


def test_several_labels_are_matched_by_their_names(graded: Any) -> None:
    x, y, _ = graded
    labels = pandas.DataFrame({"a": y == "low", "b": y != "high"}).astype(int)
    right = pandas.DataFrame({"b": labels["b"] * 0.8 + 0.1, "a": labels["a"] * 0.8 + 0.1})
    values, _ = match_predictions(right, as_samples((x, labels)))
    assert torch.equal(torch.as_tensor(values) > 0.5, torch.tensor(labels.to_numpy()) > 0)
    with pytest.raises(InvalidInput, match="label 'b' has none"):
        match_predictions(right.rename(columns={"b": "c"}), as_samples((x, labels)))


def test_the_numbers_of_a_data_set_stay_those_of_the_columns() -> None:
    """Names of the data set itself say nothing about the columns; only better predictions do."""

    class Named(torch.utils.data.TensorDataset):
        classes = ("z", "m", "a")

    labels = torch.arange(90) % 3
    samples = as_samples(Named(torch.randn(90, 2), labels))
    assert samples.names_are_own
    right = 0.9 * torch.eye(3)[labels] + 0.1 / 3
    values, notes = match_predictions(right, samples)
    assert torch.equal(torch.as_tensor(values), right) and not notes
    values, notes = match_predictions(right[:, [2, 1, 0]], samples)
    assert torch.equal(torch.as_tensor(values), right.double()) and "a, m, z" in notes[0]
    values, _ = match_predictions(torch.full((90, 3), 1 / 3), samples)
    assert torch.as_tensor(values).shape == (90, 3)


def test_the_message_about_exchanged_columns_names_the_order_that_is_read(graded: Any) -> None:
    _, y, _ = graded
    moved = 0.9 * np.eye(3)[(y.cat.codes.to_numpy() + 1) % 3] + 0.1 / 3
    frame = pandas.DataFrame(moved, columns=NAMES)
    note = gs.find_label_issues(labels=y, pred_probs=frame).note
    assert "in this order: low, medium, high" in note


def test_named_columns_in_any_form_are_matched_as_those_of_a_frame() -> None:
    labels = np.array(["dog", "cat", "cow"] * 20)
    values = np.random.default_rng(0).dirichlet(np.ones(3), 60)
    frame = pandas.DataFrame(values, columns=["cow", "dog", "cat"])
    expected = gs.find_label_issues(labels=labels, pred_probs=frame)
    for form in (
        {name: frame[name].to_numpy() for name in frame},
        {name: torch.tensor(frame[name].to_numpy()) for name in frame},
        frame.to_dict("list"),
        frame.to_dict("records"),
        frame.to_records(index=False),
        pytest.importorskip("pyarrow").Table.from_pandas(frame),
    ):
        found = gs.find_label_issues(labels=labels, pred_probs=form)
        assert torch.equal(found.indices, expected.indices)
    with pytest.raises(InvalidInput, match="class 'cat' has none"):
        gs.find_label_issues(
            labels=labels, pred_probs={name: frame[name].to_numpy() for name in ("cow", "dog")}
        )


def test_the_class_without_a_column_is_named() -> None:
    labels = np.array(["dog", "cat", "cow"] * 20)
    with pytest.raises(InvalidInput, match=r"the label 'dog' .* in this order: cat, cow, dog"):
        gs.find_label_issues(labels=labels, pred_probs=np.full((60, 2), 0.5))
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match=r"1 - p, p.*y\.float\(\)"):
        gs.find_label_issues(None, (x, (x[:, 0] > 0).long()), pred_probs=torch.rand(60))


def test_probabilities_as_targets_are_told_from_several_targets() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match=r"y\.argmax\(1\)"):
        gs.find_label_issues(None, (x, x.softmax(1)))
    with pytest.raises(InvalidInput, match="column at a time"):
        gs.find_label_issues(None, (x, x[:, :2]))


@pytest.mark.parametrize("task", ["several labels", "regression"])
def test_tables_of_held_out_predictions_are_as_the_predictions(task: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 3, generator=generator)
    y = x[:, 0] + 0.1 * torch.randn(80, generator=generator)
    if task == "several labels":
        y = (x > 0).long()
    held = gs.out_of_sample(None, (x, y))
    expected = gs.find_label_issues(None, (x, y), pred_probs=held)
    issues = gs.find_label_issues(None, (x, y), pred_probs=held.to_pandas())
    assert torch.equal(issues.indices, expected.indices)


def test_labels_that_lack_held_out_positions_are_refused() -> None:
    x = torch.randn(60, 5, 4, generator=torch.Generator().manual_seed(0))
    y = (x[..., :2] > 0).sum(-1)
    held = gs.out_of_sample(None, (x, y))
    for wrong in (y[:55], y[:, :3], y[:, 0], torch.nn.functional.one_hot(y)):
        with pytest.raises(InvalidInput, match=r"\[60, 5\] or more"):
            gs.find_label_issues(labels=wrong, pred_probs=held)
