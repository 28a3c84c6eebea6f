"""JSON summary of a report: the numbers of the records and correlations, with all digits."""

from __future__ import annotations

import json

import pytest

from gapscope.base.errors import InvalidInput
from gapscope.base.files import to_json
from gapscope.prediction.correlations import correlations
from gapscope.report import summary
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas


def _reading(name: str, value: float) -> Reading:
    return Reading(measure=name, number=name, value=value)


def pool(gaps: list[float]) -> list[Record]:
    records = [
        Record(
            id=f"net-{number}",
            spec={"seed": number},
            status="finished",
            scores={"train_loss": 0.1, "test_loss": 0.1 + gap},
            readings=Readings([_reading("norm", gap**2), _reading("noise", (number * 7) % 5)]),
        )
        for number, gap in enumerate(gaps)
    ]
    return [*records, Record(id="lost", spec={"seed": 99}, status="failed", message="out of memory")]


def test_the_numbers_are_those_of_the_records() -> None:
    records = pool([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    found = summary(records)
    assert found["status"] == {"finished": 6, "failed": 1} and found["gap"] == "test minus train loss"
    assert [row["measure"] for row in found["measures"]] == ["norm", "noise"]
    expected = correlations(records_to_pandas(records[:-1]), ["norm", "noise"], baseline=None, n_bootstrap=2000)
    for row in found["measures"]:
        assert {key: row[key] for key in expected.columns} == expected.loc[row["measure"]].to_dict()
    assert found["measures"][0]["kendall"] == 1.0
    gaps = {row["id"]: row["gap"] for row in found["networks"] if row["status"] == "finished"}
    assert gaps == {record.id: record.gap for record in records[:-1]}
    assert found["networks"][-1]["message"] == "out of memory"
    assert "smallest test loss" in found["verdict"][0]
    assert json.loads(to_json(found))["networks"][-1]["gap"] == "NaN"


def test_a_pool_without_a_record_has_none() -> None:
    with pytest.raises(InvalidInput, match="needs at least one record; got none"):
        summary([])
