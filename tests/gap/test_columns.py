"""Columns of a table of networks by their roles, and the estimator that is fitted where the user names none."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pandas
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.base.specs import RunSpec
from gapscope.gap.columns import (
    SENSITIVITIES,
    as_texts,
    complete_rows,
    hyperparameter_columns,
    reading_columns,
    suggest_estimator,
)
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from report.synthetic_pool import synthetic_records


def _record(seed: int, status: str = "finished", **values: float) -> Record:
    spec = RunSpec(seed=seed).replace(
        {"data.label_noise": seed / 10, "network.options": {"width": 8 * seed}}
    )
    readings = Readings(
        Reading(measure=name, number=name, value=value, standard_error=0.1, direction="lower")
        for name, value in values.items()
    )
    scores = {
        "train_accuracy": 1.0,
        "test_accuracy": 0.9 - seed / 100,
        "train_loss": 0.1,
        "test_loss": 0.3,
    }
    return Record(id=spec.id, spec=spec.to_dict(), status=status, scores=scores, readings=readings)  # type: ignore[arg-type]


RECORDS = [
    _record(1, norm=1.0, count=5.0),
    _record(2, norm=2.0, count=5.0),
    _record(3, "diverged", norm=9.0, other=1.0),
]


def test_readings_are_those_of_finished_networks_that_vary() -> None:
    assert reading_columns(RECORDS) == ["norm"]
    assert set(reading_columns(RECORDS)) <= set(records_to_pandas(RECORDS).columns)


def test_settings_that_vary_are_hyperparameters_scores_and_readings_are_not() -> None:
    table = records_to_pandas(RECORDS)
    assert hyperparameter_columns(table) == ["data.label_noise", "network.options.width", "seed"]


def test_usable_rows_are_finished_and_finite() -> None:
    table = records_to_pandas(RECORDS)
    assert complete_rows(table, ["norm"]).index.tolist() == [RECORDS[0].id, RECORDS[1].id]
    assert complete_rows(table.assign(norm=[numpy.inf, 2.0, 3.0]), ["norm"]).index.tolist() == [
        RECORDS[1].id
    ]
    assert len(complete_rows(pandas.DataFrame({"gap": [0.1, numpy.nan]}))) == 1


def test_settings_that_some_networks_lack_can_be_sorted() -> None:
    column = pandas.Series(["a", float("nan"), 1.0], dtype=object)
    assert sorted(as_texts(column)) == ["1.0", "a", "nan"]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records()


def test_it_takes_sensitivities_margins_and_fit_as_far_as_every_network_has_them(
    records: list[Record],
) -> None:
    there = [reading.name for reading in records[0].readings]
    expected = ["output_sensitivity", "ntk_trace", "loss", "accuracy"]
    assert suggest_estimator(records).features == [name for name in expected if name in there]
    first = records[0]
    hole = Reading(measure="ntk_trace", number="ntk_trace", value=numpy.nan)
    kept = [reading for reading in first.readings if reading.name != "ntk_trace"]
    result = suggest_estimator([replace(first, readings=Readings([*kept, hole])), *records[1:]])
    assert result.features == [name for name in expected if name in there and name != "ntk_trace"]
    assert result.families == ["network.name"]


def test_without_sensitivities_and_margins_it_takes_all_readings(records: list[Record]) -> None:
    changed = [
        replace(
            record, readings=Readings([r for r in record.readings if r.name not in SENSITIVITIES])
        )
        for record in records
    ]
    result = suggest_estimator(changed)
    assert result.features == [reading.name for reading in changed[0].readings]
    table = complete_rows(records_to_pandas(changed), result.features or [])
    result.fit(table, table["gap"])
    assert len(table) == 30


def test_wide_readings_enter_by_their_logarithm(records: list[Record]) -> None:
    names = ["ntk_trace", "output_sensitivity", "parameter_count", "unit_sparsity.zeta"]
    assert suggest_estimator(records, features=names).log_features == names[:3]


def test_without_readings_it_raises(records: list[Record]) -> None:
    bare = [replace(record, readings=Readings()) for record in records]
    with pytest.raises(InvalidInput, match="finished network; got none"):
        suggest_estimator(bare)
