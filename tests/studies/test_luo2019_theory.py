"""The theory parts of the study and the advice put to the test, at smoke scale and on known answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gapscope.theory import order_parameter_integrals, stability_eigenvalues
from gapscope_studies.kit.study import Setting, run_study
from gapscope_studies.luo2019 import STUDY, theory_figures
from gapscope_studies.luo2019.advice_part import Followed
from gapscope_studies.luo2019.advice_runs import Trial, followed, trials, tried, worlds
from gapscope_studies.luo2019.theory_dynamics import printed_i2
from gapscope_studies.luo2019.theory_students import Plan, distance, mean_and_half_width, simulate_point
from gapscope_studies.luo2019.theory_table import APPROACHES, largest_settling_rate, overlap_rate

PARTS = ("fig1a", "fig1b", "table1", "dynamics", "advice", "advice_cnn")


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(scale="smoke", work=tmp_path_factory.mktemp("work"), workers=1, say=lambda line: None)


@pytest.fixture(scope="module")
def results(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    assert len(run_study(STUDY, setting, folder, parts=PARTS)) == len(PARTS)
    return folder / "luo2019" / "smoke"


def content(results: Path, part: str) -> Any:
    return json.loads((results / f"{part}.json").read_text())


@pytest.mark.parametrize("part", PARTS)
def test_every_part_leaves_figures_in_its_verdict(results: Path, part: str) -> None:
    assert any(character.isdigit() for character in content(results, part)["verdict"])
    page = (results / f"{part}.md").read_text()
    assert page.count("![") == len(list(results.glob(f"{part}-*.svg"))) == (part != "table1")


def test_simulated_ridge_students_lie_on_the_curve_and_batch_norm_goes_to_least_squares() -> None:
    plan = Plan(student="linear", batch_size=32, n_inputs=256, students=4, longest=200, full_epochs=0, loads=(2.0,))
    point = simulate_point(plan, 2.0)
    assert point.decayed.mean() == pytest.approx(float(plan.curve(2.0, 1 / 64)), rel=0.06)
    assert point.plain.mean() == pytest.approx(0.25, rel=0.06)
    assert point.cosine.min() > 0.99 and list(point.batch_norm) == [10, 30, 60, 100, 200]
    assert point.batch_norm[10].mean() < point.batch_norm[200].mean()


def test_points_are_simulated_once(setting: Setting, results: Path) -> None:
    assert results.exists()
    there = sorted(path.stat().st_mtime_ns for path in setting.work.glob("students/*/point.json"))
    assert len(there) == 6
    outcome = theory_figures.figure_1a(setting)
    assert sorted(path.stat().st_mtime_ns for path in setting.work.glob("students/*/point.json")) == there
    assert outcome.numbers == content(results, "fig1a")["numbers"]


def test_the_distance_is_the_largest_one() -> None:
    assert distance([np.array([1.0, 2.0]), np.array([3.0])], np.array([1.0, 4.0])) == 0.5
    mean, half = mean_and_half_width(np.array([1.0, 3.0]))
    assert (mean, round(half, 3)) == (2.0, 12.706)


def test_table_1_by_integration_agrees_with_its_closed_forms() -> None:
    for approach in APPROACHES:
        closed = stability_eigenvalues(1e-8, zeta=approach.zeta).overlap / 1e-8
        assert overlap_rate(approach, "relu") == pytest.approx(float(closed), rel=2e-3)
    assert largest_settling_rate("linear", tolerance=0.1) == pytest.approx(2.0, abs=0.06)


def test_the_printed_i2_is_right_at_full_overlap_alone() -> None:
    for overlap in (1.0, 0.4):
        right = float(order_parameter_integrals(0.7, overlap).i2)
        assert (abs(printed_i2(0.7, overlap) - right) < 1e-12) == (overlap == 1.0)
    assert printed_i2(0.7, 0.4) == pytest.approx(right - (1 - 0.4) / 4)


def test_what_is_advised_is_what_is_trained(setting: Setting, results: Path) -> None:
    found = content(results, "advice")["numbers"]["methods"]
    asked = found["batches of 8"]["runs"]
    saying = [run for run in asked if run["advice"]["dropout"] is not None]
    advised = [run["advice"]["dropout"]["value"] for run in saying]
    assert advised and [run["amount"] for run in found["30 with dropout"]["runs"]] == advised
    assert found["30 with dropout"]["predicted"] == [run["frozen"]["8"][0] for run in saying]
    assert found["30 with ghost batches"]["runs"][0]["amount"] == 8
    assert all(value > 0 for value in found["batches of 8"]["measured"])


def test_remedies_change_the_network_and_add_to_its_regularisation(setting: Setting, results: Path) -> None:
    assert results.exists()
    alone = trials(worlds(setting)[0], 30)[0]
    runs = tried(setting, [alone, replace(alone, remedy="dropout", amount=0.5, before="output"),
                           replace(alone, remedy="gamma decay", amount=30.0)])  # fmt: skip
    assert len({run["train_loss"] for run in runs}) == 3
    assert runs[1]["regularization"][0] > runs[0]["regularization"][0] + 0.02
    assert runs[2]["regularization"][0] > runs[0]["regularization"][0] + 0.02


def test_advice_that_has_nothing_to_say_is_not_followed(setting: Setting) -> None:
    trial: Trial = trials(worlds(setting)[0], 30)[0]
    advice: dict[str, Any] = {"dropout": None, "decay_strength": {"value": 1.5}, "dropout_before": ["output"]}
    assert followed(trial, advice, "dropout") is None
    decay, ghost = followed(trial, advice, "gamma decay"), followed(trial, advice, "ghost batches")
    assert decay is not None and decay.amount == 1.5 and ghost is not None and ghost.amount == 8
    assert len({trial.name, decay.name, ghost.name}) == 3


def test_differences_are_paired_by_seed() -> None:
    runs = [{"train_accuracy": 1.0, "test_accuracy": value} for value in (0.5, 0.6, 0.8)]
    everyone = Followed("a", 8, [0.0] * 3, runs, [0, 1, 2])
    some = Followed("b", 8, [0.0] * 2, [runs[0], runs[1]], [1, 2])
    assert some.minus(everyone, "gap") == pytest.approx([0.5 - 0.4, 0.4 - 0.2])
    assert everyone.minus(some, "test_accuracy") == pytest.approx([0.6 - 0.5, 0.8 - 0.6])
