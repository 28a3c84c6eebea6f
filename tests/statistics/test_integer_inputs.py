"""Integers as inputs are numbers or token ids, as the data decide, and a note says which."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.samples import as_samples
from gapscope.statistics.integer_inputs import NUMBERS_NOTE, TOKENS_NOTE, settle_integers

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 200)
NUMBERS = (10 * (RNG.normal(size=(3, 5))[Y] + RNG.normal(size=(200, 5)))).astype("int64") + 100


def texts() -> tuple[Tensor, Tensor]:
    """Token ids whose label is the word that occurs, wherever it stands."""
    labels = torch.arange(200) % 3
    ids = torch.randint(10, 30, (200, 8), generator=torch.Generator().manual_seed(0))
    places = torch.randint(0, 8, (200,), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(200), places] = torch.tensor([28, 3, 17])[labels]
    return ids, labels


@pytest.mark.parametrize("verb", [gs.forecast_accuracy, gs.out_of_sample])
def test_a_matrix_of_numbers_scores_as_its_floats(verb: object) -> None:
    whole, floats = (verb(None, (x, Y)) for x in (NUMBERS, NUMBERS.astype("float32")))  # pyright: ignore[reportCallIssue]
    assert whole.score == floats.score > 0.7
    assert NUMBERS_NOTE in whole.notes and NUMBERS_NOTE not in floats.notes


def test_texts_stay_token_ids_and_the_note_names_the_other_reading() -> None:
    ids, labels = texts()
    forecast = gs.forecast_accuracy(None, (ids, labels))
    assert TOKENS_NOTE in forecast.notes
    assert forecast.score > 0.1 + gs.forecast_accuracy(None, (ids.float(), labels)).score
    named = gs.forecast_accuracy(None, ({"input_ids": ids}, labels))
    assert named.score == forecast.score and TOKENS_NOTE not in named.notes


@pytest.mark.parametrize(
    "form",
    ["frame", "mapping", "negative"],
)
def test_columns_and_negative_integers_are_numbers_without_a_note(form: str) -> None:
    x = NUMBERS - 100 if form == "negative" else NUMBERS
    forms = {
        "frame": (pd.DataFrame(x), Y),
        "mapping": {f"c{k}": x[:, k] for k in range(5)} | {"label": Y},
        "negative": (x, Y),
    }
    forecast = gs.forecast_accuracy(None, forms[form])
    expected = gs.forecast_accuracy(None, (x.astype("float32"), Y))
    assert forecast.score == expected.score and forecast.notes == ()


def test_masks_positions_and_networks_keep_token_ids() -> None:
    ids, labels = texts()
    mask = torch.ones_like(ids)
    for data in (
        ((ids, mask), labels),
        ({"input_ids": ids, "attention_mask": mask}, labels),
        (ids, ids % 3),
        ids,
    ):
        samples = as_samples(data)
        assert settle_integers(samples) is samples or not any(
            part.is_floating_point() for part in settle_integers(samples).parts
        )
    estimator = settle_integers(as_samples((ids, labels)), are_numbers=True)
    assert torch.equal(estimator.inputs, ids.float()) and estimator.notes == ()


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool"])
def test_frames_of_integers_are_numbers_for_every_network(dtype: str) -> None:
    frame = pd.DataFrame((NUMBERS > 100).astype(dtype))
    samples = as_samples((frame, Y))
    assert samples.inputs.dtype == torch.float32
    assert len(gs.embed(torch.nn.Linear(5, 3), (frame, Y))) == 200


def test_an_embedding_reads_a_frame_of_integers_as_token_ids() -> None:
    frame = pd.DataFrame(NUMBERS - NUMBERS.min())
    network = torch.nn.Sequential(
        torch.nn.Embedding(300, 4), torch.nn.Flatten(), torch.nn.Linear(20, 3)
    )
    features = gs.embed(network, frame)
    assert torch.equal(features, gs.embed(network, frame.to_numpy()))
    gs.check(network, (frame, Y), test=(frame[::-1], Y[::-1]))


def test_integers_that_float32_cannot_tell_apart_are_exact() -> None:
    frame = pd.DataFrame({"a": [2**36 + 1, 2**36 + 3], "b": [1, 2]})
    exact = as_samples((frame, [0, 1]), is_exact=True)
    assert exact.inputs.tolist() == [[2**36 + 1, 1], [2**36 + 3, 2]]


def test_a_second_table_has_the_reading_of_the_first() -> None:
    floats = (NUMBERS.astype("float32"), Y)
    for first, second in ((floats, (NUMBERS, Y)), ((NUMBERS, Y), floats)):
        result = gs.check(None, first, test=second, only=["GS101"])
        assert any("200 of 200 test samples" in str(finding) for finding in result.findings)
