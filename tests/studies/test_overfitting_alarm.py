"""The rules on made-up recordings, the signals against dense computations; its numbers: `test_frozen`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gapscope.base.errors import GapscopeError
from gapscope.base.samples import Samples
from gapscope.base.specs import Spec
from gapscope_studies.kit.study import Setting
from gapscope_studies.overfitting_alarm import runs, study
from gapscope_studies.overfitting_alarm.judging import STATISTICS, cost, judge, tuned
from gapscope_studies.overfitting_alarm.rules import ALARM, RULES, Rule, fallen, flat, growing_again
from gapscope_studies.overfitting_alarm.runs import Case, cases


def small(tmp_path: Path, scale: str = "small") -> Setting:
    return Setting(scale=scale, work=tmp_path, workers=1, say=lambda line: None)


def test_pools_have_nothing_in_common_and_enough_runs(tmp_path: Path) -> None:
    pools = [{case.spec.id for case in cases(small(tmp_path), pool)} for pool in ("tuning", "judging")]
    assert not pools[0] & pools[1]
    assert (len(pools[0]), len(pools[1])) == (190, 67)
    tuning, judging = ({c.spec.data.label_noise for c in cases(small(tmp_path), p)} for p in ("tuning", "judging"))
    assert tuning & judging == {0.0}
    assert len({case.spec.id for case in cases(small(tmp_path, "paper"), "judging")}) > 250


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_tuned_among_about_as_many_settings(rule: Rule) -> None:
    assert len(rule.settings()) in (36, 40)


def test_fallen_by_hand() -> None:
    values = [0.1, 0.5, 0.45, 0.3, 0.5, 0.3, 0.3]
    assert fallen(values, fall=0.1, patience=1, window=1) == 3
    assert fallen(values, fall=0.1, patience=2, window=1) == 6
    assert fallen(values, fall=0.25, patience=1, window=1) is None
    # means of two: .1 .3 .475 .375 .4 .4 .3
    assert fallen(values, fall=0.09, patience=1, window=2) == 3
    assert fallen([0.5, math.nan, 0.5, 0.1], fall=0.1, patience=1, window=1) == 3


def test_flat_by_hand() -> None:
    values = [0.1, 0.5, 0.8, 0.82, 0.83, 0.9]
    assert flat(values, growth=0.05, patience=1, window=1) == 3
    assert flat(values, growth=0.05, patience=2, window=1) == 4
    assert flat(values, growth=0.0, patience=1, window=1) is None


def test_renewed_growth_by_hand() -> None:
    values = [0.0, 3.0, 4.0, 4.1, 4.2, 4.5, 5.0]  # growth 3, 1, .1, .1, .3, .5
    assert growing_again(values, rise=0.15, patience=1, window=1) == 5
    assert growing_again(values, rise=0.15, patience=2, window=1) == 6
    assert growing_again(values, rise=1.0, patience=1, window=1) is None


def make_run(accuracy: list[float], kind: str = "made up", **columns: list[float]) -> runs.Run:
    spec = Spec().replace({"data.label_noise": 0.5})
    epochs = [2 * i + 2 for i in range(len(accuracy))]
    probabilities = torch.full((len(accuracy), 30, 2), 0.5, dtype=torch.float64)
    return runs.Run(
        case=Case(kind, spec, 2),
        epochs=epochs,
        columns={"test_accuracy": accuracy, "signal": list(range(len(accuracy)))} | columns,
        held_out={"test_accuracy": [0.5 * value for value in accuracy]},
        probabilities=probabilities,
        neighbours=torch.zeros(len(accuracy), 30, 3, dtype=torch.int64),
        labels=torch.zeros(30, dtype=torch.int64),
        seconds={"training": 1.0, "alarm": 0.5, "signals": 0.1},
    )


def at(index: int | None, *, needs_split: bool = False) -> Rule:
    return Rule("fixed", "stops at an index", lambda run: index, {}, needs_split)


RISES_AND_FALLS = [0.1, 0.5, 0.8, 0.9, 0.7, 0.5, 0.4, 0.4, 0.4]


@pytest.mark.parametrize(
    ("index", "kept", "hit", "premature", "delay"),
    [
        (3, 0.9, True, False, 0),
        (4, 0.7, True, False, 2),
        (5, 0.5, False, False, 4),  # less than half of the loss avoided
        (2, 0.8, False, True, -2),  # ten points to come
        (None, 0.4, False, False, math.nan),
    ],
)
def test_verdicts_by_hand(index: int | None, kept: float, hit: bool, premature: bool, delay: float) -> None:
    verdict = judge(at(index), {}, make_run(RISES_AND_FALLS))
    assert verdict.overfits
    assert not verdict.stays
    assert (verdict.best, verdict.final, verdict.kept) == (0.9, pytest.approx(0.4), pytest.approx(kept))
    assert (verdict.hit, verdict.premature) == (hit, premature)
    assert verdict.delay == pytest.approx(delay, nan_ok=True)


def test_a_rule_with_a_split_is_judged_on_its_own_network() -> None:
    verdict = judge(at(3, needs_split=True), {}, make_run(RISES_AND_FALLS))
    assert (verdict.best, verdict.kept) == (0.45, 0.45)


def test_statistics_and_cost_by_hand() -> None:
    stays = make_run([0.1, 0.5, 0.9, 0.9, 0.9, 0.9])
    verdicts = [judge(at(3), {}, make_run(RISES_AND_FALLS)), judge(at(1), {}, stays), judge(at(None), {}, stays)]
    found = {name: statistic(verdicts) for name, statistic in STATISTICS.items()}
    assert found["hit rate"] == found["raised where it overfits"] == 1
    assert (found["false alarms"], found["premature"], found["delay"]) == (0.5, pytest.approx(1 / 3), 0)
    assert found["kept"] == pytest.approx((0.9 + 0.5 + 0.9) / 3)
    assert found["kept - final"] == pytest.approx((0.5 - 0.4 + 0) / 3)
    assert found["best - kept"] == pytest.approx(0.4 / 3)
    assert cost(verdicts) == pytest.approx(0.4 / 3 + 0.05 * 0.5)


def test_tuning_takes_the_setting_of_the_smallest_cost() -> None:
    rule = Rule("late", "an index", lambda run, index: index, {"index": (1, 3, 6)})
    assert tuned(rule, [make_run(RISES_AND_FALLS)]) == {"index": 3}


def test_the_alarm_is_replayed_as_it_ran() -> None:
    run = make_run(RISES_AND_FALLS)
    labels = (torch.arange(30) % 3 == 0).long()
    run.labels.copy_(labels)
    run.neighbours.copy_((torch.arange(30)[:, None] + torch.arange(1, 4)) % 30)
    run.probabilities[2:] = torch.tensor([0.7, 0.3])
    run.probabilities[6:] = torch.eye(2, dtype=torch.float64)[labels]
    settings = {"weight": 2.0, "threshold": 4.0, "patience": 1, "smallest_conflict": 0.3}
    assert ALARM.stops_at(run, **settings) == 6
    assert ALARM.stops_at(run, **settings | {"threshold": 400.0}) is None
    assert ALARM.stops_at(run, **settings | {"smallest_conflict": 0.4}) is None


def tiny() -> tuple[nn.Module, Samples]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    return network, Samples(x, torch.randint(0, 3, (40,), generator=generator))


def test_gradient_disparity_against_a_loop() -> None:
    network, samples = tiny()
    assert samples.targets is not None
    found = runs.gradient_disparity(network, samples, 6, torch.Generator().manual_seed(3))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    gradients = []
    for i in range(5):
        batch = order[6 * i : 6 * i + 6]
        losses = -network(samples.inputs[batch]).log_softmax(1)[torch.arange(6), samples.targets[batch]]
        network.zero_grad()
        (losses.mean() / losses.std()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    distances = [float((gradients[i] - gradients[j]).norm()) for i in range(5) for j in range(i)]
    assert found == pytest.approx(sum(distances) / 10)


def test_kernel_signals_against_the_dense_jacobian() -> None:
    network, samples = tiny()
    assert samples.targets is not None
    rows = []
    for x in samples.inputs:
        outputs = network(x[None])[0]
        parts = [torch.autograd.grad(output, list(network.parameters()), retain_graph=True) for output in outputs]
        rows.append(torch.cat([torch.cat([p.flatten() for p in part]) for part in parts]))
    jacobian = torch.stack(rows)
    kernel = jacobian @ jacobian.T
    traces, fitted = kernel.diagonal(), network(samples.inputs).argmax(1) == samples.targets
    pairs = [(i, j) for i in range(40) for j in range(40) if i != j]
    cosine = kernel / traces.sqrt()[:, None] / traces.sqrt()
    same = [float(cosine[i, j]) for i, j in pairs if samples.targets[i] == samples.targets[j]]
    other = [float(cosine[i, j]) for i, j in pairs if samples.targets[i] != samples.targets[j]]
    assert runs.kernel_signals(network, samples) == {
        "log_trace": pytest.approx(math.log(traces.mean())),
        "log_determinant": pytest.approx(float(torch.linalg.slogdet(kernel)[1]) / 40),
        "unfitted": pytest.approx(math.log(traces[~fitted].mean() / traces[fitted].mean())),
        "blocks": pytest.approx(np.mean(same) - np.mean(other)),
    }


def test_watched_runs_are_kept_and_watching_changes_no_training(tmp_path: Path) -> None:
    setting = small(tmp_path, "smoke")
    case = cases(setting, "tuning")[1]
    [run] = runs.runs(setting, [case])
    kept = {
        path: path.stat().st_mtime_ns for folder in ("runs", "recordings") for path in (tmp_path / folder).iterdir()
    }
    [again] = runs.runs(setting, [case])
    assert len(kept) == 2 and {path: path.stat().st_mtime_ns for path in kept} == kept
    assert again.columns == run.columns and torch.equal(again.probabilities, run.probabilities)
    assert run.probabilities.shape == (10, 256, 10)
    assert run.neighbours.shape == (10, 256, 20)
    record = setting.train("plain", [case.spec], measures=())[0]
    plain = [row["test_accuracy"] for row in record.history][case.every - 1 :: case.every]
    assert plain == run.columns["test_accuracy"]
    assert run.held_out["test_accuracy"] != plain


def test_rivals_with_a_split_get_their_best_form() -> None:
    run = make_run(RISES_AND_FALLS)
    run.held_out.update({"accuracy": [0.0] * 4 + [0.9] + [0.1] * 4, "loss": [1.0] * 5 + [9.0] * 4})
    chosen = {rule.name: rule.settings()[0] for rule in RULES}
    found = study.fair_rivals([run], chosen, {ALARM.name: [judge(at(None), {}, run)]})
    assert found["nine tenths, best checkpoint by the split"] == [0.5 * 0.7]
    assert found["all data, stopped where the split's loss says"] == [RISES_AND_FALLS[5]]


def test_runs_of_a_kind_are_one_unit() -> None:
    found = [make_run(RISES_AND_FALLS, kind, train_accuracy=[0.9]) for kind in ("a", "b") for _ in range(10)]
    for run in found:
        run.held_out.update({"accuracy": [0.5] * 9, "loss": [1.0] * 9})
    verdicts = {rule.name: [judge(at(3 if rule is ALARM else None), {}, run) for run in found] for rule in RULES}
    claims = study._claims(found, {rule.name: rule.settings()[0] for rule in RULES}, verdicts)
    assert claims[0].value == pytest.approx(0.5) and claims[0].judged == ("open", "2 independent kinds, fewer than 6")
    assert all(one.ours for one in claims)


def test_a_run_that_diverges_is_left_out(tmp_path: Path) -> None:
    case = cases(small(tmp_path, "smoke"), "tuning")[0]
    wild = Case("wild", case.spec.replace({"training.learning_rate": 1e30, "training.optimizer": "sgd"}), 6)
    assert runs.runs(small(tmp_path), [wild]) == []
    assert runs.runs(small(tmp_path), [wild]) == []


def test_an_error_ends_the_pool(tmp_path: Path) -> None:
    case = Case("wrong", Spec().replace({"data.name": "mnist"}), 6)
    with pytest.raises(GapscopeError):
        runs.runs(Setting(scale="smoke", work=tmp_path, workers=1, data_root=str(tmp_path)), [case])
