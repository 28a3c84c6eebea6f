"""The estimator that is fitted where the user names none."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from gapscope.errors import InvalidInput
from gapscope.estimation import suggested_estimator, usable_rows
from gapscope.estimation.suggestion import PREFERRED
from gapscope.records import Reading, Readings, Record, records_to_pandas
from report.synthetic_pool import synthetic_records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records()


def test_it_takes_the_three_sensitivities_that_every_finished_network_has(records: list[Record]) -> None:
    assert suggested_estimator(records).features == [name for name in PREFERRED if name != "input_jacobian_norm"]
    first = records[0]
    hole = Reading(measure="ntk_trace", number="ntk_trace", value=numpy.nan)
    kept = [reading for reading in first.readings if reading.name != "ntk_trace"]
    found = suggested_estimator([replace(first, readings=Readings([*kept, hole])), *records[1:]])
    assert found.features == ["output_sensitivity"]
    assert found.families == ["network.name"]


def test_without_the_three_it_takes_all_readings(records: list[Record]) -> None:
    changed = [
        replace(record, readings=Readings([r for r in record.readings if r.name not in PREFERRED]))
        for record in records
    ]
    found = suggested_estimator(changed)
    assert found.features == [reading.name for reading in changed[0].readings]
    assert found.directions is not None and found.directions["unit_sparsity.kappa"] == "higher"
    table = usable_rows(records_to_pandas(changed), found.features or [])
    found.fit(table, table["gap"])
    assert len(table) == 30


def test_wide_readings_enter_by_their_logarithm(records: list[Record]) -> None:
    names = ["ntk_trace", "output_sensitivity", "parameter_count", "unit_sparsity.zeta"]
    assert suggested_estimator(records, features=names).logarithm == names[:3]


def test_normalisation_is_part_of_the_family(records: list[Record]) -> None:
    def with_norm(record: Record, k: int) -> Record:
        network = {**record.spec["network"], "options": {"batch_norm": bool(k % 2)}}
        return replace(record, spec={**record.spec, "network": network})

    changed = [with_norm(record, k) for k, record in enumerate(records)]
    assert suggested_estimator(changed).families == ["network.name", "network.options.batch_norm"]


def test_the_readings_can_be_named(records: list[Record]) -> None:
    found = suggested_estimator(records, features=["unit_sparsity.zeta", "unit_sparsity.kappa"], kind="monotone")
    assert (found.kind, found.features) == ("monotone", ["unit_sparsity.zeta", "unit_sparsity.kappa"])


def test_without_readings_it_says_so(records: list[Record]) -> None:
    bare = [replace(record, readings=Readings()) for record in records]
    with pytest.raises(
        InvalidInput, match="At least one reading must be finite in every finished network; got none in 30"
    ):
        suggested_estimator(bare)
