"""Which columns are settings, which are readings, and which rows can be used."""

from __future__ import annotations

import numpy
import pandas

from gapscope.base.specs import RunSpec
from gapscope.prediction.columns import (
    as_texts,
    complete_rows,
    hyperparameter_columns,
    reading_columns,
    reading_directions,
)
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas


def _record(seed: int, status: str = "finished", **values: float) -> Record:
    spec = RunSpec(seed=seed).replace({"data.label_noise": seed / 10, "network.options": {"width": 8 * seed}})
    readings = Readings(
        Reading(measure=name, number=name, value=value, standard_error=0.1, direction="lower")
        for name, value in values.items()
    )
    scores = {"train_accuracy": 1.0, "test_accuracy": 0.9 - seed / 100, "train_loss": 0.1, "test_loss": 0.3}
    return Record(id=spec.id, spec=spec.to_dict(), status=status, scores=scores, readings=readings)  # type: ignore[arg-type]


RECORDS = [
    _record(1, norm=1.0, count=5.0),
    _record(2, norm=2.0, count=5.0),
    _record(3, "diverged", norm=9.0, other=1.0),
]


def test_readings_are_those_of_finished_networks_that_vary() -> None:
    assert reading_columns(RECORDS) == ["norm"]
    assert reading_directions(RECORDS) == {"norm": "lower", "count": "lower", "other": "lower"}
    assert set(reading_columns(RECORDS)) <= set(records_to_pandas(RECORDS).columns)


def test_settings_that_vary_are_hyperparameters_scores_and_readings_are_not() -> None:
    table = records_to_pandas(RECORDS)
    assert hyperparameter_columns(table) == ["data.label_noise", "network.options.width", "seed"]


def test_usable_rows_are_finished_and_finite() -> None:
    table = records_to_pandas(RECORDS)
    assert complete_rows(table, ["norm"]).index.tolist() == [RECORDS[0].id, RECORDS[1].id]
    assert complete_rows(table.assign(norm=[numpy.inf, 2.0, 3.0]), ["norm"]).index.tolist() == [RECORDS[1].id]
    assert len(complete_rows(pandas.DataFrame({"gap": [0.1, numpy.nan]}))) == 1


def test_settings_that_some_networks_lack_can_be_sorted() -> None:
    column = pandas.Series(["a", float("nan"), 1.0], dtype=object)
    assert sorted(as_texts(column)) == ["1.0", "a", "nan"]
