"""The rules on made-up recordings, the pools, and watched runs; its numbers: `test_frozen`."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gapscope.base.specs import RunSpec
from gapscope.training.loop import train
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.overfitting_alarm import runs, study
from gapscope_studies.overfitting_alarm.alarms import Stop
from gapscope_studies.overfitting_alarm.judging import (
    BEST_CHECKPOINT,
    END,
    EPOCH_OF_SPLIT,
    ORACLE,
    STATISTICS,
    STOP_OF_SPLIT,
    baselines_of,
    cost,
    evaluate_rule,
    tune,
)
from gapscope_studies.overfitting_alarm.rules import (
    RULES,
    SPLIT,
    WHOLE,
    Rule,
    first_drop,
    first_plateau,
)
from gapscope_studies.overfitting_alarm.runs import Case, cases

T, W, K, N = 9, 16, 2, 20


def small(tmp_path: Path, scale: str = "small") -> RunSettings:
    return RunSettings(scale=scale, work=tmp_path, workers=1, say=lambda line: None)


def test_pools_have_nothing_in_common_and_enough_runs(tmp_path: Path) -> None:
    tuning, judging = (cases(small(tmp_path), pool) for pool in ("tuning", "judging"))
    assert len({case.id for case in [*tuning, *judging]}) == len(tuning) + len(judging) == 45 + 84
    assert not {case.kind for case in tuning} & {case.kind for case in judging}
    assert not {case.spec.seed for case in tuning} & {case.spec.seed for case in judging}
    assert 3 * sum(case.noise == 0 for case in judging) >= len(judging)
    assert {case.noise for case in judging} == {0, 0.05, 0.1, 0.2, 0.4, 0.6}
    assert {case.pairwise for case in judging if case.noise == 0.2} == {False, True}
    assert len({case.id for case in cases(small(tmp_path, "paper"), "judging")}) == 5 * 84


def test_every_rule_is_frozen_in_one_of_few_settings_and_plays_on_any_recording() -> None:
    default, settings = study.frozen_settings(RunSettings(scale="smoke", work=Path()))
    assert set(settings) == set(RULES) and default in settings
    for rule in RULES.values():
        assert settings[rule.name] in rule.settings() and len(rule.settings()) in (9, 24, 36, 40)
        result = rule.stops(made_up(RISES_AND_FALLS), **settings[rule.name])
        assert result is None or 0 <= result.at < T


@pytest.mark.parametrize(("options", "stop"), [
    ({"fall": 0.1, "patience": 1, "window": 1}, Stop(3, 1)), ({"fall": 0.1, "patience": 2, "window": 1}, Stop(6, 1)),
    ({"fall": 0.25, "patience": 1, "window": 1}, None),
    # means of two: .1 .3 .475 .375 .4 .4 .3
    ({"fall": 0.09, "patience": 1, "window": 2}, Stop(3, 2)),
])  # fmt: skip
def test_a_drop_by_hand(options: dict[str, Any], stop: Stop | None) -> None:
    assert first_drop([0.1, 0.5, 0.45, 0.3, 0.5, 0.3, 0.3], **options) == stop


@pytest.mark.parametrize(
    ("growth", "patience", "stop"), [(0.05, 1, Stop(3, 3)), (0.05, 2, Stop(4, 4)), (0.0, 1, None)]
)
def test_a_plateau_by_hand(growth: float, patience: int, stop: Stop | None) -> None:
    values = [0.1, 0.5, 0.8, 0.82, 0.83, 0.9]
    assert first_plateau(values, growth=growth, patience=patience, window=1) == stop


RISES_AND_FALLS = [0.1, 0.5, 0.8, 0.9, 0.7, 0.5, 0.4, 0.4, 0.4]


def made_up(
    accuracy: list[float], kind: str = "made up", noise: float = 0.5, **tensors: torch.Tensor
) -> runs.Run:
    case = Case(
        kind=kind,
        spec=RunSpec(),
        n=N,
        test=9,
        noise=noise,
        pairwise=False,
        classes=None,
        quartiles=False,
    )
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(W) % K
    recording = {
        "predicted": torch.zeros(T, N, dtype=torch.int16),
        "outputs": torch.randn(T, W, K, generator=generator),
        "neighbours": (torch.arange(W)[:, None] + torch.arange(1, 4))
        .remainder(W)
        .expand(T, W, 3)
        .short(),
        "cosines": torch.rand(T, W, generator=generator),
        "labels": labels,
        "initial": torch.nn.functional.one_hot(labels, K).float(),
        "errors": torch.zeros(T, N, dtype=torch.uint8),
        "canary_outputs": torch.randn(T, W, K, generator=generator),
        "canary_labels": labels,
        "is_canary": torch.arange(W) < 6,
    }
    constant = [1.0] * T
    return runs.Run(
        case=case,
        columns={"test_accuracy": accuracy, "train_accuracy": accuracy, "train_loss": constant, "disparity": constant,
                 "evidence": [-1.0] * T},
        split={"test_accuracy": [0.5 * value for value in accuracy], "loss": constant, "accuracy": [0.5] * T},
        with_canaries={"test_accuracy": accuracy},
        tensors=recording | tensors,
        seconds={name: 1.0 for names in study.TIMED.values() for name in names} | {"training": 10.0},
        date="",
    )  # fmt: skip


def at(stop: Stop | None, network: str = WHOLE) -> Rule:
    return Rule("fixed", "stops at an index", lambda run: stop, {}, network)


@pytest.mark.parametrize(
    ("index", "kept", "hit", "premature", "delay"),
    [
        (3, 0.9, True, False, 0),
        (4, 0.7, True, False, 1),
        (5, 0.5, False, False, 2),  # less than half of the loss avoided
        (2, 0.8, False, True, -1),  # ten points to come
        (None, 0.4, False, False, math.nan),
    ],
)
def test_verdicts_by_hand(
    index: int | None, kept: float, hit: bool, premature: bool, delay: float
) -> None:
    stop = None if index is None else Stop(index, 1)
    verdict = evaluate_rule(at(stop), {}, made_up(RISES_AND_FALLS))
    assert verdict.overfits and not verdict.stays
    assert (verdict.best, verdict.final, verdict.kept) == (
        0.9,
        pytest.approx(0.4),
        pytest.approx(kept),
    )
    assert verdict.rolled_back == (pytest.approx(0.4) if index is None else 0.5)
    assert (verdict.hit, verdict.premature) == (hit, premature)
    assert verdict.delay == pytest.approx(delay, nan_ok=True)


def test_statistics_and_cost_by_hand() -> None:
    stays = made_up([0.1, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9])
    verdicts = [
        evaluate_rule(at(Stop(3, 3)), {}, made_up(RISES_AND_FALLS)),
        evaluate_rule(at(Stop(1, 1)), {}, stays),
        evaluate_rule(at(None), {}, stays),
    ]  # fmt: skip
    result = {name: statistic(verdicts) for name, statistic in STATISTICS.items()}
    assert result["hit rate"] == result["raised where it overfits"] == 1
    assert (result["false alarms"], result["premature"], result["delay"]) == (
        0.5,
        pytest.approx(1 / 3),
        0,
    )
    assert result["kept"] == pytest.approx((0.9 + 0.5 + 0.9) / 3)
    assert result["best - kept"] == pytest.approx(0.4 / 3)
    assert cost(verdicts) == pytest.approx(0.4 / 3 + 0.05 * 0.5)


def test_tuning_takes_the_setting_of_the_smallest_cost() -> None:
    rule = Rule("late", "an index", lambda run, index: Stop(index, index), {"index": (1, 3, 6)})
    assert tune(rule, [made_up(RISES_AND_FALLS)]) == {"index": 3}


def test_late_joiners_stop_the_network_that_does_without_them() -> None:
    errors = torch.zeros(T, N, dtype=torch.uint8)
    errors[5:] = 1
    rule = RULES["late joiners"]
    assert rule.network == SPLIT
    assert rule.stops(made_up(RISES_AND_FALLS, errors=errors), looks=5, level=0.05) == Stop(6, 0)
    assert rule.stops(made_up(RISES_AND_FALLS), looks=5, level=0.05) is None


def test_baselines_by_hand() -> None:
    run = made_up(RISES_AND_FALLS)
    run.split.update({"accuracy": [0.0] * 4 + [0.9] + [0.1] * 4, "loss": [1.0] * 5 + [9.0] * 4})
    assert baselines_of(run, RULES["10 % split, loss"], {"fall": 0.1, "patience": 1, "window": 1}) == {
        END: pytest.approx(0.4), BEST_CHECKPOINT: 0.5 * 0.7, EPOCH_OF_SPLIT: 0.7, STOP_OF_SPLIT: 0.5, ORACLE: 0.9,
    }  # fmt: skip


@pytest.mark.thorough
def test_runs_of_a_kind_are_one_unit_and_a_part_of_the_pool_is_evaluated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "bootstrap", lambda *rows, draws: bootstrap(*rows, draws=20))
    result = [
        made_up(RISES_AND_FALLS, kind, noise) for kind in ("a", "b") for noise in (0.0, 0.1, 0.4)
    ]
    outcome = study.judge(small(tmp_path), cases(small(tmp_path), "judging"), result)
    assert outcome.numbers["counts"] == {
        "runs": 6,
        "overfit": 6,
        "stay": 0,
        "clean": 2,
        "planned": 84,
    }
    assert (
        outcome.numbers["kept"][END] == pytest.approx(0.4)
        and outcome.numbers["kept"][ORACLE] == 0.9
    )
    assert all(one.ours and one.outcome == "open" and one.units <= 2 for one in outcome.claims)
    assert outcome.numbers["rules"]["evidence"]["cpu_share"] == pytest.approx(0.1)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSettings, list[runs.Run]]:
    setting = small(tmp_path_factory.mktemp("watched"), "smoke")
    return setting, runs.runs(setting, cases(setting, "tuning"))


@pytest.mark.thorough
def test_watching_changes_no_training(watched: tuple[RunSettings, list[runs.Run]]) -> None:
    _, (_, run) = watched
    problem = runs.problem_of(run.case, None)
    network = runs.network_from_spec(run.case.spec, problem)
    plain = train(
        network, problem.train, run.case.spec.training, seed=run.case.spec.seed, test=problem.test
    )
    assert [row["test_accuracy"] for row in plain.history] == run.columns["test_accuracy"]
    assert (
        run.split["test_accuracy"]
        != run.columns["test_accuracy"]
        != run.with_canaries["test_accuracy"]
    )


def test_watched_runs_are_read_again(watched: tuple[RunSettings, list[runs.Run]]) -> None:
    setting, [first, second] = watched
    [again] = runs.runs(setting, [second.case])
    assert again.columns == second.columns and again.date == second.date
    assert {name: tuple(tensor.shape) for name, tensor in again.tensors.items()} == {
        "predicted": (6, 120), "outputs": (6, 120, 10), "neighbours": (6, 120, 20), "cosines": (6, 120),
        "labels": (120,), "initial": (120, 10), "errors": (6, 12),
        "canary_outputs": (6, 120, 10), "canary_labels": (120,), "is_canary": (120,),
    }  # fmt: skip
    assert int(again.tensors["is_canary"].sum()) == 24
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in again.tensors.items())
    assert first.case.noise == 0


def test_wrong_labels_are_those_of_the_case(watched: tuple[RunSettings, list[runs.Run]]) -> None:
    _, [clean, noisy] = watched
    same = dataclasses.replace(noisy.case, noise=0.0)
    clean_labels, wrong = (runs.problem_of(case, None).train.targets for case in (same, noisy.case))
    assert clean_labels is not None and wrong is not None
    changed = clean_labels != wrong
    assert int(changed.sum()) == 48 and torch.equal(
        wrong[changed], (clean_labels[changed] + 1) % 10
    )
    few = dataclasses.replace(clean.case, classes=(3, 4), n=50)
    labels = runs.problem_of(few, None).train.targets
    assert labels is not None and labels.unique().tolist() == [0, 1, 2, 3]


def test_a_run_that_diverges_is_excluded(tmp_path: Path) -> None:
    case = cases(small(tmp_path, "smoke"), "tuning")[0]
    changed = {"training.learning_rate": 1e30, "training.optimizer": "sgd"}
    wild = dataclasses.replace(case, spec=case.spec.replace(changed))
    assert runs.runs(small(tmp_path), [wild]) == []
