"""Inputs that are the label in other words: omitted beside texts, else named in every form of data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import gapscope as gs
from gapscope.base.foreign_data import hashed_words
from gapscope.base.label_copies import is_copy_of
from gapscope.base.samples import as_samples
from gapscope.data.frames import encode_inputs
from gapscope.labels.copied_inputs import find_copied_inputs, leaking_column_note

RNG = np.random.default_rng(0)
TRUE = RNG.integers(0, 3, 120)
TEXTS = [
    " ".join(f"{topic}{i}" for i in RNG.integers(0, 30, 6)) + f" w{RNG.integers(60)}"
    for topic in np.array(["cat", "dog", "sky"])[TRUE]
]
Y = TRUE.copy()
WRONG = RNG.choice(120, 15, replace=False)
Y[WRONG] = (Y[WRONG] + 1) % 3
NAMES = np.array(["sport", "biz", "tech"])[Y].tolist()
X = (RNG.normal(size=(3, 6))[TRUE] * 2 + RNG.normal(size=(120, 6))).astype("float32")
ROWS = [
    {"text": text, "label": int(label), "label_text": name}
    for text, label, name in zip(TEXTS, Y, NAMES, strict=True)
]


class _Listed(Dataset[Any]):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int) -> Any:
        return ROWS[row]


FORMS: dict[str, Any] = {
    "mapping": {"text": TEXTS, "label": Y, "label_text": NAMES},
    "names": {"text": TEXTS, "label": np.array(["x", "y", "z"])[Y], "label_text": NAMES},
    "list": ROWS,
    "loader": DataLoader(_Listed(), batch_size=8),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_text_that_is_the_label_is_omitted_beside_others(form: str) -> None:
    found = as_samples(FORMS[form])
    assert torch.equal(found.inputs, as_samples((TEXTS, Y)).inputs)
    assert [note for note in found.notes if "label_text" in note and "copy" in note]


def test_a_category_that_is_the_label_is_omitted_beside_texts() -> None:
    frame = pandas.DataFrame(FORMS["mapping"])
    second = frame.assign(text=frame["text"] + " end")
    read, test, notes = encode_inputs(
        (frame.drop(columns="label"), Y), (second.drop(columns="label"), Y)
    )
    assert np.array_equal(read[0], hashed_words(TEXTS)) and test[0].shape == read[0].shape
    assert sum("label_text: omitted" in note for note in notes) == 1
    other = frame.assign(label_text=RNG.permutation(NAMES)).drop(columns="label")
    assert "label_text: one column per value." in encode_inputs((other, Y))[2]


@pytest.mark.thorough
def test_errors_are_found_beside_a_copy_of_the_label() -> None:
    frame = pandas.DataFrame(FORMS["mapping"])
    noise = gs.estimate_label_noise(None, frame, target="label")
    assert 0.05 < noise.rate < 0.2
    assert sum("label_text: omitted" in note for note in noise.notes) == 1


def test_the_label_alone_is_named() -> None:
    for data in ({"label_text": NAMES, "label": Y}, (np.eye(3)[Y], Y)):
        notes = leaking_column_note(as_samples(data))
        assert len(notes) == 1 and "copy of the label" in notes[0]
        assert gs.check(None, data, only=["GS107"]).codes == ("GS107",)
    assert not gs.check(None, (X, Y), only=["GS107"]).codes


SECOND: dict[str, Any] = {
    "one-hot": np.eye(3)[Y],
    "one-hot of one type": np.eye(3, dtype="float32")[Y],
    "number": Y + 4,
}


@pytest.mark.parametrize("kind", SECOND)
@pytest.mark.parametrize("shape", [(120, 6), (120, 1, 2, 3)])
def test_a_second_form_of_the_label_is_named(kind: str, shape: tuple[int, ...]) -> None:
    data = {"x": X.reshape(shape), "label": Y, "second": SECOND[kind]}
    samples = as_samples(data)
    found = find_copied_inputs(samples)
    assert found is not None and "second" in found.evidence and found.is_leak
    assert "second" in leaking_column_note(samples)[0]
    assert "second" in gs.check(None, data, only=["GS107"]).findings[0].evidence


def test_columns_of_several_inputs_are_looked_at() -> None:
    noise = RNG.normal(size=120).astype("float32") / 10
    for target, second in ((Y, 3 * Y + noise), (X @ np.arange(6.0), -X @ np.arange(6.0))):
        data = {"x": X, "target": target, "second": second}
        assert "second" in gs.check(None, data, only=["GS107"]).findings[0].evidence
    clean = {"x": X, "target": Y, "second": noise}
    assert "GS107" in [fine.code for fine in gs.check(None, clean, only=["GS107"]).fine]
    pictures = {"x": X.reshape(120, 1, 2, 3), "target": Y, "second": noise}
    assert "no input" in gs.check(None, pictures, only=["GS107"]).not_checked[0].reason


def test_a_copy_needs_repeated_values() -> None:
    assert is_copy_of(["a"] * 5 + ["b"] * 5 + ["c"], [0] * 5 + [1] * 5 + [2])
    assert not is_copy_of(["a"] * 5 + ["b"] * 4, [0] * 5 + [1] * 4)
    assert not is_copy_of(["a"] * 6 + ["b"] * 5, [0] * 5 + [1] * 6)
    assert not is_copy_of(["a", "c"] * 5 + ["b"] * 5, [0] * 10 + [1] * 5)
