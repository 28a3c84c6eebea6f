"""Rows read from stored results: their numbers are those of the files, and shares have Wilson's interval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest

from gapscope_studies.kit.study import RunSettings
from gapscope_studies.own_tools import study

ROOT = Path(__file__).parents[2]


def test_every_part_reads_its_file_and_stores_what_results_hold() -> None:
    setting = RunSettings(scale="small", work=Path(), say=lambda line: None)
    for part in study.STUDY.parts:
        claims = part.run(setting).claims
        stored = json.loads(
            (ROOT / "results" / "own_tools" / "small" / f"{part.name}.json").read_text()
        )["claims"]
        assert [claim.statement for claim in claims] == [row["says"] for row in stored]
        assert [claim.value for claim in claims] == pytest.approx(
            [row["value"] for row in stored], rel=1e-4, abs=1e-9
        )
        assert all(claim.ours and claim.untrained for claim in claims)


def test_shares_have_wilsons_interval() -> None:
    rows = {claim.statement: claim for claim in study.monitor_claims(ROOT / "benchmarks")}
    summary = json.loads((ROOT / "benchmarks" / "results" / "fine_tuning.json").read_text())[
        "summary"
    ]["classifier"]
    claim = rows["classifier: half of them in time"]
    exact = binomtest(summary["flagged in time"], summary["memorising runs"]).proportion_ci(
        method="wilson"
    )
    assert (claim.low, claim.high) == pytest.approx((exact.low, exact.high), abs=1e-4)
    assert claim.value == summary["flagged in time"] / summary["memorising runs"]


def test_an_interval_over_data_sets_that_agree_is_that_over_cases() -> None:
    assert study._wider([0.0] * 6, [0.0, 0.0, 0.021]).high == 0.021
    apart = study._wider([0.2, 0.4, 0.6], [0.4, 0.39, 0.41])
    assert apart.low == 0.0 and apart.high > 0.8 and apart.units == 3
