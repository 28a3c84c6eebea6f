"""Ranking of untrained architectures by leave-one-out accuracy, sensitivity and size."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas

import gapscope as gs
from gapscope.statistics.correlations import kendall_tau
from gapscope_studies.expected_accuracy.pools import ADAM, Configuration, TrainingConfig, recipes
from gapscope_studies.expected_accuracy.rows import error_claim, provenance, to_numbers, to_table
from gapscope_studies.expected_accuracy.runs import accuracy, build, data_of
from gapscope_studies.kit import plots
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings

ARCHITECTURES = recipes("architectures")
# architectures are the units; a second seed was planned and cut before any accuracy was known
DATA, SEEDS, SAMPLES = ("fashion_mnist", "cifar10"), 1, 400
# score -> its column, and the sign of its relation to the accuracy
SCORES = {
    "left-out accuracy, initial weights": ("expected", 1),
    "output sensitivity before training": ("sensitivity", -1),
    "parameter count": ("parameters", 1),
}
OURS = "left-out accuracy, initial weights"


def read_architecture(configuration: Configuration, root: str | None) -> dict[str, Any]:
    """Return the scores of one architecture before training and its accuracy after training."""
    train, test, outputs = data_of(configuration, root)
    recipe = configuration.recipe
    network = build(configuration, train, outputs)
    before = gs.functional.kernel_leave_one_out(network, train.inputs, train.y).accuracy
    spec = gs.NetworkSpec(name=recipe.network, options=recipe.options)
    (ranked,) = gs.rank_networks(
        {recipe.name: spec}, train, by="output_sensitivity", seed=configuration.seed
    )
    gs.train(
        network, train, gs.TrainingSpec.from_dict(dict(recipe.training)), seed=configuration.seed
    )
    return configuration.facts() | {
        "expected": before,
        "sensitivity": ranked.sensitivity,
        "parameters": ranked.parameters,
        "train_score": accuracy(network, train),
        "test_score": accuracy(network, test),
    }


def _jobs(setting: RunSettings) -> list[Configuration]:
    """Return a configuration per architecture, data set and seed. A seed has the same samples."""
    recipes = setting.choose(smoke=ARCHITECTURES[:7:3], small=ARCHITECTURES, paper=ARCHITECTURES)
    samples, seeds = setting.choose(smoke=(100, 1), small=(SAMPLES, SEEDS), paper=(SAMPLES, 10))
    training = ADAM | setting.choose(smoke={"epochs": 10}, small={}, paper={})
    return [
        Configuration(
            "architectures",
            name,
            samples,
            0.0,
            TrainingConfig(each.network, each.options, training),
            seed,
        )
        for name in setting.choose(smoke=("digits",), small=DATA, paper=DATA)
        for seed in range(seeds)
        for each in recipes
    ]


def architectures(setting: RunSettings) -> Outcome:
    """Compare each score with the accuracy reached by Kendall's tau-b, per data set."""
    items = _jobs(setting)
    jobs = {item.job: partial(read_architecture, item, setting.data_root) for item in items}
    table = pandas.DataFrame(setting.cached("architectures", jobs).values())
    rows, claims, points = [], [], {}
    for name, networks in table.groupby("data"):
        part = networks.groupby("recipe").mean(numeric_only=True)
        truth = part["test_score"].to_numpy(dtype=float)
        columns = {
            score: sign * part[column].to_numpy(dtype=float)
            for score, (column, sign) in SCORES.items()
        }

        def tau(
            i: np.ndarray, score: str, columns: Any = columns, truth: np.ndarray = truth
        ) -> float:
            return kendall_tau(columns[score][i], truth[i])

        rows += [
            {"data": name, "known before training": score, "architectures": len(part),
             "tau": bootstrap(partial(tau, score=score), len(part))}
            for score in SCORES
        ]  # fmt: skip
        lead = bootstrap(lambda i, tau=tau: tau(i, OURS) - tau(i, "parameter count"), len(part))
        statement = f"on {name}, left-out accuracy before training ranks architectures better than their size"
        quantity = "Kendall's tau minus that of the parameter count"
        claims.append(error_claim(statement, quantity, lead, unit="architectures", above=0.0))
        points[str(name)] = (part["expected"].tolist(), truth.tolist())
    figure, axes = plots.panels(1)
    plots.scatter(axes[0], points)
    plots.set_labels(
        axes[0], xlabel="left-out accuracy, initial weights", ylabel="accuracy after training"
    )
    plots.legend(figure)
    return Outcome(
        numbers={"tau": to_numbers(rows), "networks": table.to_dict("records")},
        claims=claims,
        tables={"Kendall's tau": to_table(rows)},
        figures={"scatter": figure},
        verdict="Architectures are the units; those of a data set share their samples.",
        **provenance(setting, [item.facts() for item in items]),
    )
