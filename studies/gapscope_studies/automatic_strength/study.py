"""Automatic penalty strength against fixed strengths and other remedies for label noise."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import nn

from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.specs import DataSpec, LossSpec, NetworkSpec, RunSpec, TrainingSpec
from gapscope.data.corruptions import inject_label_noise
from gapscope.inspection.losses import evaluate
from gapscope.networks import build_network
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import prepared
from gapscope.pools.jobs import run_cached
from gapscope.training.loop import train
from gapscope_studies.kit.claims import Claim, claim, estimate
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

Row = Mapping[str, Any]
NONE, AUTOMATIC, FIXED = "none", "gradient similarity, automatic", "gradient similarity, fixed"
# name of a method -> in words
OTHERS = {
    NONE: "training without a penalty",
    "tuned once": "the strength that was tuned once, on one scenario",
    "dropout": "dropout",
    "early learning": "early-learning regularization",
    "generalized cross-entropy": "generalized cross-entropy",
    "nine tenths, best checkpoint": "nine tenths of the data and the best checkpoint on the rest",
}
NEAR = 0.015
LAST = 5  # epochs whose test accuracy is averaged: single ones jump by some points


# --- training runs


@dataclass(frozen=True)
class Method:
    """Remedy for label noise: a penalty or loss with options, dropout, or early stopping."""

    name: str
    penalty: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    dropout: float = 0.0  # where the network has it
    held_out: float = 0.0  # fraction of the samples that is not trained on and chooses the epoch whose weights are kept


@dataclass(frozen=True)
class Run:
    """Settings of one training run."""

    scenario: Mapping[str, Any]  # name, data (without noise), network, training (without penalties)
    samples: int
    test: int
    noise: float  # fraction of wrong labels, alike among all classes
    seed: int  # of samples, noise, weights and order
    method: Method

    @property
    def name(self) -> str:
        """Name of its job."""
        return re.sub(r"[ ,]+", "_", f"{self.scenario['name']}-{self.noise:g}-{self.seed}-{self.method.name}")


def fixed(strength: float) -> str:
    """Name of a fixed strength."""
    return f"{FIXED} {strength:g}"


def runs_of(settings: Mapping[str, Any]) -> list[Run]:
    """Return all training runs by seed, with the first seeds of all scenarios early.

    Runs of the `last` ways come at the end. The ways of a scenario are none, its fixed strengths and the one tuned
    once, and those of the settings.
    """
    methods = {}
    for scenario in settings["scenarios"]:
        strengths = sorted({*scenario["strengths"], settings["tuned"]})
        penalties = {fixed(s): {"name": "gradient_similarity", "options": {"strength": s}} for s in strengths}
        others = [Method(**way) for way in settings["ways"] if way["name"] not in scenario.get("without", ())]
        methods[scenario["name"]] = [Method(NONE), *(Method(*each) for each in penalties.items()), *others]
    return [
        Run(scenario, settings["samples"], settings["test"], noise, seed, method)
        for late in (False, True)
        for seed in settings["seeds"]
        for scenario in settings["scenarios"]
        for noise in scenario["noises"]
        for method in methods[scenario["name"]]
        if seed in scenario.get("seeds", settings["seeds"]) and late == (method.name in settings["last"])
    ]


def problem_of(run: Run, root: str | None) -> tuple[Samples, Samples, int]:
    """Training samples with wrong labels among them, test samples, and the number of classes."""
    problem = prepared(RunSpec(data=DataSpec.from_dict(run.scenario["data"])), root)[0]
    train, test, classes = problem.train, problem.test, problem.n_outputs
    assert train.targets is not None and test.targets is not None
    if problem.task == "regression":
        edges = train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
        train, test = (replace(part, targets=torch.bucketize(part.targets[:, 0], edges)) for part in (train, test))  # type: ignore[index]
        classes = 4
    rows = torch.randperm(len(train), generator=make_generator(run.seed, "training subset"))[: run.samples]
    train, test = train.subset(rows), test.subset(torch.arange(min(run.test, len(test))))
    assert train.targets is not None
    wrong = inject_label_noise(train.targets, run.noise, classes, make_generator(run.seed, "label noise"))
    return replace(train, targets=wrong), test, classes


def final_accuracy(accuracies: Sequence[float], held_out: Sequence[float]) -> float:
    """Return the test accuracy of the last epochs, or of the first best held-out epoch."""
    if held_out:
        return accuracies[max(range(len(held_out)), key=held_out.__getitem__)]
    return sum(accuracies[-LAST:]) / LAST if len(accuracies) >= LAST else (*accuracies, 0.0)[0]


def train_run(run: Run, root: str | None) -> dict[str, Any]:
    """Train, and return what is compared."""
    samples, test, classes = problem_of(run, root)
    spec, method = NetworkSpec.from_dict(run.scenario["network"]), run.method
    options: dict[str, Any] = {**spec.options} | ({"dropout": method.dropout} if method.dropout else {})
    shape, weights = tuple(samples.inputs.shape[1:]), make_generator(run.seed, "initial weights")
    network = build_network(spec.name, input_shape=shape, n_outputs=classes, generator=weights, **options)
    settings = TrainingSpec.from_dict(run.scenario["training"])
    if method.loss is not None:
        settings = replace(settings, loss=LossSpec(**method.loss))
    penalties = [make_penalty(each["name"], each.get("options", {})) for each in [method.penalty] if each is not None]
    held_out: list[float] = []
    part, rest, n_out = samples, None, round(method.held_out * len(samples))
    if n_out:
        order = torch.randperm(len(samples), generator=make_generator(run.seed, "split"))
        part, rest = samples.subset(order[n_out:]), samples.subset(order[:n_out])

    def on_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        if rest is not None:
            held_out.append(evaluate(network, rest)["accuracy"])

    start = time.process_time()
    result = train(network, part, settings, seed=run.seed, test=test, penalties=penalties, on_epoch=on_epoch)
    seconds = time.process_time() - start
    accuracies = [float(row["test_accuracy"]) for row in result.history]
    return {
        "scenario": run.scenario["name"], "noise": run.noise, "seed": run.seed, "way": method.name,
        "status": result.status, "cpu_seconds": round(seconds, 2), "best": max(accuracies, default=0.0),
        "final": final_accuracy(accuracies, held_out), "accuracies": [round(value, 4) for value in accuracies],
    }  # fmt: skip


def rows_of(settings: Mapping[str, Any], work: Path, root: str | None) -> list[Row]:
    """The stored rows of all training runs."""
    jobs = {run.name: partial(train_run, run, root) for run in runs_of(settings)}
    return list(run_cached(jobs, work, workers=1).values())


# --- comparison


def compare(rows: Sequence[Row], tuned: float) -> dict[str, Any]:
    """Return means per scenario and noise, and mean differences with confidence intervals.

    Intervals are over independent samples and weights. `tuned` is the strength that was tuned once. "differences" are
    of the test accuracy of the automatic strength, less that of every other way in the same scenarios and of the best
    fixed strength of each; clusters are scenarios and seeds. "collapsed" counts runs with the automatic strength that
    end below half of what none reaches, or not at all.
    """
    table = pandas.DataFrame(list(rows))
    wide: Any = table.pivot_table(index=["scenario", "noise", "seed"], columns="way", values="final", sort=False)
    scenarios, parts = [], []
    for (scenario, noise), part in wide.groupby(level=["scenario", "noise"], sort=False):
        finals = part.mean().dropna()
        best = finals[[way for way in finals.index if way == NONE or way.startswith(FIXED)]].idxmax()
        scenarios.append({
            "scenario": scenario, "noise": float(noise), "seeds": len(part), "ways": finals.to_dict(),
            "best fixed": float(finals[best]), "best fixed way": best,
            "automatic minus best fixed": float(finals[AUTOMATIC] - finals[best]),
            "automatic minus tuned once": float(finals[AUTOMATIC] - finals[fixed(tuned)]),
        })  # fmt: skip
        parts.append(part[best])
    others = wide.drop(columns=AUTOMATIC).assign(
        **{"best fixed": pandas.concat(parts), "tuned once": wide[fixed(tuned)]}
    )
    differences = {}
    for way in others:
        # noises of a scenario and seed share samples and weights
        values = (wide[AUTOMATIC] - others[way]).dropna()
        clusters, array = [f"{scenario} {seed}" for scenario, _, seed in values.index], values.to_numpy(dtype=float)
        result = bootstrap(lambda rows, array=array: float(array[rows].mean()), len(array), clusters)
        differences[way] = {
            "value": result.value, "low": result.low, "high": result.high, "trainings": len(array),
        }  # fmt: skip
    unfinished = table[(table["way"] == AUTOMATIC) & (table["status"] != "finished")]
    return {
        "scenarios": scenarios,
        "differences": {AUTOMATIC: differences},
        "worst": min(row["automatic minus best fixed"] for row in scenarios),
        "collapsed": int((wide[AUTOMATIC] < 0.5 * wide[NONE]).sum()) + len(unfinished),
    }


def claims_of(numbers: Mapping[str, Any]) -> list[Claim]:
    """Return claims on differences of test accuracy over scenarios.

    The units are the seeds of a family of data and network.
    """
    differences, rows = numbers["differences"][AUTOMATIC], numbers["scenarios"]
    # levels of noise share their samples and weights
    families = {row["scenario"]: row["seeds"] for row in rows}
    common: dict[str, Any] = {
        "ours": True, "compared": (), "untrained": "accuracies at the end of training, whatever was learned",
    }  # fmt: skip
    texts = {name: (f", a penalty that sets its own strength ends better than {says}", 0.0)
             for name, says in OTHERS.items()}  # fmt: skip
    # the best fixed strength is chosen by test accuracy: no method can know it
    texts["best fixed"] = (f" it loses less than {100 * NEAR:g} points to the best fixed strength of each", -NEAR)
    claims = []
    for name, (says, above) in texts.items():
        if name in differences:
            value, low, high = (differences[name][key] for key in ("value", "low", "high"))
            claims.append(estimate(
                "ours", f"on four families{says}", "test accuracy, difference",
                Interval(value, low, high, sum(families.values())), above=above,
                unit=f"seeds of {len(families)} families of data and network", **common,
            ))  # fmt: skip
    beyond = claim("ours", "on any family it ends better than the strength that was tuned once",
                   "test accuracy, difference", [row["automatic minus tuned once"] for row in rows],
                   clusters=[row["scenario"] for row in rows], above=0.0, unit="families of data and network",
                   **common)  # fmt: skip
    return [*claims, beyond]


def judging(setting: RunSettings) -> Outcome:
    """Train what is missing and compare."""
    settings = setting.read(__file__, "smoke" if setting.scale == "smoke" else "small")
    rows = rows_of(settings, setting.work, setting.data_root)
    numbers = compare(rows, settings["tuned"]) | {"trainings": len(rows), "runs": rows}
    return Outcome(
        numbers=numbers, claims=claims_of(numbers), seeds=sorted({int(row["seed"]) for row in rows}),
        verdict=f"Worst scenario against its best fixed strength: {numbers['worst']:+.3f}; "
                f"collapsed: {numbers['collapsed']}.",
    )  # fmt: skip


STUDY = Study(
    "automatic_strength", "Penalties that set their own strength", "gapscope's own.",
    (Part("judging", "Automatic strength on corrupted labels", judging, ours=True),),
)  # fmt: skip
