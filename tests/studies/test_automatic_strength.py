"""The judging of automatic strengths on made-up trainings, and a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gapscope_studies.automatic_strength.judging import judged, rows_of, runs_of, settings


def made_up(final: dict[str, list[float]], noise: float) -> list[dict[str, Any]]:
    return [
        {
            "scenario": "a", "noise": noise, "seed": seed, "strength": strength, "final": value, "best": value,
            "status": "finished", "cpu_seconds": 2.0 if strength == "auto" else 1.0,
        }
        for strength, values in final.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_the_best_fixed_strength_is_that_of_the_scenario() -> None:
    rows = made_up({"0.0": [0.8, 0.6], "0.01": [0.5, 0.5], "auto": [0.7, 0.7]}, 0.0)
    rows += made_up({"0.0": [0.2, 0.4], "0.01": [0.6, 0.4], "auto": [0.6, 0.6]}, 0.4)
    found = judged(rows, tuned=0.01)
    clean, noisy = found["scenarios"]
    assert (clean["best strength"], noisy["best strength"]) == (0.0, 0.01)
    assert clean["automatic minus best fixed"] == pytest.approx(0.0)
    assert noisy["automatic minus best fixed"] == pytest.approx(0.1) and noisy["cost against tuned once"] == 2
    assert found["worst"] == pytest.approx(0.0) and found["collapsed"] == 0
    assert found["differences"]["tuned once"]["value"] == pytest.approx((0.2 + 0.2 + 0.0 + 0.2) / 4)
    assert found["differences"]["best fixed"]["value"] == pytest.approx((-0.1 + 0.1 + 0.0 + 0.2) / 4)


def test_a_network_far_below_plain_training_has_collapsed() -> None:
    rows = made_up({"0.0": [0.8, 0.6], "0.01": [0.5, 0.5], "auto": [0.3, 0.7]}, 0.0)
    assert judged(rows, tuned=0.01)["collapsed"] == 1


def test_trainings_are_kept_and_incomplete_groups_left_out(tmp_path: Path) -> None:
    given = settings("smoke") | {"seeds": [1]}
    names = [run.name for run in runs_of(given)]
    assert len(set(names)) == len(names) == 6
    rows = rows_of(given, tmp_path, None)
    assert len(rows) == 6 and len(rows[0]["accuracies"]) == 3 and "strengths" in rows[0]
    (tmp_path / f"{names[-1]}.json").unlink()
    assert len(rows_of(given, tmp_path, None, train_missing=False)) == 3
