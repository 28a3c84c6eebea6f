"""The estimator that is fitted where the user names none."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.prediction.columns import SENSITIVITIES, complete_rows, suggest_estimator
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from report.synthetic_pool import synthetic_records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records()


def test_it_takes_sensitivities_margins_and_fit_as_far_as_every_network_has_them(records: list[Record]) -> None:
    there = [reading.name for reading in records[0].readings]
    expected = ["output_sensitivity", "ntk_trace", "loss", "accuracy"]
    assert suggest_estimator(records).features == [name for name in expected if name in there]
    first = records[0]
    hole = Reading(measure="ntk_trace", number="ntk_trace", value=numpy.nan)
    kept = [reading for reading in first.readings if reading.name != "ntk_trace"]
    found = suggest_estimator([replace(first, readings=Readings([*kept, hole])), *records[1:]])
    assert found.features == [name for name in expected if name in there and name != "ntk_trace"]
    assert found.families == ["network.name"]


def test_without_sensitivities_and_margins_it_takes_all_readings(records: list[Record]) -> None:
    changed = [
        replace(record, readings=Readings([r for r in record.readings if r.name not in SENSITIVITIES]))
        for record in records
    ]
    found = suggest_estimator(changed)
    assert found.features == [reading.name for reading in changed[0].readings]
    assert found.directions is not None and found.directions["unit_sparsity.kappa"] == "higher"
    table = complete_rows(records_to_pandas(changed), found.features or [])
    found.fit(table, table["gap"])
    assert len(table) == 30


def test_wide_readings_enter_by_their_logarithm(records: list[Record]) -> None:
    names = ["ntk_trace", "output_sensitivity", "parameter_count", "unit_sparsity.zeta"]
    assert suggest_estimator(records, features=names).log_features == names[:3]


def test_without_readings_it_says_so(records: list[Record]) -> None:
    bare = [replace(record, readings=Readings()) for record in records]
    with pytest.raises(
        InvalidInput, match="At least one reading must be finite in every finished network; got none in 30"
    ):
        suggest_estimator(bare)
