"""Numbers in float64 keep the digits that matter, or a note says which columns lose them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, 200)
X = RNG.normal(size=(200, 3)) + 3 * Y[:, None]
SECONDS = pd.DataFrame({"t": 1.7e9 + 40 * Y + RNG.uniform(0, 30, 200), "x": RNG.normal(size=200)})


@pytest.mark.parametrize("verb", [gs.forecast_accuracy, gs.out_of_sample])
@pytest.mark.parametrize("offset", [1e8, 1e9])
def test_an_offset_changes_no_score(verb: Any, offset: float) -> None:
    for x, y, shifted in ((X, Y, (X + offset, Y)), (X, X[:, 0], (X, X[:, 0] + offset))):
        assert verb(None, shifted).score == pytest.approx(verb(None, (x, y)).score, abs=1e-4)


@pytest.mark.parametrize("dtype", [float, "int64"])
def test_times_in_seconds_predict(dtype: Any) -> None:
    frame = SECONDS.astype({"t": dtype})
    assert gs.forecast_accuracy(None, (frame, Y)).score > 0.97
    result = gs.check(None, (frame, Y), test=(frame[:60], Y[:60]), only=["GS101"])
    assert "60 of 60" in str(result)


def test_networks_get_float32_and_a_note_names_the_columns() -> None:
    samples = as_samples((SECONDS, Y))
    assert samples.inputs.dtype == torch.float32
    assert len(samples.notes) == 1 and samples.notes[0].startswith("t: ")
    assert (
        as_samples((X + 1e9, X[:, 0] + 1e9))
        .notes[0]
        .startswith("the targets, column 0, column 1, column 2: ")
    )
    assert as_samples((X, X[:, 0])).notes == ()


def test_exact_samples_keep_float64_only_where_it_matters() -> None:
    assert as_samples((SECONDS, Y), is_exact=True).inputs.dtype == torch.float64
    assert as_samples((X, Y), is_exact=True).inputs.dtype == torch.float32
    constant = np.column_stack([X, np.full(200, 1e9)])
    assert as_samples((constant, Y), is_exact=True).inputs.dtype == torch.float32
    exact = as_samples((SECONDS, Y), is_exact=True)
    second = as_second((SECONDS, Y), exact)
    assert torch.equal(second.inputs, exact.inputs)


@pytest.mark.parametrize("place", ["inputs", "targets"])
def test_numbers_beyond_float32_get_a_true_message(place: str) -> None:
    frame = pd.DataFrame(X, columns=[*"abc"])
    data = (frame.assign(b=1e300), Y) if place == "inputs" else (frame, X[:, 0] * 1e300)
    name = "b" if place == "inputs" else "the targets"
    with pytest.raises(InvalidInput, match=rf"at most 3\.4e\+38.*got .*e\+300 in {name}"):
        gs.forecast_accuracy(None, data)
