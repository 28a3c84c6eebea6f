"""A second data set is adapted to the first: layout, names of classes, type, task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.inspection.losses import evaluate
from gapscope.inspection.validation import ready

NAMES = np.array(["a", "b", "c"])


class CountsOnes(nn.Module):
    """Perfect classifier: whether a row of nine tokens holds five ones or more."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(2, 1), nn.Linear(1, 2)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.tensor([[-1.0], [1.0]]))
            self.head.weight.copy_(torch.tensor([[-9.0], [9.0]]))
            self.head.bias.zero_()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.embedding(input_ids).mean(1))


def texts(n: int, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 2, (n, 9), generator=torch.Generator().manual_seed(seed))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": (ids.sum(1) > 4).long(),
    }


def identity() -> nn.Linear:
    network = nn.Linear(3, 3, bias=False)
    nn.init.eye_(network.weight)
    return network


def table(n: int = 90) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return x, x.argmax(1)


def scores(network: nn.Module, train: Any, test: Any) -> dict[str, float]:
    second = ready(network, train).adapt(test)
    return evaluate(second.network, second.samples)


@pytest.mark.parametrize("n", [60, 100, 140])
def test_packed_inputs_are_those_of_their_own_data_set(n: int) -> None:
    assert scores(CountsOnes(), texts(100, 0), texts(n, 1))["accuracy"] == 1.0


def test_second_data_set_may_have_other_lengths_and_names_of_inputs() -> None:
    longer = texts(50, 1)
    longer["input_ids"] = torch.cat([longer["input_ids"], longer["input_ids"]], 1)
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    assert scores(CountsOnes(), texts(100, 0), longer)["accuracy"] == 1.0
    with pytest.raises(InvalidInput, match="inputs of the first"):
        ready(CountsOnes(), texts(100, 0)).adapt((torch.randn(5, 9), torch.zeros(5).long()))


FORMS = {
    "strings": lambda y: NAMES[y],
    "objects": lambda y: NAMES[y].astype(object),
    "series": lambda y: pd.Series(NAMES[y]),
    "categories": lambda y: pd.Series(pd.Categorical(NAMES[y])),
    "declared categories": lambda y: pd.Series(pd.Categorical(NAMES[y], categories=NAMES)),
    "string type": lambda y: pd.Series(NAMES[y], dtype="string"),
    "list": lambda y: NAMES[y].tolist(),
    "integers": lambda y: y,
    "integer objects": lambda y: y.astype(object),
}


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_a_split_without_a_class_keeps_the_numbers_of_the_others(first: str, second: str) -> None:
    x, y = table()
    seen = y > 0
    data, test = (x, FORMS[first](y.numpy())), (x[seen], FORMS[second](y[seen].numpy()))
    if ("integer" in first) != ("integer" in second):
        with pytest.raises(InvalidInput, match="name their classes"):
            scores(identity(), data, test)
    else:
        assert scores(identity(), data, test)["accuracy"] == 1.0


def test_unknown_classes_and_other_tasks_are_refused() -> None:
    x, y = table()
    prepared = ready(identity(), (x, NAMES[y.numpy()]))
    with pytest.raises(InvalidInput, match="'d'"):
        prepared.adapt((x, np.where(y == 0, "d", NAMES[y.numpy()])))
    numbered = ready(identity(), (x, y))
    for targets in (torch.randn(90, 3), torch.randn(90), torch.randint(3, 9, (90, 4))):
        with pytest.raises(InvalidInput):
            numbered.adapt((x, targets))
    assert numbered.adapt((x.double(), torch.eye(3)[y])).samples.kind == "classification"
    assert numbered.adapt((x.double().numpy(), y)).samples.inputs.dtype == torch.float32
    with pytest.raises(InvalidInput, match="inputs of the first"):
        numbered.adapt((x[:, :2], y))


