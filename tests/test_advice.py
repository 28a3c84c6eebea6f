"""Advice of notes and errors: an argument that it names is one of the function that was called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import GapscopeError


def arguments(text: str) -> set[str]:
    """Return names of arguments in a text, without those of calls such as gs.Samples(x, y, task=...)."""
    while re.search(r"[\w.]+\([^()]*=[^()]*\)", text):
        text = re.sub(r"[\w.]+\([^()]*=[^()]*\)", "", text)
    return set(re.findall(r"(?<![\w.])([a-z_]{3,})=(?!=)", text))


def data_sets() -> dict[str, tuple[Any, Any]]:
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    return {
        "amounts": (x, (x[:, 0] * 20 + 100).long()),
        "zeros and ones": (x, (x[:, 0] > 0).float()),
        "soft": (x, x.softmax(1)),
        "whole": (x, (x[:, 0] > 0).float() * 2),
        "matrix": (x, (x * 3).long()),
        "several labels": (x, (x > 0).long()),
        "integers": ((x * 3).long(), (x[:, 0] > 0).long()),
        "constant": (x, torch.zeros(60).long()),
        "two": (x[:2], torch.tensor([0, 1])),
        "fractions": (x, x),
    }


VERBS: dict[str, Callable[..., Any]] = {
    name: getattr(gs, name)
    for name in (
        "check",
        "forecast_accuracy",
        "out_of_sample",
        "find_label_issues",
        "embed",
        "measure",
        "estimate_accuracy",
    )
}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("form", data_sets())
def test_advice_names_arguments_that_exist(name: str, form: str) -> None:
    verb = VERBS[name]
    known = set(inspect.signature(verb).parameters)
    network: nn.Module | None = None
    if name in ("embed", "measure", "estimate_accuracy"):
        torch.manual_seed(0)
        network = nn.Linear(3, 3)
    try:
        result = verb(network, data_sets()[form])
        texts = [str(note) for note in getattr(result, "notes", ())]
        texts.append(str(getattr(result, "abstained_because", "")))
        texts += [str(outcome.reason) for outcome in getattr(result, "not_checked", ())]
    except GapscopeError as error:
        texts = [str(error)]
    unknown = set().union(*map(arguments, texts)) - known
    assert not unknown, texts


def test_names_of_arguments_are_those_outside_of_calls() -> None:
    text = 'Pass initial_state=, or gs.Samples(x, y, task="regression"), n_training=5 samples.'
    assert arguments(text) == {"initial_state", "n_training"}


@pytest.mark.parametrize("form", ["tensor", "frame"])
def test_integers_that_a_regressor_predicts_are_no_classes(form: str) -> None:
    sklearn_linear: Any = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = (100 * x[:, 0] + 1000).astype(int)
    estimator = sklearn_linear.LinearRegression().fit(x, y)
    data: Any = (x, y)
    if form == "frame":
        import pandas

        data = (pandas.DataFrame(x, columns=["a", "b"]), y)
        estimator.fit(*data)
    results = [gs.check(estimator, data, only=["GS401"]), gs.out_of_sample(estimator, data)]
    for result in results:
        assert not any("read as classes" in note for note in result.notes), result.notes


@pytest.mark.filterwarnings("error")
def test_arrays_that_cannot_be_written_raise_no_warning_of_torch() -> None:
    sklearn_linear: Any = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = 100 * x[:, 0] + rng.normal(size=80)
    for array in (x, y):
        array.flags.writeable = False
    estimator = sklearn_linear.LinearRegression().fit(x, y)
    gs.check(estimator, (x[:40], y[:40]), test=(x[40:], y[40:]), only=["GS401"])
    rows: Any = np.arange(20)
    rows.flags.writeable = False
    samples = gs.Samples(torch.randn(40, 2), torch.arange(40) % 2)
    assert samples.original(rows).tolist() == rows.tolist()
