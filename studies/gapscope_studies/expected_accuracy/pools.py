"""Random pools of networks, to fit the shipped estimate and to evaluate it."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SETTINGS = tomllib.loads(Path(__file__).with_name("pools.toml").read_text(encoding="utf-8"))
ADAM: dict[str, Any] = SETTINGS["training"]["adam"]


@dataclass(frozen=True)
class TrainingConfig:
    """Architecture, its options, and its training."""

    network: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=lambda: ADAM)

    @property
    def name(self) -> str:
        """Name of the training configuration, as tables show it."""
        changed = {key: value for key, value in self.training.items() if ADAM.get(key) != value}
        return " ".join(
            [
                self.network,
                *(f"{k}={v}" for part in (self.options, changed) for k, v in part.items()),
            ]
        )


def recipes(name: str) -> tuple[TrainingConfig, ...]:
    """Return the training configurations of a list in `pools.toml`."""
    result = []
    for entry in SETTINGS["recipes"][name]:
        training = SETTINGS["training"][entry.get("base", "adam")] | entry.get("training", {})
        # names of jobs show penalties as a tuple
        training = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in training.items()
        }
        result.append(TrainingConfig(entry["network"], entry.get("options", {}), training))
    return tuple(result)


@dataclass(frozen=True)
class Configuration:
    """One network of a pool: data, noise, training configuration and seed."""

    pool: str
    data: str
    samples: int
    noise: float
    recipe: TrainingConfig
    seed: int

    @property
    def name(self) -> str:
        """Name with all settings, usable as the name of a file."""
        text = f"{self.pool} {self.data} n{self.samples} noise{self.noise} {self.recipe.name} seed{self.seed}"
        return "".join(
            character if character.isalnum() or character in ".=" else "_" for character in text
        )

    @property
    def job(self) -> str:
        """Name of the job, short enough for a file."""
        return self.name[:200]

    def facts(self) -> dict[str, Any]:
        """Return JSON-serializable values for a table."""
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
        """Sample configurations, equally many per training configuration, half with clean labels."""
        result = []
        for data, recipes in self.data.items():
            draw = random.Random(f"{self.seed} {data}")
            for number in range(self.networks):
                noise = (
                    draw.choice(self.noises) if self.noises and number // len(recipes) % 2 else 0.0
                )
                recipe = recipes[number % len(recipes)]
                result.append(
                    Configuration(self.name, data, draw.choice(self.sizes), noise, recipe, number)
                )
        return result


def load_rows(name: str) -> dict[str, dict[str, Any]]:
    """Load stored readings of networks by job."""
    lines = Path(__file__).with_name(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = {row["name"]: row.get("found", row) for row in map(json.loads, lines)}
    strings = ("NaN", "Infinity", "-Infinity")  # JSON lacks these numbers
    return {
        job: {key: float(v) if v in strings else v for key, v in row.items()}
        for job, row in rows.items()
    }


def in_random_order(plan: Plan) -> list[Configuration]:
    """Return the networks of a pool in random order, so that the first are a fair sample."""
    items = plan.configurations()
    random.Random(0).shuffle(items)
    return items


def plans(*names: str) -> tuple[Plan, ...]:
    """Return pools of `pools.toml`."""
    result = []
    for name in names:
        entry = SETTINGS["pools"][name]
        data = {
            key: [item for part in parts for item in recipes(part)]
            for key, parts in entry["data"].items()
        }
        result.append(Plan(name, **{**entry, "data": data}))
    return tuple(result)


(FITTED,) = plans("fitted")
FIRST_JUDGED = plans("judged_cifar_batch_norm", "judged_images", "judged_table")
JUDGED = plans("second_cifar_batch_norm", "second_images", "second_table")


def judged_in_turn() -> list[Configuration]:
    """Return all evaluation networks, the pools in turn (the first are a fair sample)."""
    return [item for turn in zip(*map(in_random_order, JUDGED), strict=True) for item in turn]


def spread_evenly(plans: Sequence[Plan]) -> list[Configuration]:
    """Return the networks of several pools in one order, each pool spread evenly over it."""
    ranked = [
        (number / len(part), item)
        for part in map(in_random_order, plans)
        for number, item in enumerate(part)
    ]
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def has_cross_validation(configuration: Configuration) -> bool:
    """Return whether to run five-fold cross-validation, for half of the networks by name."""
    return random.Random(f"cross-validation {configuration.name}").random() < 0.5