def test_binary_labels_of_one_value_are_labels_beside_the_first() -> None:
    x, y = table()
    network = nn.Linear(3, 1)
    two = (y > 0).float()
    assert ready(network, (x, two)).adapt((x[:5], torch.ones(5))).samples.kind == "classification"


class WritesIntoItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        x.div_(2)
        return self.body(x)


def test_networks_may_write_into_their_input() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    network, before = WritesIntoItsInput(), x.clone()
    names = ["loss", "ntk_trace", "neural_collapse", "input_jacobian_norm"]
    readings = gs.measure(network, (x, y), names)
    assert torch.equal(x, before)
    expected = gs.measure(network.body, ((x - 1) / 2, y), names)
    expected_values = expected.values() | {
        "input_jacobian_norm": expected["input_jacobian_norm"].value / 4
    }
    for name, value in readings.values().items():
        if name != "input_jacobian_norm":
            assert value == pytest.approx(expected_values[name], rel=1e-4), name


class AlwaysDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.body(x), 0.5)


def test_random_outputs_are_named() -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 2
    assert "differ between two passes" in gs.measure(AlwaysDropout(), (x, y), ["loss"]).notes[0]
    assert not gs.measure(AlwaysDropout().body, (x, y), ["loss"]).notes


def test_verbs_with_two_data_sets_adapt_the_second() -> None:
    train, test = texts(120, 0), texts(150, 1)
    assert not gs.check(CountsOnes(), train, test=test, only=["GS402"]).findings
    assert (
        gs.record_network(CountsOnes(), train, test=test, name="n", measures=["loss"]).scores[
            "test_accuracy"
        ]
        == 1.0
    )
    assert gs.validated_accuracy(CountsOnes(), test, train).plain.value == 1.0
    repeated = gs.find_label_issues(None, train, test=test).test_duplicates
    ids, others = train["input_ids"], test["input_ids"]
    expected = {j for j in range(150) if bool((ids == others[j]).all(1).any())}
    assert {j for _, j in repeated} == expected


def test_verbs_with_named_classes_adapt_the_second() -> None:
    x, y = table()
    seen = y > 0
    data, test = (x, NAMES[y.numpy()]), (x[seen], NAMES[y[seen].numpy()])
    assert not gs.check(identity(), data, test=test, only=["GS402"]).findings
    assert (
        gs.record_network(identity(), data, test=test, name="n", measures=["loss"]).scores[
            "test_accuracy"
        ]
        == 1.0
    )
    assert gs.validated_accuracy(identity(), test, data).plain.value == 1.0
    history = gs.train(
        identity(), data, gs.TrainingSpec(epochs=1, learning_rate=1e-6), test=test
    ).history
    assert history[-1]["test_accuracy"] == 1.0


