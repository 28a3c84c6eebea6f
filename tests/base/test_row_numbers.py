"""Columns that number the rows, in every form of data and in every function."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest
import torch

import gapscope as gs
from gapscope.base.row_numbers import is_identifier_name, is_index_name, row_number_note
from gapscope.data.frames import encode_inputs
from gapscope.data.table_targets import split_frame

N = 60
LABELS = numpy.repeat([0, 1, 2], N // 3)
NOISE = numpy.random.default_rng(0).normal(size=(N, 2))


def forms(name: str) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    numbers = 2 * numpy.arange(N)
    columns = {name: numbers, "a": NOISE[:, 0], "b": NOISE[:, 1], "label": LABELS}
    frame = pandas.DataFrame(columns)
    return {
        "mapping": columns,
        "tensors": {key: torch.tensor(value) for key, value in columns.items()},
        "rows": frame.to_dict("records"),
        "Hugging Face": datasets.Dataset.from_dict({k: v.tolist() for k, v in columns.items()}),
    }


@pytest.mark.parametrize(
    "name", ["__index_level_0__", "level_1", "Unnamed: 0", "index", "rownames", "customer_id"]
)
def test_a_numbering_column_is_no_input_of_any_form(name: str) -> None:
    for form, data in forms(name).items():
        for passed in (data, split_frame(data, "label")):
            (inputs, _), _, notes = encode_inputs(passed)
            assert list(inputs) == ["a", "b"], form
            assert any(name in note for note in notes), form


def test_names_of_indexes_and_identifiers() -> None:
    assert all(map(is_index_name, ["", "id", "Index", "id.1", "Unnamed: 12", "__index_level_1__"]))
    assert all(map(is_identifier_name, ["customer_id", "customerID", "order key", "row"]))
    assert not any(map(is_identifier_name, ["width", "paid", "level", "level_a", "humid", "valid"]))


def test_numbers_of_rows_in_an_array_are_noted_by_every_function() -> None:
    x = numpy.column_stack([NOISE[:, 0], numpy.arange(N), NOISE[:, 1]])
    data = (x, LABELS)
    results: list[Any] = [
        gs.forecast_accuracy(None, data, time_budget=1),
        gs.out_of_sample(None, data),
        gs.find_label_issues(None, data, time_budget=1),
        gs.estimate_label_noise(None, data, time_budget=1),
    ]
    for result in results:
        assert any("Column 1 numbers the rows" in note for note in result.notes), type(result)


def test_estimators_get_the_note() -> None:
    from sklearn.neighbors import KNeighborsClassifier

    frame = pandas.DataFrame({"a": NOISE[:, 0], "n": numpy.arange(N)})
    estimator = KNeighborsClassifier(1)
    for result in (
        gs.out_of_sample(estimator, (frame, LABELS)),
        gs.learning_curve(estimator, (frame, LABELS)),
    ):
        assert any("Column n numbers the rows" in note for note in result.notes)


@pytest.mark.parametrize("name", ["index", "Unnamed: 0", "customer_id"])
@pytest.mark.parametrize("kind", [pandas.DataFrame, "pyarrow"])
def test_identifiers_with_gaps_are_noted_of_frames(name: str, kind: Any) -> None:
    frame = pandas.DataFrame({"a": NOISE[:, 0], name: 3 * numpy.arange(N), "b": NOISE[:, 1]})
    data: Any = (
        frame if kind != "pyarrow" else pytest.importorskip("pyarrow").Table.from_pandas(frame)
    )
    note = f"Column {name} identifies the rows"
    assert note in row_number_note(data)[0]
    assert not row_number_note(frame.rename(columns={name: "height"}))
    assert not row_number_note(frame.assign(**{name: 1}))
    if kind != "pyarrow":
        from sklearn.neighbors import KNeighborsClassifier

        curve = gs.learning_curve(KNeighborsClassifier(1), (data, LABELS))
        assert any(note in text for text in curve.notes)


def test_which_columns_number_the_rows() -> None:
    counted = torch.arange(40)
    columns = [counted.flip(0), counted[torch.randperm(40)] + 7, 2 * counted, counted / 2]
    note = row_number_note(torch.stack([*columns, counted % 39], 1))
    assert len(note) == 1 and "Columns 0, 1 number" in note[0]
    assert not row_number_note(counted[:, None])  # the only input
    assert not row_number_note(torch.stack(columns[2:], 1))
    assert not row_number_note(torch.stack(columns, 1)[:5])
    assert not row_number_note(torch.rand(40, 3, 4)) and not row_number_note(["a"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32])
def test_tensors_of_any_type_are_read(dtype: torch.dtype) -> None:
    table = torch.stack([torch.zeros(60), torch.arange(60.0)], 1).to(dtype)
    assert "Column 1 numbers" in row_number_note(table)[0]
    assert row_number_note(table.to("meta")) == []


def test_missing_numbers_do_not_count() -> None:
    frame = pandas.DataFrame({"a": pandas.array([1, None] * 30, dtype="Int64"), "b": range(60)})
    assert "Column b numbers" in row_number_note(frame)[0]
