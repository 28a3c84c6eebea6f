"""Rows in the form in which they were passed: those without a label are omitted, with a note, for every source."""

from __future__ import annotations

import enum
from typing import Any

import numpy
import pandas
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.row_selection import as_rows, count_repeats, numbered_classes
from gapscope.base.errors import InvalidInput

N, OMITTED = 120, 12
_random = numpy.random.default_rng(0)
LABELS = numpy.arange(N) % 3
X = _random.normal(size=(N, 4)) + 3 * LABELS[:, None]
Y = numpy.where(numpy.arange(N) % 10 == 0, -100, LABELS)
KEPT = numpy.flatnonzero(Y >= 0)
NOTE = f"{OMITTED} of {N} samples have the label -100"
FORMS: dict[str, Any] = {
    "arrays": (X, Y),
    "lists": (X.tolist(), Y.tolist()),
    "tensors": (torch.tensor(X), torch.tensor(Y)),
    "frames": (pandas.DataFrame(X), pandas.Series(Y)),
    "floats": (X, Y.astype(float)),
    "a Series of objects": (pandas.DataFrame(X), pandas.Series(Y.tolist(), dtype=object)),
}


@pytest.mark.parametrize("form", FORMS)
def test_unlabelled_rows_are_omitted_for_estimators(form: str) -> None:
    groups = numpy.arange(N) // 2
    data = FORMS[form]
    if form == "a Series of objects":
        assert as_rows(data, LogisticRegression()).notes  # scikit-learn fits no classes of objects
        return
    held = gs.out_of_sample(LogisticRegression(), data, groups=groups)
    assert len(held.classes) == 3 and held.to_numpy().shape == (N - OMITTED, 3)
    assert held.rows is not None and (held.rows == KEPT).all() and NOTE in held.notes[0]
    curve = gs.learning_curve(LogisticRegression(), data, groups=groups)
    by_hand = gs.learning_curve(LogisticRegression(), (X[KEPT], Y[KEPT]), groups=groups[KEPT])
    assert (curve.samples, curve.score) == (by_hand.samples, by_hand.score)
    assert NOTE in curve.notes[0]


def test_unlabelled_rows_never_reach_a_function_or_score() -> None:
    seen: set[int] = set()

    def train_fn(x: Any, y: Any) -> Any:
        seen.update(y.tolist())
        return LogisticRegression().fit(x, y)

    def score(model: Any, x: Any, y: Any) -> Any:
        seen.update(y.tolist())
        return model.predict(x) == y

    curve = gs.learning_curve(train_fn, (X, Y), score=score)
    assert seen == {0, 1, 2} and curve.samples == N - OMITTED and NOTE in curve.notes[0]
    for scorer in ("f1_macro", score):
        assert gs.learning_curve(LogisticRegression(), (X, Y), score=scorer).score > 0.8


def test_a_network_says_what_was_omitted() -> None:
    def train_fn(x: Tensor, y: Tensor) -> nn.Module:
        network = nn.Linear(4, 3)
        targets = nn.functional.one_hot(y, 3).float()
        design = torch.cat([x, torch.ones(len(x), 1)], 1)
        solution = torch.linalg.lstsq(design, targets).solution
        with torch.no_grad():
            network.weight.copy_(solution[:-1].T)
            network.bias.copy_(solution[-1])
        return network

    data = (torch.tensor(X).float(), torch.tensor(Y))
    assert NOTE in gs.learning_curve(train_fn, data, design="half and quarter").notes[0]


def test_targets_of_regressors_are_numbers() -> None:
    assert as_rows((X, Y), Ridge()).notes == () and gs.out_of_sample(Ridge(), (X, Y)).samples == N


def test_a_check_of_an_estimator_scores_labelled_rows_alone() -> None:
    fitted = LogisticRegression(max_iter=1000).fit(X[KEPT], Y[KEPT])
    accuracy = float((fitted.predict(X[KEPT]) == Y[KEPT]).mean())
    account = gs.check(fitted, (X, Y)).account
    assert account is not None and account.training == pytest.approx(accuracy)


def test_missing_ones_of_several_labels_are_refused() -> None:
    several = (X > 3).astype(int)
    several[::10, 0] = -100
    for verb in (gs.out_of_sample, gs.learning_curve):
        with pytest.raises(InvalidInput, match=f"{OMITTED} of {4 * N} are missing"):
            verb(RandomForestClassifier(), (X, several))
    with pytest.raises(InvalidInput, match=f"all {N} are -100"):
        gs.out_of_sample(LogisticRegression(), (X, numpy.full(N, -100)))