@pytest.mark.thorough
def test_indices_are_row_numbers_of_the_data_that_were_passed(tmp_path: Path) -> None:
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    x[150], y[150] = torch.tensor([4.0, 0, 0, 0]), 0
    x[120:126], y[120:126] = x[100:106], y[100:106]
    y[121] = 1 - y[101]
    y[:20] = -100
    issues = gs.find_label_issues(None, (x, y), test=(x[30:40], y[30:40]))
    assert set(issues.indices[:2].tolist()) == {121, 150}
    assert (101, 121) in issues.conflicts
    assert issues.test_duplicates[0] == (30, 0)
    assert gs.check(nn.Linear(4, 2), (x, y), only=["GS101"]).findings[0].indices == tuple(
        range(120, 126)
    )
    # one column alone gives the labels
    checked = gs.check(nn.Linear(4, 2), (x, y), only=["GS102"], ignore=["GS107"]).label_issues
    assert checked is not None
    assert set(checked.indices[:2].tolist()) == {121, 150}
    issues.write_html(tmp_path / "list.html")
    (tmp_path / "list.csv").write_text("sample,label\n150,1\n121,drop\n")
    corrected = gs.apply_label_corrections((x, y), tmp_path / "list.csv")
    assert len(corrected) == 179
    (tmp_path / "list.csv").write_text("sample,label\n5,1\n")
    with pytest.raises(InvalidInput, match="sample 5"):
        gs.apply_label_corrections((x, y), tmp_path / "list.csv")
    assert len(gs.out_of_sample(None, (x, y), groups=np.arange(200) // 4).targets) == 180


def test_columns_of_frames_are_matched_by_name() -> None:
    x, y = table()
    frame = pd.DataFrame(x.numpy(), columns=["a", "b", "c"])
    other = frame[["c", "a", "b"]]
    assert scores(identity(), (frame, y), (other, y))["accuracy"] == 1.0
    assert ready(identity(), (frame, y)).adapt((x, y)).samples.inputs.equal(x)
    with pytest.raises(InvalidInput, match="lacks b"):
        scores(identity(), (frame, y), (frame.rename(columns={"b": "d"}), y))


class Joined(nn.Linear):
    """Linear layer of inputs with names."""

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return super().forward(torch.cat([a, b, c], 1))


@pytest.mark.parametrize("has_network", [False, True])
@pytest.mark.parametrize("form", ["frame", "mapping"])
def test_additional_inputs_of_a_second_data_set_are_noted(form: str, has_network: bool) -> None:
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    x[:, 0] += 3 * y
    columns = {"a": x[:, :1], "b": x[:, 1:2], "c": x[:, 2:]}
    second: Any = {"zz": x[:, :1], **columns}
    if form == "frame":
        first, second = (
            pd.DataFrame({name: column[:, 0] for name, column in part.items()})
            for part in (columns, second)
        )
    else:
        first = columns
    network = None
    if has_network:
        network = nn.Linear(3, 2) if form == "frame" else Joined(3, 2)
    test = (second, y)
    found: list[Any] = [
        gs.check(network, (first, y), test=test, only=["GS101"]),
        gs.find_label_issues(network, (first, y), test=test, time_budget=0.01),
    ]
    if network is not None:
        record = gs.record_network(network, (first, y), test=test, name="joined", measures=["loss"])
        found.append(record.readings)
    for result in found:
        assert sum("zz: not used" in note for note in result.notes) == 1
    lacking = ({name: second[name] for name in ("zz", "a", "b")}, y)
    if form == "frame":
        lacking = (second[["zz", "a", "b"]], y)
    with pytest.raises(InvalidInput, match="lacks c"):
        gs.check(network, (first, y), test=lacking)


def test_additional_columns_that_number_the_rows_have_one_note() -> None:
    x, y = torch.randn(60, 2), np.arange(60) % 2
    frame = pd.DataFrame(x.numpy(), columns=["a", "b"])
    second = frame.assign(id=np.arange(60))
    missing = np.where(np.arange(60) % 7 == 5, -100, y)
    for network in (None, nn.Linear(2, 2)):
        for labels in (y, missing):
            test = (second, labels)
            notes = gs.check(network, (frame, y), test=test, only=["GS101"]).notes
            assert sum("id: not used" in note for note in notes) == 1
            assert not any("numbers the rows" in note for note in notes)
    numbered = second.assign(a=np.arange(60) * 1.0)
    notes = gs.check(nn.Linear(2, 2), (frame, y), test=(numbered, y), only=["GS101"]).notes
    assert [note.split(" (")[0] for note in notes if "numbers" in note] == [
        "test: Column a numbers the rows"
    ]


def test_notes_on_test_samples_name_them() -> None:
    x, y = torch.randn(60, 3), torch.arange(60) % 2
    missing = y.clone()
    missing[:5] = -100
    for network in (None, nn.Linear(3, 2)):
        notes = gs.check(network, (x, y), test=(x + 1, missing), only=["GS101"]).notes
        assert [note.startswith("test: ") for note in notes if "5" in note] == [True]
        issues = gs.find_label_issues(network, (x, y), test=(x + 1, missing), time_budget=0.01)
        assert [note.startswith("test: ") for note in issues.notes if "-100" in note] == [True]
