"""Columns of a table of networks by their roles, and the estimator that is fitted where the user names none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import pandas
import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.specs import RunSpec
from gapscope.gap.columns import (
    SENSITIVITIES,
    as_texts,
    complete_rows,
    hyperparameter_columns,
    merge_passed_settings,
    reading_columns,
    suggest_estimator,
)
from gapscope.gap.cross_validation import cross_validate_pool
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.report import summary, write_report
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from gapscope.statistics.correlations import correlations
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


def _added(name: str, **settings: float) -> Record:
    spec = {"name": name, "network": {"name": "own"}, "hp": settings}
    return replace(_record(3, norm=3.0), id=name, spec=spec)


def test_settings_that_networks_trained_elsewhere_lack_are_unknown_not_other_values() -> None:
    added = [_added("a", width=24.0, dropout=0.1), _added("b", width=24.0, dropout=0.2)]
    table = records_to_pandas([*RECORDS, *added])
    assert hyperparameter_columns(table) == [
        "data.label_noise",
        "network.name",
        "network.options.width",
        "seed",
        "hp.dropout",
    ]
    # among networks of a grid a missing setting is one that does not apply
    grid = records_to_pandas(RECORDS)
    grid.loc[RECORDS[0].id, "training.epochs"] = numpy.nan
    assert "training.epochs" in hyperparameter_columns(grid)
    merged, filled = merge_passed_settings(table)
    assert filled == ["network.options.width"] and "hp.width" not in merged
    assert merged["network.options.width"].tolist() == [8, 16, 24, 24, 24]


def test_a_record_without_scores_has_no_kind_of_gap() -> None:
    assert replace(RECORDS[2], scores={}).gap_kind == ""


def test_usable_rows_are_finished_and_finite() -> None:
    table = records_to_pandas(RECORDS)
    assert complete_rows(table, ["norm"]).index.tolist() == [RECORDS[0].id, RECORDS[1].id]
    assert complete_rows(table.assign(norm=[numpy.inf, 2.0, 3.0]), ["norm"]).index.tolist() == [
        RECORDS[1].id
    ]
    assert len(complete_rows(pandas.DataFrame({"gap": [0.1, numpy.nan]}))) == 1


def with_kind(record: Record, kind: str, data: str = "digits") -> Record:
    scores = record.scores
    if kind == "loss":
        scores = {name: value for name, value in scores.items() if name.endswith("loss")}
    spec = {**record.spec, "data": {**record.spec["data"], "name": data}}
    return replace(record, scores=scores, spec=spec)


KINDS = ["accuracy", "loss"] * 12
COMPARISONS: dict[str, Callable[[list[Record], pandas.DataFrame], object]] = {
    "complete_rows": lambda records, table: complete_rows(table),
    "leaderboard": lambda records, table: gs.rank_measures(records),
    "leaderboard of a table": lambda records, table: gs.rank_measures(
        table, measures=["ntk_trace"]
    ),
    "correlations": lambda records, table: correlations(table, ["ntk_trace"], baseline=None),
    "fit": lambda records, table: GapEstimator(features=["ntk_trace"]).fit(table, table["gap"]),
    "cross-validation": lambda records, table: cross_validate_pool(records),
    "report": lambda records, table: write_report(records, Path("page.html"), title="mixed"),
    "summary": lambda records, table: summary(records),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_gaps_of_different_units_are_compared_by_no_function(name: str) -> None:
    records = synthetic_records(24)[:24]
    pairs = list(zip(records, KINDS, strict=True))
    for networks, message in (
        ([with_kind(record, kind) for record, kind in pairs], "12 of accuracy and 12 of loss"),
        ([with_kind(record, "loss", data) for record, data in pairs], "one data set"),
    ):
        with pytest.raises(InvalidInput, match=message):
            COMPARISONS[name](networks, records_to_pandas(networks))


def test_gaps_of_one_unit_and_other_targets_are_compared() -> None:
    pairs = zip(synthetic_records(24)[:24], KINDS, strict=True)
    mixed = [with_kind(record, kind) for record, kind in pairs]
    assert len(complete_rows(records_to_pandas(mixed[1::2]))) == 12
    assert len(complete_rows(records_to_pandas(mixed), target="train_loss")) == 24


def test_a_network_whose_gap_is_of_another_kind_gets_no_estimate() -> None:
    records = synthetic_records(24)
    estimator, _ = cross_validate_pool(records)
    other = records_to_pandas([with_kind(record, "loss") for record in records[:2]])
    assert set(estimator.assess(other)["verdict"]) == {"outside"}
    assert "gap_kind is loss; fitted on accuracy" in estimator.assess(other)["reason"].iloc[0]


def test_without_networks_and_without_gaps_the_advice_is_another() -> None:
    for records, message in (
        ([], "pool run"),
        ([replace(RECORDS[0], scores={"train_loss": 0.1})], "test data"),
        ([RECORDS[2]], "what made the networks fail"),
    ):
        with pytest.raises(InvalidInput, match=message):
            gs.rank_measures(records)
        with pytest.raises(InvalidInput, match=message):
            complete_rows(records_to_pandas(records))


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
    assert result.families == ["network.name", "gap_kind"]


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
