"""The study of planted faults: intervals, the bar, what is planted, and one unit of work."""

from __future__ import annotations

import pytest
import torch

from gapscope_studies.checks import faults
from gapscope_studies.checks.planted_faults import run_unit, units
from gapscope_studies.checks.summary import summarize, wilson


def case(outcome: str, is_fault: bool, baseline: bool | None = None) -> dict[str, object]:
    where = {"data": "digits", "family": "residual", "seed": 0, "code": "GS101", "kind": "planted"}
    return where | {"outcome": outcome, "fault": is_fault, "baseline": baseline}


def test_wilson_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for k, n in ((0, 7), (3, 7), (60, 60)):
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        result = wilson(k, n)
        assert result is not None and result == pytest.approx(
            [k / n, expected.low, expected.high], abs=1e-4
        )


def test_a_fault_that_is_not_answered_counts_as_missed() -> None:
    cases = (
        [case("finding", True)] * 50
        + [case("not checked", True)] * 10
        + [case("fine", False, True)] * 60
    )
    (row,) = summarize(cases)
    assert (
        row["hits"][0] == pytest.approx(50 / 60)
        and row["false alarms"][0] == 0
        and row["not checked"] == 10
    )
    assert row["hits of answered"][0] == 1 and row["enough cases"] and row["meets the bar"]
    assert row["baseline"]["hits"] is None and row["baseline"]["false alarms"][0] == 1


def test_thresholds_and_judgement_have_different_seeds() -> None:
    development, small = ({seed for seed, *_ in units(scale)} for scale in ("development", "small"))
    assert not small & development and len(small) == 10 and len(list(units("small"))) == 180


def test_training_and_test_samples_are_apart_and_without_repeats() -> None:
    (x, _), (test, _) = faults.draw("digits", 3, 100)
    rows = {row.numpy().tobytes() for row in torch.cat([x, test])}
    assert len(rows) == len(x) + len(test) and len(x) == 100


@pytest.mark.thorough
def test_one_unit_judges_every_code() -> None:
    cases = run_unit(0, "digits", "batch norm", 100)["cases"]
    codes = {one["code"] for one in cases if one["fault"]} | {
        one["code"] for one in cases if not one["fault"]
    }
    assert {
        "GS101",
        "GS102",
        "GS104",
        "GS105",
        "GS201",
        "GS203",
        "GS204",
        "GS301",
        "GS302",
        "GS403",
        "GS404",
    } <= codes
    assert {one["outcome"] for one in cases} <= {"finding", "fine", "not checked"}
