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
from gapscope.base.specs import DataSpec, LossSpec, NetworkSpec, RunSpec, TrainingSpec
from gapscope.inspection.losses import evaluate
from gapscope.networks import build_network
from gapscope.penalties.base import make_penalty
from gapscope.pools.from_spec import prepare_data
from gapscope.pools.jobs import run_cached
from gapscope.training.loop import train
from gapscope_studies.kit.claims import Claim, claim, estimate
from gapscope_studies.kit.data import noisy_subset, quartile_classes
from gapscope_studies.kit.statistics import bootstrap_mean, from_list
from gapscope_studies.kit.study import Outcome, Part, RunSettings, Study

Row = Mapping[str, Any]
NONE, AUTOMATIC, FIXED = "none", "gradient similarity, automatic", "gradient similarity, fixed"
# baseline -> its name in claims
BASELINES = {
    NONE: "training without a penalty",
    "tuned once": "the strength that was tuned once, on one scenario",
    "dropout": "dropout",
    "early learning": "early-learning regularization",
    "generalized cross-entropy": "generalized cross-entropy",
    "nine tenths, best checkpoint": "nine tenths of the data and the best checkpoint on the rest",
}
NEAR = 0.015
LAST = 5  # epochs whose test accuracy is averaged: single ones jump by some points


@dataclass(frozen=True)
class Method:
    """Remedy for label noise: a penalty or loss with options, dropout, or early stopping."""

    name: str
    penalty: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    dropout: float = 0.0  # of networks with dropout layers
    held_out: float = 0.0  # fraction of the samples that selects the epoch and is not trained on


@dataclass(frozen=True)
class Run:
    """Settings of one training run."""

    scenario: Mapping[str, Any]  # name, data (without noise), network, training (without penalties)
    samples: int
    test: int
    noise: float  # rate of symmetric label noise
    seed: int  # of samples, noise, weights and order
    method: Method

    @property
    def name(self) -> str:
        """Name of its job."""
        return re.sub(
            r"[ ,]+", "_", f"{self.scenario['name']}-{self.noise:g}-{self.seed}-{self.method.name}"
        )


def fixed_name(strength: float) -> str:
    """Return the name of a fixed strength."""
    return f"{FIXED} {strength:g}"


def runs_of(settings: Mapping[str, Any]) -> list[Run]:
    """Return all training runs seed by seed, those of the `last` methods at the end."""
    methods = {}
    for scenario in settings["scenarios"]:
        strengths = sorted({*scenario["strengths"], settings["tuned"]})
        penalties = {
            fixed_name(s): {"name": "gradient_similarity", "options": {"strength": s}}
            for s in strengths
        }
        others = [
            Method(**way)
            for way in settings["ways"]
            if way["name"] not in scenario.get("without", ())
        ]
        methods[scenario["name"]] = [
            Method(NONE),
            *(Method(*each) for each in penalties.items()),
            *others,
        ]
    return [
        Run(scenario, settings["samples"], settings["test"], noise, seed, method)
        for late in (False, True)
        for seed in settings["seeds"]
        for scenario in settings["scenarios"]
        for noise in scenario["noises"]
        for method in methods[scenario["name"]]
        if seed in scenario.get("seeds", settings["seeds"])
        and late == (method.name in settings["last"])
    ]


def final_accuracy(accuracies: Sequence[float], held_out: Sequence[float]) -> float:
    """Return the test accuracy of the last epochs, or of the first best held-out epoch."""
    if held_out:
        return accuracies[max(range(len(held_out)), key=held_out.__getitem__)]
    return sum(accuracies[-LAST:]) / LAST if len(accuracies) >= LAST else (*accuracies, 0.0)[0]


def train_run(run: Run, root: str | None) -> dict[str, Any]:
    """Train, and return accuracies, status and seconds of one run."""
    problem = prepare_data(RunSpec(data=DataSpec.from_dict(run.scenario["data"])), root)[0]
    problem = quartile_classes(problem) if problem.task == "regression" else problem
    problem = noisy_subset(problem, run.samples, run.test, run.noise, run.seed)
    spec, method = NetworkSpec.from_dict(run.scenario["network"]), run.method
    options: dict[str, Any] = {**spec.options} | (
        {"dropout": method.dropout} if method.dropout else {}
    )
    weights = make_generator(run.seed, "initial weights")
    network = build_network(
        spec.name,
        input_shape=problem.input_shape,
        n_outputs=problem.n_outputs,
        generator=weights,
        **options,
    )
    settings = TrainingSpec.from_dict(run.scenario["training"])
    if method.loss is not None:
        settings = replace(settings, loss=LossSpec(**method.loss))
    penalties = [
        make_penalty(each["name"], each.get("options", {}))
        for each in [method.penalty]
        if each is not None
    ]
    held_out: list[float] = []
    part, rest, n_out = problem.train, None, round(method.held_out * len(problem.train))
    if n_out:
        order = torch.randperm(len(problem.train), generator=make_generator(run.seed, "split"))
        part, rest = problem.train.subset(order[n_out:]), problem.train.subset(order[:n_out])

    def on_epoch(network: nn.Module, row: dict[str, Any]) -> None:
        if rest is not None:
            held_out.append(evaluate(network, rest)["accuracy"])

    start = time.process_time()
    result = train(
        network,
        part,
        settings,
        seed=run.seed,
        test=problem.test,
        penalties=penalties,
        on_epoch=on_epoch,
    )
    seconds = time.process_time() - start
    accuracies = [float(row["test_accuracy"]) for row in result.history]
    return {
        "scenario": run.scenario["name"], "noise": run.noise, "seed": run.seed, "way": method.name,
        "status": result.status, "cpu_seconds": round(seconds, 2), "best": max(accuracies, default=0.0),
        "final": final_accuracy(accuracies, held_out), "accuracies": [round(value, 4) for value in accuracies],
    }  # fmt: skip


