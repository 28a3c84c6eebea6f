"""Sections of the report against numbers computed from the records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest
from scipy import stats

from gapscope.gap.columns import complete_rows
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.report.curves import curves
from gapscope.report.held_out import held_out_errors, held_out_section
from gapscope.report.measures import cards, guide, ranked_measures, split_ranking
from gapscope.report.networks import networks, overview
from gapscope.report.pool_view import PoolView, needs_logarithm
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record
from report.synthetic_pool import synthetic_records


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return synthetic_records()


@pytest.fixture(scope="module")
def view(records: list[Record]) -> PoolView:
    return PoolView(records)


def _column(records: list[Record], name: str) -> tuple[list[float], list[float]]:
    finished = [record for record in records if record.status == "finished"]
    return [record.readings[name].value for record in finished], [record.gap for record in finished]


def test_the_ranking_is_by_the_size_of_scipys_tau(view: PoolView, records: list[Record]) -> None:
    rows = ranked_measures(view)
    taus = {row["name"]: stats.kendalltau(*_column(records, row["name"])).statistic for row in rows}  # type: ignore[attr-defined]
    assert [row["kendall"] for row in rows] == pytest.approx(list(taus.values()))
    sizes = [abs(tau) for tau in taus.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert [row["name"] for row in rows if row["baseline"]] == ["parameter_count"]


def test_a_direction_is_confirmed_contradicted_or_left_open(records: list[Record]) -> None:
    def with_direction(record: Record, direction: str) -> Record:
        readings = Readings(replace(reading, direction=direction) for reading in record.readings)  # type: ignore[arg-type]
        return replace(record, readings=readings)

    def agreement_of(direction: str, name: str) -> str:
        rows = ranked_measures(PoolView([with_direction(record, direction) for record in records]))
        return next(row["agreement"] for row in rows if row["name"] == name)

    assert (
        agreement_of("lower", "unit_sparsity.zeta")
        == agreement_of("higher", "unit_sparsity.kappa")
        == "as stated"
    )
    assert agreement_of("higher", "unit_sparsity.zeta") == "opposite to the stated direction"
    assert agreement_of("lower", "parameter_count") == "no clear relation"
    assert agreement_of("none", "unit_sparsity.zeta") == ""


def test_weak_measures_are_folded_away_but_never_the_baseline() -> None:
    ranked = [{"name": str(k), "baseline": k == 25} for k in range(30)]
    parts = split_ranking(ranked)
    assert [row["name"] for row in parts["rows"]] == [*map(str, range(15)), "25"]
    assert len(parts["more"]) == 14


def test_a_family_of_numbers_is_shown_by_its_strongest() -> None:
    names = ["margin.b", "zeta", *(f"margin.{k}" for k in range(5)), "pair.a", "pair.b"]
    parts = split_ranking([{"name": name, "baseline": False} for name in names])
    assert [row["name"] for row in parts["rows"]] == ["margin.b", "zeta", "pair.a", "pair.b"]
    assert [row["name"] for row in parts["more"]] == [f"margin.{k}" for k in range(5)]


def test_readings_missing_or_constant_do_not_break_the_figures(records: list[Record]) -> None:
    changed = []
    for k, record in enumerate(records):
        extra = [
            Reading(measure="rare", number="rare", value=math.nan if k % 2 else float(k)),
            Reading(measure="constant", number="constant", value=1.0),
            Reading(measure="lost", number="lost", value=-math.inf),
        ]
        originals = [
            reading for reading in record.readings if k != 3 or reading.name != "ntk_trace"
        ]
        changed.append(
            replace(record, readings=Readings([*originals, *extra])) if record.readings else record
        )
    view = PoolView(changed)
    rows = {row["name"]: row for row in ranked_measures(view)}
    assert not {"constant", "lost", "rare"} & set(rows)  # half of the networks have no "rare"
    assert rows["ntk_trace"]["n"] == 29
    figures = cards(view, ranked_measures(view))
    assert len(figures["figures"]) == 7 and figures["more"] == []
    ends = {number["name"]: number["ends"] for entry in guide(view) for number in entry["numbers"]}
    assert ends["lost"] == () and ends["constant"] == (1.0, 1.0)


def test_the_axis_is_logarithmic_where_it_helps() -> None:
    skewed = numpy.exp(numpy.linspace(0, 5, 30)).tolist()
    even = numpy.linspace(1, 100, 30).tolist()
    assert needs_logarithm(skewed)
    assert not needs_logarithm(even)
    assert not needs_logarithm([0.0, *skewed])


def test_curves_are_grouped_by_the_setting_that_separates_the_gaps(view: PoolView) -> None:
    result = curves(view)
    assert (result["setting"], result["score"], result["plotted"]) == (
        "label noise",
        "accuracy",
        30,
    )
    assert [figure["title"] for figure in result["figures"]] == [
        f"label noise {x}" for x in ("0", "0.2", "0.4", "0.6", "0.8")
    ]


def test_regression_networks_have_loss_curves_and_a_loss_gap(records: list[Record]) -> None:
    changed = []
    for record in records:
        history = [{k: v for k, v in row.items() if "accuracy" not in k} for row in record.history]
        scores = {key: value for key, value in record.scores.items() if "loss" in key}
        changed.append(replace(record, history=history, scores=scores))
    view = PoolView(changed)
    assert view.gap_label == "gap (test minus train loss)"
    assert curves(view)["score"] == "loss"
    assert [head.text for head in networks(view)["heads"]][1:3] == ["train loss", "test loss"]


def test_every_network_has_its_row_smallest_gap_first(
    view: PoolView, records: list[Record]
) -> None:
    result = networks(view)
    assert len(result["rows"]) == result["of"] == 33
    gaps = [record.gap for record in records if record.status == "finished"]
    assert [row["cells"][0]["text"] for row in result["rows"][:30]] == [
        f"{gap:.3f}" for gap in sorted(gaps)
    ]
    assert [row["cells"][-1]["text"] for row in result["rows"][30:]] == [
        "diverged",
        "failed",
        "failed",
    ]


def test_the_overview_counts(view: PoolView, records: list[Record]) -> None:
    result = overview(view)
    varied = {row["path"]: row["values"] for row in result["varied"]}
    assert varied["network.options.width"] == [("32", 10), ("64", 10), ("128", 10)]
    assert varied["data.label_noise"] == [(text, 6) for text in ("0", "0.2", "0.4", "0.6", "0.8")]
    assert set(varied) == {
        "data.label_noise",
        "network.options.width",
        "network.options.n_hidden",
        "seed",
    }
    same = [replace(records[-2], id=f"failed{k}") for k in range(13)]
    grouped = overview(PoolView([*records, *same]))["failures"]
    memory = next(failure for failure in grouped if "memory" in failure["message"])
    assert (len(memory["networks"]), memory["more"]) == (10, 4)


def test_estimates_and_baselines_are_scored_on_the_same_networks(view: PoolView) -> None:
    table = complete_rows(view.table)
    held = table.iloc[::4]
    rest = table.drop(held.index)
    estimator = GapEstimator(features=["unit_sparsity.zeta"]).fit(rest, rest["gap"])
    assessed = estimator.assess(held, refuse=False)
    assessed.iloc[0, :3] = numpy.nan  # no estimate
    result = held_out_section(view, assessed, held_out_errors(view, assessed), estimator, 0.9)
    models = {model["name"]: model["rmse"] for model in result["models"]}
    estimated = held.iloc[1:]
    gaps = estimated["gap"].to_numpy(dtype=float)

    def error(predictions: numpy.ndarray) -> object:
        return pytest.approx(((predictions - gaps) ** 2).mean() ** 0.5)

    assert models["this estimator"] == error(estimator.predict(estimated))
    assert models["mean gap"] == error(numpy.full(len(gaps), rest["gap"].mean()))
    line = numpy.polyfit(rest["train_loss"], rest["gap"], 1)
    assert models["train_loss"] == error(numpy.polyval(line, estimated["train_loss"]))
    size = numpy.polyfit(numpy.log(rest["parameter_count"]), rest["gap"], 1)
    assert models["parameter_count"] == error(
        numpy.polyval(size, numpy.log(estimated["parameter_count"]))
    )
    assert result["beaten_by"] == ["train_loss"]
    ends = estimator.predict_interval(estimated, 0.9)
    covered = int(((ends[:, 0] <= gaps) & (gaps <= ends[:, 1])).sum())
    assert (result["covered"], result["inside"], result["estimated"]) == (
        covered,
        len(gaps),
        len(gaps),
    )
    assert [name for _, name in result["formula"]] == ["", "unit_sparsity.zeta"]


def test_a_baseline_that_was_not_measured_is_omitted(records: list[Record]) -> None:
    def without_size(record: Record) -> Record:
        return replace(
            record, readings=Readings(r for r in record.readings if r.name != "parameter_count")
        )

    view = PoolView([*map(without_size, records[:5]), *records[5:]])
    table = complete_rows(view.table)
    estimator = GapEstimator(features=["unit_sparsity.zeta"]).fit(table, table["gap"])
    assessed = estimator.assess(table.iloc[:3])
    result = held_out_section(view, assessed, held_out_errors(view, assessed), estimator, 0.9)
    assert [model["name"] for model in result["models"]] == [
        "this estimator",
        "mean gap",
        "train_loss",
    ]


def test_very_few_held_out_networks_have_no_baselines_but_a_section(records: list[Record]) -> None:
    view = PoolView(records[:2])
    table = complete_rows(view.table)
    estimator = GapEstimator(features=[]).fit(table, table["gap"])
    assessed = estimator.assess(table)
    result = held_out_section(view, assessed, held_out_errors(view, assessed), estimator, 0.9)
    assert [model["name"] for model in result["models"]] == ["this estimator"]
    assert (result["rows"][0][0].low, result["rows"][0][0].high) == (-math.inf, math.inf)


def test_a_record_that_is_listed_twice_is_one_network(records: list[Record]) -> None:
    once, twice = PoolView(records), PoolView([*records, records[0], *records[:5]])
    assert [record.id for record in twice.records] == [record.id for record in once.records]
    for name in ("all_rows", "all_finished_rows", "finished_rows", "table"):
        assert getattr(twice, name).equals(getattr(once, name))
