"""Which of many untrained architectures: left-out accuracy, output sensitivity and size, beside what they reached."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas

import gapscope as gs
from gapscope.prediction.correlations import kendall_tau
from gapscope_studies.expected_accuracy.pools import ADAM, Configuration, TrainingConfig
from gapscope_studies.expected_accuracy.rows import behind, error_claim, plain, root_mean_square, shown
from gapscope_studies.expected_accuracy.runs import data_of, score, untrained
from gapscope_studies.kit import plots
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

# no batch norm and no dropout: sensitivity before training cannot see them, and is to be given its best case
ARCHITECTURES = (
    *(
        TrainingConfig("fully_connected", {"n_hidden": depth, "width": width})
        for depth in (1, 2, 3, 4)
        for width in (32, 128)
    ),
    *(TrainingConfig("fully_connected", {"n_hidden": depth, "width": 512}) for depth in (1, 2)),
    *(TrainingConfig("small_cnn", {"width_multiplier": width}) for width in (0.125, 0.25, 0.375, 0.5)),
    *(TrainingConfig("plain_cnn", {"n_conv": depth, "channels": width}) for depth in (2, 3, 4, 5) for width in (8, 16)),
    TrainingConfig("fully_connected", {"n_hidden": 6, "width": 128}),
    TrainingConfig("lenet5"),
)
# architectures are the units; a second seed was planned and cut, for time, before any accuracy was looked at
DATA, SEEDS, SAMPLES = ("fashion_mnist", "cifar10"), 1, 400
# larger predicts a more accurate network, but for the sensitivity
WAYS = {
    "left-out accuracy, initial weights": ("expected", 1),
    "output sensitivity before training": ("sensitivity", -1),
    "parameter count": ("parameters", 1),
}
OURS = "left-out accuracy, initial weights"


def one(configuration: Configuration, root: str | None) -> dict[str, Any]:
    """One architecture with one seed: what is known before training, and the accuracy that training reached."""
    train, test, outputs = data_of(configuration, root)
    recipe = configuration.recipe
    network = untrained(configuration, train, outputs)
    assert train.targets is not None
    before = gs.functional.kernel_leave_one_out(network, train.inputs, train.targets).accuracy
    spec = gs.NetworkSpec(name=recipe.network, options=recipe.options)
    (ranked,) = gs.rank_networks({recipe.name: spec}, train, by="output_sensitivity", seed=configuration.seed)
    gs.train(network, train, gs.TrainingSpec.from_dict(dict(recipe.training)), seed=configuration.seed)
    return configuration.facts() | {
        "expected": before,
        "sensitivity": ranked.sensitivity,
        "parameters": ranked.parameters,
        "train_score": score(network, train),
        "test_score": score(network, test),
    }


def _jobs(setting: RunSettings) -> list[Configuration]:
    """Every architecture on every data set with every seed; architectures share samples within a seed."""
    chosen = setting.choose(smoke=ARCHITECTURES[:7:3], small=ARCHITECTURES, paper=ARCHITECTURES)
    samples, seeds = setting.choose(smoke=(100, 1), small=(SAMPLES, SEEDS), paper=(SAMPLES, 10))
    training = ADAM | setting.choose(smoke={"epochs": 10}, small={}, paper={})
    return [
        Configuration("architectures", name, samples, 0.0, TrainingConfig(each.network, each.options, training), seed)
        for name in setting.choose(smoke=("digits",), small=DATA, paper=DATA)
        for seed in range(seeds)
        for each in chosen
    ]


def architectures(setting: RunSettings) -> Outcome:
    """Kendall's tau-b with the reached accuracy, of each way, on each data set."""
    drawn = _jobs(setting)
    result = setting.cached("architectures", {item.job: partial(one, item, setting.data_root) for item in drawn})
    table = pandas.DataFrame(result.values())
    means: dict[str, Table] = {
        str(name): pandas.DataFrame(part.groupby("recipe").mean(numeric_only=True))
        for name, part in table.groupby("data")
    }
    rows, claims, spread = [], [], {}
    for name, part in means.items():
        truth = part["test_score"].to_numpy(dtype=float)

        def kendall(rows: np.ndarray, way: str, part: Table = part, truth: np.ndarray = truth) -> float:
            column, sign = WAYS[way]
            return kendall_tau(sign * part[column].to_numpy(dtype=float)[rows], truth[rows])

        rows += [
            {"data": name, "known before training": way, "architectures": len(part),
             "tau": bootstrap(partial(kendall, way=way), len(part))}
            for way in WAYS
        ]  # fmt: skip
        lead = bootstrap(lambda i, k=kendall: k(i, OURS) - k(i, "parameter count"), len(part))
        says = f"on {name}, left-out accuracy before training ranks architectures better than their size"
        quantity = "Kendall's tau minus that of the parameter count"
        claims.append(error_claim(says, quantity, lead, unit="architectures", above=0.0))
        # how much there is to rank, and the error of what was expected of all
        spread[name] = {
            "worst": float(truth.min()),
            "best": float(truth.max()),
            "lowest_training_accuracy": float(part["train_score"].min()),
            "error": root_mean_square(part["expected"] - part["test_score"]),
        }
    figure, axes = plots.panels(1)
    points = {name: (part["expected"].tolist(), part["test_score"].tolist()) for name, part in means.items()}
    plots.scatter(axes[0], points)
    plots.named(axes[0], xlabel="left-out accuracy, initial weights", ylabel="accuracy after training")
    plots.legend(figure)
    return Outcome(
        numbers={"tau": [plain(row) for row in rows], "networks": table.to_dict("records"), "spread": spread},
        claims=claims,
        tables={"Kendall's tau": pandas.DataFrame(map(shown, rows))},
        figures={"scatter": figure},
        verdict="Architectures are the units; those of a data set share their samples.",
        **behind(setting, [item.facts() for item in drawn]),
    )
