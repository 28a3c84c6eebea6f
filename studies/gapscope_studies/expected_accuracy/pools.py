"""The pools of networks that the shipped estimate is fitted on, and those that it is judged on: drawn, never chosen.

A configuration is one network: data set, number of samples, fraction of wrong labels, training configuration, seed.
Every configuration of a pool is drawn at random with the pool's seed, half of them with clean labels.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ADAM = {"optimizer": "adam", "learning_rate": 0.002, "batch_size": 50, "epochs": 60, "stop_at_train_loss": 0.01}
SGD = {"optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "batch_size": 50, "epochs": 60,
       "stop_at_train_loss": 0.01}  # fmt: skip
WEIGHTS = ({"name": "weight", "options": {"strength": 0.002}},)


@dataclass(frozen=True)
class TrainingConfig:
    """A way of making a network: architecture, its options, and how it is trained."""

    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=lambda: ADAM)

    @property
    def name(self) -> str:
        """What a table shows."""
        changed = {key: value for key, value in self.training.items() if ADAM.get(key) != value}
        return " ".join(
            [self.network, *(f"{k}={v}" for k, v in self.options.items()), *(f"{k}={v}" for k, v in changed.items())]
        )


FLAT = (
    TrainingConfig("fully_connected", {"n_hidden": 1, "width": 256}),
    TrainingConfig("fully_connected", {"n_hidden": 3, "width": 128}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128, "batch_norm": True}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 256, "dropout": 0.3}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128}, ADAM | {"penalties": WEIGHTS}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128}, SGD),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128}, ADAM | {"epochs": 5}),
)
CONVOLUTIONAL = (
    TrainingConfig("small_cnn", {"width_multiplier": 0.25}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.25, "batch_norm": True}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.25, "dropout": 0.3}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.25}, ADAM | {"penalties": WEIGHTS}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.25}, ADAM | {"epochs": 8}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.25, "batch_norm": True}, SGD),
)
AUGMENTED = (TrainingConfig("small_cnn", {"width_multiplier": 0.25, "batch_norm": True},
                    ADAM | {"augmentation": "flip_shift_rotate"}),)  # fmt: skip
LENET = (
    TrainingConfig("lenet5"),
    TrainingConfig("lenet5", {}, SGD | {"learning_rate": 0.02}),
    TrainingConfig("lenet5", {}, ADAM | {"epochs": 8}),
)
# only in judging pools: families that the fitted pool does not hold, as small as two busy cores can pay for
UNSEEN = (
    TrainingConfig("plain_cnn", {"n_conv": 3, "channels": 8, "batch_norm": True}, ADAM | {"epochs": 40}),
    TrainingConfig("small_cnn", {"width_multiplier": 0.125, "batch_norm": True}, ADAM | {"epochs": 40}),
    TrainingConfig("plain_cnn", {"n_conv": 4, "channels": 8, "batch_norm": True}, SGD | {"epochs": 40}),
    TrainingConfig(
        "small_cnn", {"width_multiplier": 0.125, "batch_norm": True}, ADAM | {"augmentation": "flip_shift_rotate"}
    ),
)
TABLE = (
    TrainingConfig("fully_connected", {"n_hidden": 1, "width": 64}),
    TrainingConfig("fully_connected", {"n_hidden": 3, "width": 64}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128, "batch_norm": True}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128, "dropout": 0.3}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128}, SGD | {"learning_rate": 0.02}),
    TrainingConfig("fully_connected", {"n_hidden": 2, "width": 128}, ADAM | {"penalties": WEIGHTS}),
)


@dataclass(frozen=True)
class Configuration:
    """One network of a pool."""

    pool: str
    data: str
    samples: int
    noise: float
    recipe: TrainingConfig
    seed: int

    @property
    def name(self) -> str:
        """Name that says everything, usable as the name of a file."""
        text = f"{self.pool} {self.data} n{self.samples} noise{self.noise} {self.recipe.name} seed{self.seed}"
        return "".join(character if character.isalnum() or character in ".=" else "_" for character in text)

    @property
    def job(self) -> str:
        """Name of the job that trains and reads it; short enough for a file."""
        return self.name[:200]

    def facts(self) -> dict[str, Any]:
        """Plain values for a table."""
        return asdict(self) | {"recipe": self.recipe.name}


@dataclass(frozen=True)
class Plan:
    """Settings that a pool samples from, and its number of networks per data set."""

    name: str
    data: Mapping[str, Sequence[TrainingConfig]]
    sizes: Sequence[int]
    noises: Sequence[float]
    networks: int
    seed: int

    def configurations(self) -> list[Configuration]:
        """Draw them; every training configuration as often as every other, half of each without wrong labels."""
        result = []
        for data, recipes in self.data.items():
            draw = random.Random(f"{self.seed} {data}")
            for number in range(self.networks):
                noise = draw.choice(self.noises) if self.noises and number // len(recipes) % 2 else 0.0
                recipe = recipes[number % len(recipes)]
                result.append(Configuration(self.name, data, draw.choice(self.sizes), noise, recipe, number))
        return result


def load_rows(name: str) -> dict[str, dict[str, Any]]:
    """Job -> what was read of each network whose results are stored next to the code, so that none is trained twice."""
    lines = Path(__file__).with_name(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["name"]: row.get("found", row) for row in map(json.loads, lines)}
    # infinities and NaN are strings in the file
    strings = ("NaN", "Infinity", "-Infinity")
    return {job: {key: float(v) if v in strings else v for key, v in row.items()} for job, row in rows.items()}


def in_random_order(plan: Plan) -> list[Configuration]:
    """The networks of a pool in one random order: the first so many of them are a fair sample of all."""
    drawn = plan.configurations()
    random.Random(0).shuffle(drawn)
    return drawn


SIZES = (100, 200, 400, 600)
NOISES = (0.1, 0.2, 0.4, 0.6)
IMAGES = (*FLAT, *CONVOLUTIONAL, *AUGMENTED, *LENET)

FITTED = Plan(
    "fitted",
    {"digits": (*FLAT, *CONVOLUTIONAL), "mnist": IMAGES, "fashion_mnist": IMAGES, "cifar10": IMAGES},
    SIZES, NOISES, networks=40, seed=0,
)  # fmt: skip
# judged the first estimator (its figures stand in PROTOCOL.md); what was trained of them is in the second one's fit
FIRST_JUDGED = (
    Plan("judged_cifar_batch_norm", {"cifar10": UNSEEN, "cifar100": UNSEEN}, (150, 300, 450), (0.1, 0.3, 0.5), 20, 1),
    Plan("judged_images", {"mnist": IMAGES, "fashion_mnist": IMAGES}, (150, 300, 450), (0.15, 0.3, 0.5), 20, 2),
    Plan("judged_table", {"california_quartiles": TABLE}, (150, 300, 700), (0.1, 0.3), 40, 3),
)
REGRESSION = Plan(
    "judged_regression", {"california_housing": TABLE, "concrete": TABLE}, (150, 300, 700), (), 20, 4
)  # nothing is fitted to it, so that it continues judging
JUDGED = (
    Plan("second_cifar_batch_norm", {"cifar10": UNSEEN, "cifar100": UNSEEN}, (120, 250, 500), (0.05, 0.2, 0.4), 20, 11),
    Plan("second_images", {"mnist": IMAGES, "fashion_mnist": IMAGES}, (120, 250, 500), (0.05, 0.2, 0.4), 20, 12),
    Plan("second_table", {"concrete_quartiles": TABLE, "boston_quartiles": TABLE}, (100, 150, 250), (0.1, 0.3), 20, 13),
    REGRESSION,
)


def judged_in_turn() -> list[Configuration]:
    """All networks to judge on, one of each pool after the other: stopped anywhere, it has been fair to all pools."""
    return [item for turn in zip(*map(in_random_order, JUDGED), strict=True) for item in turn]


def spread_evenly(plans: Sequence[Plan]) -> list[Configuration]:
    """The networks of several pools in one order, those of each pool spread evenly over it."""
    drawn = [(number / len(part), item) for part in map(in_random_order, plans) for number, item in enumerate(part)]
    return [item for _, item in sorted(drawn, key=lambda pair: pair[0])]


def has_cross_validation(configuration: Configuration) -> bool:
    """Whether five-fold cross-validation is run: for half of the networks, chosen by name."""
    return random.Random(f"cross-validation {configuration.name}").random() < 0.5
