"""The column of the labels by its name, in data of any form that names its columns."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import numpy
import pandas
import pytest
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.data.frames import encode_inputs
from gapscope.data.named_columns import (
    column_by_name,
    labelled_table,
    lacks_labels,
    named_columns,
)
from gapscope.data.table_targets import split_frame

TEXTS = [f"good text {k % 7} {'fine' if k % 2 else 'bad'} {k}" for k in range(60)]
INTENTS = ["a", "b"] * 30
FRAME = pandas.DataFrame({"text": TEXTS, "intent": INTENTS})


class Rows(torch.utils.data.Dataset[Any]):
    """A data set that yields dictionaries."""

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"text": TEXTS[row], "intent": INTENTS[row]}


def forms() -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    columns = {"text": TEXTS, "intent": INTENTS}
    return {
        "mapping": columns,
        "arrays": {name: numpy.array(values) for name, values in columns.items()},
        "rows": FRAME.to_dict("records"),
        "Hugging Face": datasets.Dataset.from_dict(columns),
        "torch": Rows(),
    }


def test_every_form_is_read_as_the_frame(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("sample,label\n0,b\n")
    corrected = ["b", *INTENTS[1:]]
    expected = as_samples((TEXTS, corrected))
    ranked = gs.find_label_issues(None, FRAME, target="intent", time_budget=1)
    for name, data in forms().items():
        read = gs.apply_label_corrections(data, tmp_path / "list.csv", target="intent")
        if isinstance(read, gs.Samples):
            assert torch.equal(read.inputs, expected.inputs), name
            assert torch.equal(read.y, expected.y) and read.class_names == ("a", "b"), name
            continue
        # columns come back as columns, rows as rows
        frame = pandas.DataFrame(read if isinstance(read, dict) else list(read))
        assert frame["text"].tolist() == TEXTS and frame["intent"].tolist() == corrected, name
    found = gs.find_label_issues(None, forms()["rows"], target="intent", time_budget=1)
    assert torch.equal(found.indices, ranked.indices) and found.notes == ranked.notes


def test_the_error_names_the_columns_and_target(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("sample,label\n0,b\n")
    for data in forms().values():
        with pytest.raises(InvalidInput, match=r"columns text, intent, .*target='intent'"):
            gs.find_label_issues(None, data)
        with pytest.raises(InvalidInput, match="Did you mean 'intent'"):
            gs.find_label_issues(None, data, target="intend")
    with pytest.raises(InvalidInput, match=r"columns text, intent, .*target='intent'"):
        gs.apply_label_corrections(forms()["mapping"], tmp_path / "list.csv")
    with pytest.raises(InvalidInput, match="whose columns have names"):
        gs.find_label_issues(None, (TEXTS, INTENTS), target="intent")
    with pytest.raises(InvalidInput, match="60, 'intent' has 2"):
        split_frame({"text": TEXTS, "intent": ["a", "b"]}, "intent")


def test_a_frame_in_the_place_of_the_source_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"target='intent' without data.*comes first"):
        gs.find_label_issues(FRAME, target="intent")


def test_names_of_hugging_face_classes_are_kept() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "intent": datasets.ClassLabel(names=["no", "go"])}
    )
    data = datasets.Dataset.from_dict({"text": TEXTS, "intent": [0, 1] * 30}, features=features)
    assert list(split_frame(data, "intent")[1].cat.categories) == ["no", "go"]
    with pytest.raises(InvalidInput, match=r"data\['train'\]"):
        split_frame(datasets.DatasetDict({"train": data}), "intent")


def test_token_ids_and_pictures_keep_their_shape() -> None:
    ids = torch.randint(0, 30, (60, 6), generator=torch.Generator().manual_seed(0))
    for values in (ids, ids.tolist()):
        inputs, labels = split_frame(
            {"input_ids": values, "text": TEXTS, "intent": INTENTS}, "intent"
        )
        samples = as_samples((inputs, labels))
        assert torch.equal(samples.parts[0], ids) and samples.class_names == ("a", "b")
    inputs, _ = split_frame({"image": torch.rand(60, 1, 4, 4), "kind": [0, 1] * 30}, "kind")
    assert as_samples((inputs, INTENTS)).parts[0].shape == (60, 1, 4, 4)
    frame, _ = split_frame({"embedding": torch.rand(60, 4), "kind": [0, 1] * 30}, "kind")
    assert list(frame.columns) == ["embedding"]


@pytest.mark.parametrize("column", ["id", "number", "uid"])
@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_a_column_of_numbers_beside_texts(column: str, kind: Any) -> None:
    data = {"text": TEXTS, column: kind([*range(60)]), "label": INTENTS}
    samples = as_samples(data)
    assert samples.inputs.shape == (60, 4096) and f"{column}: omitted" in " ".join(samples.notes)


class Drawn(torch.utils.data.Dataset[Any]):
    """Samples that draw from all global random states, as augmentations do."""

    def __init__(self, *, has_columns: bool) -> None:
        self.has_columns = has_columns

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        noise = float(torch.rand(())) + random.random() + float(numpy.random.rand())
        if self.has_columns:
            return {"x": row + noise, "label": row % 2}
        return torch.tensor([row + noise, noise]), row % 2


@pytest.mark.parametrize("has_columns", [True, False])
def test_reading_names_moves_no_random_state(has_columns: bool) -> None:
    data = Drawn(has_columns=has_columns)
    before = torch.get_rng_state(), numpy.random.get_state(legacy=False), random.getstate()
    for read in (labelled_table, named_columns, lacks_labels, encode_inputs):
        read(data)
    if has_columns:
        column_by_name(data, "label")
    assert torch.equal(torch.get_rng_state(), before[0])
    state = cast("Any", numpy.random.get_state(legacy=False))["state"]
    assert numpy.array_equal(state["key"], cast("Any", before[1])["state"]["key"])
    assert state["pos"] == cast("Any", before[1])["state"]["pos"]
    assert random.getstate() == before[2]


UNNAMED = {"img": torch.randn(30, 3), "lbl": torch.arange(30) % 3}
VERBS: dict[str, Any] = {
    "check": lambda data: gs.check(None, data, only=["GS101"]),
    "out_of_sample": lambda data: gs.out_of_sample(None, data),
    "forecast": lambda data: gs.forecast_accuracy(None, data),
    "label issues": lambda data: gs.find_label_issues(None, data),
    "train": lambda data: gs.train(nn.Linear(3, 3), data, gs.TrainingSpec(epochs=1)),
    "corrections": lambda data: gs.apply_label_corrections(data, "list.csv"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_how_to_name_the_labels(verb: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{name: column[row] for name, column in UNNAMED.items()} for row in range(30)]
    stream = datasets.Dataset.from_dict(UNNAMED).to_iterable_dataset()
    for data in (UNNAMED, rows, stream):
        with pytest.raises(InvalidInput, match="img, lbl, none is named") as caught:
            VERBS[verb](data)
        assert "target='lbl'" in str(caught.value)


def test_a_network_that_fails_on_a_column_of_labels_says_how_to_name_it() -> None:
    with pytest.raises(InvalidInput, match="name it 'label'"):
        gs.measure(nn.Linear(3, 3), UNNAMED, ["accuracy"])
    with pytest.raises(InvalidInput, match="img, none is named"):
        gs.measure(nn.Linear(3, 3), {"img": UNNAMED["img"]}, ["accuracy"])


def test_streams_name_the_way_out() -> None:
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": [[1.0]] * 9, "label": [0, 1, 0] * 3})
    for data in (stream.to_iterable_dataset(), stream.to_iterable_dataset().with_format("torch")):
        with pytest.raises(InvalidInput, match="got a stream") as caught:
            gs.check(None, data, target="label")
        assert "list(data.take(n))" in str(caught.value)
        with pytest.raises(InvalidInput, match=r"Pass \(x, y\)"):
            gs.out_of_sample(DecisionTreeClassifier(), data)