@pytest.mark.parametrize(
    "inputs", [X, torch.tensor(X), X.tolist(), pandas.DataFrame(X), [f"text {i}" for i in range(N)]]
)
def test_repeats_are_counted_and_noted(inputs: Any) -> None:
    rows = [*range(N), *range(30)]
    is_frame = hasattr(inputs, "iloc")
    repeated = inputs.iloc[rows] if is_frame else [inputs[i] for i in rows]
    if isinstance(inputs, torch.Tensor):
        repeated = inputs[rows]
    assert count_repeats(inputs) == 0 and count_repeats(repeated) == 30
    if isinstance(repeated, list):
        return
    data = (repeated, LABELS[rows])
    for verb in (gs.out_of_sample, gs.learning_curve):
        assert "repeat" in str(verb(LogisticRegression(), data).notes)
    assert "repeat" not in str(gs.out_of_sample(LogisticRegression(), data, groups=rows).notes)


class Colour(enum.Enum):
    """Labels that are no text."""

    RED = 1
    BLUE = 2


WORDS = numpy.array(list("abc"))[LABELS]
NO_LABEL = numpy.arange(N) % 10 == 0
WITHOUT_LABELS: dict[str, Any] = {
    "NaN": numpy.where(NO_LABEL, numpy.nan, LABELS),
    "Int64 with NA": pandas.Series(LABELS).astype("Int64").mask(NO_LABEL),
    "boolean with NA": pandas.Series(LABELS > 0).astype("boolean").mask(NO_LABEL),
    "masked": numpy.ma.masked_array(LABELS, NO_LABEL),
    "words with NaN": pandas.Series(WORDS).mask(NO_LABEL),
    "words with None": pandas.Series(WORDS, dtype=object).mask(NO_LABEL, None).tolist(),
}


@pytest.mark.parametrize("form", WITHOUT_LABELS)
def test_missing_labels_of_estimators_are_counted(form: str) -> None:
    data = (X, WITHOUT_LABELS[form])
    for verb in (gs.out_of_sample, gs.learning_curve):
        with pytest.raises(InvalidInput, match=f"{OMITTED} of {N} are missing"):
            verb(LogisticRegression(), data)
    with pytest.raises(InvalidInput, match="missing"):
        as_rows((X, numpy.ma.masked_array(X[:, 0], NO_LABEL)), Ridge())


def test_masked_inputs_of_estimators_are_refused() -> None:
    masked = numpy.ma.masked_array(X, X > 2)
    for inputs in (masked, {"x": masked}):
        with pytest.raises(InvalidInput, match="masked array"):
            as_rows((inputs, LABELS), LogisticRegression())


def test_classes_of_estimators_are_numbered_as_in_other_functions() -> None:
    mixed = pandas.Series([1 if word == "a" else word for word in WORDS], dtype=object)
    colours = [Colour.RED if word == "a" else Colour.BLUE for word in WORDS]
    declared = pandas.Categorical(WORDS, categories=["c", "b", "a", "unused"])
    for labels, expected in (
        (mixed, ("1", "b", "c")),
        (colours, ("Colour.BLUE", "Colour.RED")),
        (declared, ("c", "b", "a")),
        (pandas.Series(WORDS == "a").astype("boolean"), (False, True)),
    ):
        classes, numbers = numbered_classes(labels, N)
        assert classes == expected
        assert [str(classes[number]) for number in numbers] == [str(label) for label in labels]


@pytest.mark.parametrize("word", ["A", "a ", ""])
def test_names_of_classes_are_noted_for_estimators(word: str) -> None:
    words = numpy.where(NO_LABEL, word, WORDS)
    for verb in (gs.out_of_sample, gs.learning_curve):
        assert any(repr(word) in note for note in verb(LogisticRegression(), (X, words)).notes)


@pytest.mark.parametrize("verb", [gs.out_of_sample, gs.learning_curve])
def test_no_rows_are_refused(verb: Any) -> None:
    with pytest.raises(InvalidInput, match="got 0"):
        verb(LogisticRegression(), (X[:0], LABELS[:0]))
