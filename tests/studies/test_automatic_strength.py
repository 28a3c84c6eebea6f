"""The judging of automatic strengths on made-up training runs, and a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gapscope_studies.automatic_strength import study
from gapscope_studies.automatic_strength.study import (
    AUTOMATIC,
    NONE,
    compare,
    final_accuracy,
    fixed_name,
    rows_of,
    runs_of,
)
from gapscope_studies.kit.study import RunSettings

WAYS = {"0.0": NONE, "0.01": fixed_name(0.01), "auto": AUTOMATIC}


def made_up(final: dict[str, list[float]], noise: float) -> list[dict[str, Any]]:
    return [
        {
            "scenario": "a", "noise": noise, "seed": seed, "way": WAYS[way], "final": value, "best": value,
            "status": "finished", "cpu_seconds": 2.0 if way == "auto" else 1.0,
        }
        for way, values in final.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_the_best_fixed_strength_is_that_of_the_scenario() -> None:
    rows = made_up({"0.0": [0.8, 0.6], "0.01": [0.5, 0.5], "auto": [0.7, 0.7]}, 0.0)
    rows += made_up({"0.0": [0.2, 0.4], "0.01": [0.6, 0.4], "auto": [0.6, 0.6]}, 0.4)
    result = compare(rows, tuned=0.01)
    clean, noisy = result["scenarios"]
    assert (clean["best fixed way"], noisy["best fixed way"]) == (NONE, fixed_name(0.01))
    assert clean["automatic minus best fixed"] == pytest.approx(0.0)
    assert noisy["automatic minus best fixed"] == pytest.approx(0.1)
    assert result["worst"] == pytest.approx(0.0) and result["collapsed"] == 0
    differences = result["differences"][AUTOMATIC]
    assert differences["tuned once"]["value"] == pytest.approx((0.2 + 0.2 + 0.0 + 0.2) / 4)
    assert differences["best fixed"]["value"] == pytest.approx((-0.1 + 0.1 + 0.0 + 0.2) / 4)
    assert differences[NONE]["value"] == pytest.approx((-0.1 + 0.1 + 0.4 + 0.2) / 4)


def test_a_network_far_below_plain_training_has_collapsed() -> None:
    rows = made_up({"0.0": [0.8, 0.6], "0.01": [0.5, 0.5], "auto": [0.3, 0.7]}, 0.0)
    assert compare(rows, tuned=0.01)["collapsed"] == 1


def test_final_accuracy_of_a_training() -> None:
    assert final_accuracy([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], []) == pytest.approx(0.4)
    assert final_accuracy([0.7], []) == 0.7 and final_accuracy([], []) == 0
    # the first of the epochs at which the samples that were held out fare best
    assert final_accuracy([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 0.4]) == 0.2


@pytest.mark.thorough
def test_every_way_of_a_scenario_is_trained(tmp_path: Path) -> None:
    settings = RunSettings(scale="smoke", work=tmp_path).read(study.__file__) | {"seeds": [1]}
    runs = runs_of(settings)
    assert len({run.name for run in runs}) == len(runs) == 16
    assert not any(run.method.loss for run in runs) and runs[-1].method.name == settings["last"][0]
    rows = rows_of(settings, tmp_path, None)
    assert [row["way"] for row in rows] == [run.method.name for run in runs]
    assert all(len(row["accuracies"]) == 2 and row["status"] == "finished" for row in rows)
