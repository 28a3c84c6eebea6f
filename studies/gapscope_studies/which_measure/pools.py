"""The networks of the study as tables that `gapscope leaderboard` reads: gap, hyperparameters hp.*, measures m.*."""

from __future__ import annotations

import random
import tomllib
from functools import partial
from pathlib import Path

import pandas
import torch

from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.data import Problem
from gapscope.inspection.losses import evaluate
from gapscope.pools.from_spec import prepared
from gapscope.results.records import Record
from gapscope_studies.kit.pool import trained
from gapscope_studies.kit.study import RunSettings

LEARNT = 0.75
NOISE = "_noise"
SIZE = "parameter_count"
NUMBERS: list[str] = tomllib.loads(Path(__file__).with_name("measures.toml").read_text(encoding="utf-8"))["numbers"]
MEASURES = list(dict.fromkeys(name.partition(".")[0] for name in NUMBERS))


def specs_of(setting: RunSettings, pool: str) -> list[RunSpec]:
    """The training configurations of a grid, each with a seed and a training subset of its own, in random order.

    In random order a run that is stopped leaves a fair sample of the grid.
    """
    first = 1000 if pool.endswith(NOISE) else 0
    specs = [
        spec.replace({"seed": first + number, "data.seed": first + number})
        for number, spec in enumerate(setting.grid(__file__, pool))
    ]
    return random.Random(0).sample(specs, len(specs))


def networks(setting: RunSettings, pool: str) -> list[Record]:
    """Train and measure a pool. The networks that learned their training labels."""
    settings = setting.read(__file__)
    records = setting.train(
        pool,
        specs_of(setting, pool),
        measures=settings.get("measures", MEASURES),
        measure_samples=settings["measured_samples"],
        measure_options=settings.get("measure_options", {}),
    )
    return [record for record in records if record.scores.get("train_accuracy", 0.0) > LEARNT]


def held_out(trained_on: Samples, everything: Problem) -> Samples:
    """All images, of both splits, that a network was not trained on."""
    known = {image.numpy().tobytes() for image in trained_on.inputs}
    unused = [row for row, image in enumerate(everything.train.inputs) if image.numpy().tobytes() not in known]
    test, rest = everything.test, everything.train.subset(torch.tensor(unused))
    assert rest.targets is not None and test.targets is not None
    return Samples(torch.cat([test.inputs, rest.inputs]), torch.cat([test.targets, rest.targets]))


def _held_out_accuracy(setting: RunSettings, pool: str, spec: RunSpec) -> float:
    network, problem = trained(setting, pool, spec.id)
    # the same for all networks of a data set, so that it is read once
    everything = {
        "data.train_size": None, "data.test_size": None, "data.balanced": False, "data.label_noise": 0.0,
        "data.seed": 0,
    }  # fmt: skip
    whole, _ = prepared(spec.replace(everything), setting.data_root)
    return evaluate(network, held_out(problem.train, whole))["accuracy"]


def table_of(setting: RunSettings, pool: str, records: list[Record]) -> pandas.DataFrame:
    """One row per network. The gap is training accuracy minus accuracy on all images not trained on."""
    specs = {record.id: RunSpec.from_dict(record.spec) for record in records}
    jobs = {key: partial(_held_out_accuracy, setting, pool, spec) for key, spec in specs.items()}
    accuracies = setting.cached(f"{pool}-held-out", jobs)
    rows = []
    for record in records:
        spec, values = specs[record.id], {reading.name: reading.value for reading in record.readings}
        options, penalties = spec.network.options, spec.training.penalties
        rows.append(
            {
                "id": record.id,
                "gap": record.scores["train_accuracy"] - accuracies[record.id],
                "hp.width": options.get("width_multiplier", options.get("width")),
                "hp.depth": options.get("depth"),
                "hp.samples": spec.data.train_size,
                "hp.augmentation": spec.training.augmentation,
                "hp.weight_penalty": penalties[0].options["strength"] if penalties else 0.0,
                "hp.wrong_labels": spec.data.label_noise,
                **{f"m.{name}": values[name] for name in NUMBERS if name in values},
            }
        )
    return pandas.DataFrame(rows).set_index("id")