def rows_of(settings: Mapping[str, Any], work: Path, root: str | None) -> list[Row]:
    """Return the rows of all training runs, cached in a folder."""
    jobs = {run.name: partial(train_run, run, root) for run in runs_of(settings)}
    return list(run_cached(jobs, work, workers=1).values())


def compare(rows: Sequence[Row], tuned: float) -> dict[str, Any]:
    """Return means per scenario and noise, and how much better the automatic strength ends.

    "differences" are those to every other method and to the best fixed strength of each scenario. "collapsed" counts
    runs that diverged or end below half of the accuracy without a penalty. `tuned`: strength that was tuned once.
    """
    table = pandas.DataFrame(list(rows))
    wide: Any = table.pivot_table(
        index=["scenario", "noise", "seed"], columns="way", values="final", sort=False
    )
    scenarios, parts = [], []
    for (scenario, noise), part in wide.groupby(level=["scenario", "noise"], sort=False):
        finals = part.mean().dropna()
        best = finals[
            [way for way in finals.index if way == NONE or way.startswith(FIXED)]
        ].idxmax()
        scenarios.append({
            "scenario": scenario, "noise": float(noise), "seeds": len(part), "ways": finals.to_dict(),
            "best fixed": float(finals[best]), "best fixed way": best,
            "automatic minus best fixed": float(finals[AUTOMATIC] - finals[best]),
            "automatic minus tuned once": float(finals[AUTOMATIC] - finals[fixed_name(tuned)]),
        })  # fmt: skip
        parts.append(part[best])
    others = wide.drop(columns=AUTOMATIC)
    others = others.assign(
        **{"best fixed": pandas.concat(parts), "tuned once": wide[fixed_name(tuned)]}
    )
    differences = {}
    for name in others:
        values = (wide[AUTOMATIC] - others[name]).dropna()
        # levels of noise share their samples and weights
        result = bootstrap_mean(
            values, [f"{scenario} {seed}" for scenario, _, seed in values.index]
        )
        differences[name] = {
            "value": result.value,
            "low": result.low,
            "high": result.high,
            "trainings": len(values),
        }
    unfinished = table[(table["way"] == AUTOMATIC) & (table["status"] != "finished")]
    return {
        "scenarios": scenarios,
        "differences": {AUTOMATIC: differences},
        "worst": min(row["automatic minus best fixed"] for row in scenarios),
        "collapsed": int((wide[AUTOMATIC] < 0.5 * wide[NONE]).sum()) + len(unfinished),
    }


def claims_of(numbers: Mapping[str, Any]) -> list[Claim]:
    """Return claims on differences of test accuracy. Units are the seeds of a family."""
    differences, rows = numbers["differences"][AUTOMATIC], numbers["scenarios"]
    # of data and network, with any noise
    families = {row["scenario"]: row["seeds"] for row in rows}
    evidence = "accuracies at the end of training, whatever was learned"
    common: dict[str, Any] = {"ours": True, "compared": (), "untrained": evidence}
    texts = {name: (f", a penalty that sets its own strength ends better than {baseline}", 0.0)
             for name, baseline in BASELINES.items()}  # fmt: skip
    # the best fixed strength is selected by test accuracy, which no method can know
    texts["best fixed"] = (
        f" it loses less than {100 * NEAR:g} points to the best fixed strength of each",
        -NEAR,
    )
    unit, claims = f"seeds of {len(families)} families of data and network", []
    for name, (text, above) in texts.items():
        if name in differences:
            interval = from_list(
                (differences[name][key] for key in ("value", "low", "high")), sum(families.values())
            )
            claims.append(estimate("ours", f"on four families{text}", "test accuracy, difference", interval,
                                   above=above, unit=unit, **common))  # fmt: skip
    on_any = claim("ours", "on any family it ends better than the strength that was tuned once",
                   "test accuracy, difference", [row["automatic minus tuned once"] for row in rows],
                   clusters=[row["scenario"] for row in rows], above=0.0, unit="families of data and network",
                   **common)  # fmt: skip
    return [*claims, on_any]


def judging(setting: RunSettings) -> Outcome:
    """Train the missing networks, and compare the automatic strength with all other methods."""
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
