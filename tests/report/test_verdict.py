"""Conclusions of the report, and its JSON summary."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy
import pandas
import pytest

from gapscope.base.files import to_json
from gapscope.leaderboard.leaderboard_result import Score, Verdict
from gapscope.leaderboard.ranking import RANDOM
from gapscope.report import summary, write_report
from gapscope.report.held_out import held_out_errors
from gapscope.report.measures import leaderboard_verdicts, ranked_measures
from gapscope.report.pool_view import PoolView
from gapscope.report.verdict import verdict
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas
from gapscope.statistics.correlations import correlations


def record(name: str, train: float, test: float, *readings: Reading) -> Record:
    scores = {"train_accuracy": train, "test_accuracy": test, "train_loss": 0.1, "test_loss": 0.5}
    return Record(
        id=name, spec={"name": name}, status="finished", scores=scores, readings=Readings(readings)
    )


def conclusions(
    *records: Record,
    held_out: pandas.DataFrame | None = None,
    best: str | None = None,
    by_reading: dict[str, Verdict] | None = None,
) -> str:
    view = PoolView(records)
    errors = {} if held_out is None else held_out_errors(view, held_out)
    return " ".join(verdict(view, held_out, errors, best, by_reading))


def test_the_best_is_named_or_a_tie_is_called_one() -> None:
    one = conclusions(record("a", 0.9, 0.85), record("b", 0.9, 0.7))
    assert one.startswith("Best test accuracy: 0.850, a, by more than a point.")
    tied = conclusions(record("a", 0.9, 0.85), record("b", 0.9, 0.845), record("c", 0.9, 0.7))
    assert tied.startswith("Best test accuracy: 0.850, a; 1 more within a point.")


def test_memorizing_networks_are_counted() -> None:
    text = conclusions(record("a", 0.9, 0.85), record("b", 1.0, 0.6))
    assert (
        "memorized by 1 of 2 networks; largest gap: b (accuracy 1.000 on training data, 0.600 on test data)."
        in text
    )
    assert "memorized" not in conclusions(record("a", 0.99, 0.95), record("b", 0.8, 0.6))


@pytest.mark.parametrize(
    ("n", "off", "words"),
    [
        (12, 0.01, "error of 0.010 (baseline, the mean gap: 0.075)"),  # each from the other eleven
        (
            24,
            0.01,
            "error of 0.010 (baseline, the mean gap: 0.250)",
        ),  # the last twelve from the first
        (12, 0.5, "Gaps cannot be estimated from training"),
    ],
)
def test_the_error_of_the_estimate_is_compared_with_the_mean_gap(
    n: int, off: float, words: str
) -> None:
    records = [record(str(i), 0.9, 0.5 + 0.02 * i) for i in range(n)]
    predictions = {item.id: item.gap + off * (-1) ** i for i, item in enumerate(records[-12:])}
    assert words in conclusions(*records, held_out=pandas.DataFrame({"prediction": predictions}))


def test_the_estimate_comes_first_with_the_best_expected_accuracy() -> None:
    records = [record(str(i), 0.9, 0.5 + 0.02 * i) for i in range(12)]
    gaps = pandas.Series({item.id: item.gap for item in records})
    held_out = pandas.DataFrame({"prediction": gaps, "low": gaps - 0.04, "high": gaps + 0.05})
    result = conclusions(*records, held_out=held_out)
    assert result.startswith("Gaps can be estimated from training data alone")
    assert "Highest expected accuracy on new data: 72 % (67 to 76), 11." in result


def test_measures_are_named_by_their_titles() -> None:
    new = Reading(measure="zeta", number="zeta", value=0.5, title="units that a class needs")
    old = Reading(measure="my_own", number="first", value=0.5)
    records = [record(str(i), 0.9, 0.5, new, old) for i in range(12)]
    assert "correlation with the gap: units that a class needs." in conclusions(
        *records, best="zeta"
    )
    assert "correlation with the gap: my own: first." in conclusions(*records, best="my_own.first")


def test_measures_are_compared_with_chance_and_hyperparameters() -> None:
    zeta = Reading(measure="zeta", number="zeta", value=0.5, title="units that a class needs")
    records = [record(str(i), 0.9, 0.5, zeta) for i in range(12)]
    significant, not_so = Score(value=0.4, p=0.01), Score(value=0.1, p=0.5)
    both = Verdict(
        role="measure", verdict="evidence", why="", partial=significant, kendall=significant
    )
    ranks = replace(both, verdict="no evidence", partial=not_so)
    chance = replace(ranks, kendall=not_so)
    size = replace(chance, role="size")
    assert conclusions(*records, best="zeta", by_reading={"zeta": both}).endswith(
        "equal hyperparameters: 1 of 1 number predicts the gap: units that a class needs."
    )
    hidden = replace(both, kendall=not_so)
    text = conclusions(*records, best="zeta", by_reading={"zeta": hidden})
    assert "Raw correlations" in text and "1 of 1 number predicts" in text
    assert "No measure correlates" not in text
    assert "At equal hyperparameters: no measure" in conclusions(
        *records, best="zeta", by_reading={"zeta": ranks, "n": size}
    )
    nothing = conclusions(*records, best="zeta", by_reading={"zeta": chance})
    assert "none is stronger than that of random numbers." in nothing
    assert nothing.endswith("no measure predicts the gap.")
    assert conclusions(*records, best="zeta").endswith("no settings of the networks are known.")
    known = [replace(item, spec={"hp": {"width": 8}}) for item in records]
    assert conclusions(*known, best="zeta").endswith("units that a class needs.")


def test_readings_have_verdicts_at_equal_settings(tmp_path: Path) -> None:
    rng = numpy.random.default_rng(0)
    records = []
    for number in range(48):
        width, luck = number % 12, float(rng.normal())
        own = Reading(measure="own", number="own", value=luck)
        size = Reading(measure="parameter_count", number="parameter_count", value=float(width))
        made = record(str(number), 0.9, 0.8 - 0.02 * width - 0.02 * luck, own, size)
        records.append(replace(made, spec={"network": {"name": "a", "width": width}}))
    view = PoolView(records)
    by_reading = leaderboard_verdicts(view)
    rows = {row["name"]: row for row in ranked_measures(view, by_reading)}
    assert [name for name, result in by_reading.items() if result.verdict == "evidence"] == ["own"]
    assert rows["own"]["verdict"].partial.p == pytest.approx(0.0025, abs=1e-4)
    assert (
        rows[RANDOM]["verdict"].verdict == "no evidence"
        and rows[RANDOM]["kind"] == "random numbers"
    )
    page = write_report(view, tmp_path / "page.html", title="Verdicts").read_text()
    assert re.search(
        r"at equal settings: evidence, r 0\.\d\d \(0\.\d\d to 0\.\d\d\), corrected p 0\.002", page
    )
    assert leaderboard_verdicts(PoolView(records[:11])) == {}
    # networks without settings are not judged, and are not said to have equal ones
    unknown = [
        replace(item, spec={"name": f"net {item.id}", "network": {"name": "a"}}) for item in records
    ]
    assert leaderboard_verdicts(PoolView(unknown)) == {}
    page = write_report(unknown, tmp_path / "unknown.html", title="Unknown").read_text()
    assert "not known of 48 of 48 networks" in page and "the same settings" not in page
    mixed = PoolView([*records[:24], *unknown[24:]])
    assert mixed.n_without_settings == 24 and leaderboard_verdicts(mixed)["own"].role == "measure"


def test_one_or_two_networks_make_a_page_without_rankings(tmp_path: Path) -> None:
    own = [Reading(measure="own", number="own", value=value) for value in (1.0, 2.0)]
    records = [record("a", 0.9, 0.85, own[0]), record("b", 0.9, 0.7, own[1])]
    page = write_report(records[:1], tmp_path / "page.html", title="Few").read_text()
    assert (
        "One network is finished, a: accuracy 0.900 on training data, 0.850 on test data, gap 0.050."
        in page
    )
    assert "Gap estimates need 12 finished networks; this pool has 1." in page
    assert (
        "Best test accuracy" not in page and "Half of them" not in page and "median gap" not in page
    )
    page = write_report(records, tmp_path / "page.html", title="Few").read_text()
    assert (
        "Best test accuracy: 0.850, a, by more than a point." in page and "this pool has 2." in page
    )
    assert (
        'id="ranking"' not in page
        and 'id="networks"' in page
        and '<th scope="row" title="b">b</th>' in page
    )


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
    return [
        *records,
        Record(id="lost", spec={"seed": 99}, status="failed", message="out of memory"),
    ]


def test_the_numbers_are_those_of_the_records() -> None:
    records = pool([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    result = summary(records)
    assert (
        result["status"] == {"finished": 6, "failed": 1}
        and result["gap"] == "test minus train loss"
    )
    assert [row["measure"] for row in result["measures"]] == ["norm", "noise"]
    expected = correlations(
        records_to_pandas(records[:-1]), ["norm", "noise"], baseline=None, n_bootstrap=2000
    )
    for row in result["measures"]:
        assert {key: row[key] for key in expected.columns} == expected.loc[row["measure"]].to_dict()
    assert result["measures"][0]["kendall"] == 1.0
    gaps = {row["id"]: row["gap"] for row in result["networks"] if row["status"] == "finished"}
    assert gaps == {record.id: record.gap for record in records[:-1]}
    assert result["networks"][-1]["message"] == "out of memory"
    assert result["verdict"][0].startswith("Smallest test loss: 0.200, ")
    assert json.loads(to_json(result))["networks"][-1]["gap"] == "NaN"


def test_a_measure_that_many_networks_lack_is_named_and_not_ranked(tmp_path: Path) -> None:
    records = [
        record(
            str(i), 0.9, 0.8 - 0.01 * i, _reading("norm", (7 * i) % 12),
            *([_reading("rare", i)] if i < 9 else []),
        )
        for i in range(12)
    ]  # fmt: skip
    view = PoolView(records)
    assert [row["name"] for row in ranked_measures(view)] == ["norm"]
    assert [row["measure"] for row in summary(view)["measures"]] == ["norm"]
    assert "lack values: 1 of 2 numbers, of rare." in " ".join(summary(view)["verdict"])
    page = write_report(view, tmp_path / "page.html", title="Rare").read_text()
    assert re.search(r"best measure</dt><dd>[^<]*<small>norm, 95 % interval [^<]* to ", page)
    # one of ten does not exclude it
    assert len(ranked_measures(PoolView(records[:10]))) == 2
