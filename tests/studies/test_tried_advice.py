"""The study of advice: which cases it runs, and how choices are counted."""

from __future__ import annotations

import pytest

from gapscope_studies.checks.tried_advice import CHOSEN_ON, FAULTS, JUDGED, summarize, units


def case(fault: str, tried: list[float | str] | None, gains: dict[str, float]) -> dict[str, object]:
    findings = [
        {
            "code": "GS401",
            "cost": 0.1,
            "interval": None,
            "fixes": ["learning rate / 3", "weight decay"],
        }
    ]
    return {
        "fault": fault, "base": 0.8, "gains": gains, "findings": findings, "tried": tried, "search": None,
        "entries": [{"name": "training", "codes": ["GS401"], "cost": 0.1, "interval": [0.02, 0.2]}],
        "on new data": 0.78, "removed": {"training": 0.04},
        "skore": False, "early_stopping": -0.02, "expected": [0.8, 0.75, 0.85], "check_seconds": 1.0,
    }  # fmt: skip


def test_choices_are_counted_by_what_they_do_to_the_test_accuracy() -> None:
    helped = case(
        "noise",
        ["weight decay", 0.07, 0.02, 0.12],
        {"weight decay": 0.05, "learning rate / 3": -0.03},
    )
    sound = case(
        "sound",
        ["weight decay", 0.02, 0.0, 0.04],
        {"weight decay": -0.02, "learning rate / 3": 0.0},
    )
    summary = summarize([helped, sound])
    rows = {row["choice"]: row for row in summary["choices"]}
    tried, first = rows["tried advice"], rows["first finding, untried"]
    assert (tried["given"], tried["raised"], tried["lowered"], tried["winnable raised"]) == (
        2,
        1,
        1,
        1,
    )
    assert tried["sound touched"] == 1 and tried["mean"] == pytest.approx(0.015)
    assert (first["raised"], first["lowered"]) == (0, 1) and rows["search"]["given"] == 0
    assert summary["tried keeps its sign"] == [1, 2] and summary["winnable"] == 1
    # stated 0.10 for the best fix of the cause, 0.05 and 0; stating 0 would err by 0.05 and 0
    assert summary["stated cost, RMSE and bias"][:2] == pytest.approx(
        [(0.5 * (0.05**2 + 0.1**2)) ** 0.5, 0.075]
    )
    assert summary["cost stated as 0, RMSE"] == pytest.approx((0.5 * 0.05**2) ** 0.5)
    assert summary["cost intervals cover"] == [1, 2]
    # the cause costs 0.04, inside of the interval of both; the accuracy on new data, not that of new trainings, counts
    assert summary["cost of the cause, RMSE and bias"] == pytest.approx([0.06, 0.06, 2])
    assert summary["cause intervals cover"] == summary["expected covers"] == [2, 2]


def test_every_data_set_has_its_sound_case_and_faults_in_turn() -> None:
    plan = units(JUDGED, 5)
    assert len(plan) == len(set(plan)) == 5 * len(JUDGED) >= 60
    assert {name for fault, name, _ in plan if fault == "sound"} == set(JUDGED)
    assert {fault for fault, *_ in plan} == set(FAULTS)
    assert not set(JUDGED) & set(CHOSEN_ON)
