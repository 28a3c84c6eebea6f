"""Estimates, readings and records: round trips, printed tables, damaged files."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable, UnreadableFile
from gapscope.results.estimate import Estimate
from gapscope.results.readings import SCHEMA, Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from support.tables import rows_of


def some_record(**changes: object) -> Record:
    readings = Readings(
        [
            Reading(
                measure="ntk_trace",
                number="ntk_trace",
                value=2.5,
                standard_error=0.1,
                direction="lower",
            ),
            Reading(measure="unit_sparsity", number="zeta", value=-math.inf, units="fraction"),
        ]
    )
    content = {
        "id": "abc",
        "spec": {"data": {"name": "digits", "options": {"noise": 0.1}}, "seed": 3},
        "status": "finished",
        "scores": {
            "train_accuracy": 1.0,
            "test_accuracy": 0.75,
            "train_loss": 0.1,
            "test_loss": 1.1,
        },
        "readings": readings,
    }
    return Record(**{**content, **changes})  # type: ignore[arg-type]


def test_an_estimate_is_a_float_with_a_standard_error() -> None:
    estimate = Estimate(2.0, 0.5)
    assert estimate * 2 == 4.0 and isinstance(estimate, float) and not estimate.exact
    assert (
        repr(estimate) == "2 ± 0.5" and repr(Estimate(1 / 3)) == "0.333333" and Estimate(1.0).exact
    )
    copy = pickle.loads(pickle.dumps(estimate))  # what a process pool does with it
    assert copy == 2.0 and copy.standard_error == 0.5
    assert json.dumps(estimate) == "2.0"


def test_a_record_survives_the_disk(tmp_path: Path) -> None:
    record = some_record()
    record.write(tmp_path)
    (tmp_path / "history.jsonl").write_text('{"epoch": 1}\n')
    read = Record.read(tmp_path)
    assert (
        read.readings == record.readings
        and read.scores == record.scores
        and read.history == ({"epoch": 1},)
    )
    assert read.gap == 0.25 and read.gap_kind == "accuracy"


def test_the_table_has_settings_scores_and_readings() -> None:
    table = records_to_pandas(
        [some_record(), some_record(id="def", status="failed", scores={}, readings=Readings())]
    )
    row = rows_of(table)["abc"]
    assert row["data.options.noise"] == 0.1 and row["gap"] == 0.25
    assert (
        row["ntk_trace"] == 2.5
        and row["ntk_trace.se"] == 0.1
        and row["unit_sparsity.zeta"] == -math.inf
    )
    assert math.isnan(rows_of(table)["def"]["ntk_trace"])
    assert records_to_pandas([]).empty


def test_readings_are_indexed_by_name_and_escape_their_html() -> None:
    readings = some_record().readings
    assert readings["unit_sparsity.zeta"].units == "fraction"
    with pytest.raises(NotMeasurable, match="Did you mean 'ntk_trace'"):
        _ = readings["ntk_trac"]
    evil = Readings([Reading(measure="<script>", number="<script>", value=1.0, units="<b>")])
    assert "<script>" not in evil.to_html() and "&lt;script&gt;" in evil.to_html()
    assert list(readings.to_pandas().index) == ["ntk_trace", "unit_sparsity.zeta"]
    assert repr(readings).splitlines()[1].split() == ["ntk_trace", "2.5", "±", "0.1", "lower"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": 99, "id": "a"}', "written by a newer gapscope"),
        ('{"a": 1}', "must be a gapscope record; it has no integer 'schema'"),
        ("[1]", "must be a gapscope record"),
        (f'{{"schema": {SCHEMA}, "id": "a"}}', "must contain spec, status"),
        ('{"schema": 1, "id"', "must hold JSON"),
    ],
)
def test_damaged_records_are_errors(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(UnreadableFile, match=message):
        Record.read(tmp_path)


def reading(name: str, value: float = 0.25, **facts: str) -> Reading:
    return Reading(measure=name.split(".")[0], number=name.split(".", 1)[-1], value=value, **facts)  # type: ignore[arg-type]


def margins(n: int) -> list[Reading]:
    title = "distance from the boundary: "
    names = [
        f"margins.{layer}.{part}" for layer in ("input", "h1", "h2") for part in ("lower", "median")
    ][:n]
    return [
        reading(name, k + 0.5, title=title + name, units="spreads") for k, name in enumerate(names)
    ]


def test_a_number_is_described_with_units_and_note() -> None:
    one = reading("loss", title="loss on the samples", units="nats", note="500 of 2,000 samples")
    head, row, use = str(Readings([one])).splitlines()
    assert head.split() == ["measure", "value", "error", "better", "what", "it", "is"]
    assert row.split(maxsplit=4) == [
        "loss",
        "0.25",
        "exact",
        "-",
        "loss on the samples [nats]; 500 of 2,000 samples",
    ]
    assert use.startswith("no reference values exist")
    assert str(Readings([reading("own", units="grams")])).splitlines()[1].endswith("grams")
    assert "no value" in str(Readings([reading("own", math.nan, note="there is none")]))


def test_a_family_is_one_row_with_its_medians() -> None:
    (_, row, _) = str(Readings(margins(6))).splitlines()
    assert row.split(maxsplit=2)[:2] == ["margins.*", "6"] and "numbers" in row
    assert row.endswith(
        "distance from the boundary: input.median 1.5, h1.median 3.5, h2.median 5.5 [spreads]"
    )
    assert len(str(Readings(margins(4))).splitlines()) == 6


def test_never_more_than_fifteen_lines() -> None:
    many = [reading(f"m{k}") for k in range(40)]
    why = {f"u{k}": f"reason {k}" for k in range(30)}
    message = str(Readings(many, why, [f"note {k}" for k in range(9)])).splitlines()
    assert len(message) == 15 and sum(line.startswith("note: ") for line in message) == 3
    assert any("more; .to_pandas() has all" in line for line in message) and any(
        ".unmeasured" in line for line in message
    )


@pytest.mark.parametrize("networks", [[1], ["pool"], {"a": 1}])
def test_what_is_no_record_is_refused(networks: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be records"):
        gs.write_report(networks, tmp_path / "report.html", title="networks")
    with pytest.raises(InvalidInput, match="must be records"):
        gs.rank_measures(networks)


def test_the_records_of_a_pool_are_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "runs" / "abc").mkdir(parents=True)
    some_record().write(tmp_path / "runs" / "abc")
    for source in (tmp_path, str(tmp_path), gs.Pool(tmp_path)):
        assert list(records_to_pandas(source).index) == ["abc"]
        assert gs.gap.reading_columns(source) == []
        with pytest.raises(InvalidInput, match="in every finished network"):
            gs.gap.cross_validate_pool(source)
    with pytest.raises(InvalidInput, match="pool folder"):
        gs.gap.cross_validate_pool(tmp_path / "runs")
    with pytest.raises(InvalidInput, match="got int"):
        gs.gap.suggest_estimator([1])  # type: ignore[list-item]
