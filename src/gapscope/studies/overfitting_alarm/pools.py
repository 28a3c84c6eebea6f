"""The networks on which rules are tuned, and the other ones on which they are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gapscope.specs import Spec
from gapscope.studies.base import Setting


@dataclass(frozen=True)
class Case:
    """A network to be watched: its spec, the name of its kind, and the epochs from one recording to the next."""

    kind: str
    spec: Spec
    every: int


@dataclass(frozen=True)
class Kind:
    """Cases that differ in label noise and seed alone.

    Attributes:
        name: For tables.
        settings: Setting path -> value, see `Spec.replace`.
        every: Epochs from one recording to the next.
        noises: Fractions of wrong labels.
        seeds: Seeds of data and training.
        clean_seeds: More seeds, for clean labels alone.
    """

    name: str
    settings: dict[str, Any]
    every: int
    noises: Sequence[float]
    seeds: Sequence[int]
    clean_seeds: Sequence[int] = ()

    def cases(self) -> list[Case]:
        """All combinations."""
        pairs = [(noise, seed) for seed in self.seeds for noise in self.noises]
        pairs += [(0.0, seed) for seed in self.clean_seeds]
        changes = [{"data.label_noise": noise, "data.seed": seed, "seed": seed} for noise, seed in pairs]
        return [Case(self.name, Spec().replace({**self.settings, **change}), self.every) for change in changes]


def _settings(
    data: str, size: int, network: str, options: dict[str, Any], epochs: int, **training: Any
) -> dict[str, Any]:
    content = {
        "data.name": data,
        "data.train_size": size,
        "data.test_size": None if data == "digits" else 2000,
        "network.name": network,
        "network.options": options,
        "training.epochs": epochs,
    }
    return content | {f"training.{name}": value for name, value in training.items()}


_ADAM = {"optimizer": "adam", "learning_rate": 1e-3}
_WIDE = (0.0, 0.2, 0.4, 0.6, 0.8)
_OTHER = (0.0, 0.1, 0.3, 0.5, 0.7)

TUNING = (
    Kind("digits, FC, SGD", _settings("digits", 600, "fully_connected", {}, 300), 10, _WIDE, (0, 1)),
    Kind("digits, FC, Adam", _settings("digits", 600, "fully_connected", {}, 120, **_ADAM), 4, _WIDE, (0, 1)),
    Kind(
        "digits, CNN, Adam",
        _settings("digits", 600, "small_cnn", {"width_multiplier": 0.5}, 60, **_ADAM),
        3,
        _WIDE,
        (0,),
    ),
    Kind("MNIST, LeNet-5, SGD", _settings("mnist", 1000, "lenet5", {}, 75), 3, _WIDE, (0,)),
    Kind("Fashion, LeNet-5, Adam", _settings("fashion_mnist", 1000, "lenet5", {}, 50, **_ADAM), 2, _WIDE, (0,)),
    Kind("CIFAR-10, LeNet-5, Adam", _settings("cifar10", 1000, "lenet5", {}, 50, **_ADAM), 2, (0.0, 0.2, 0.4), (0,)),
)

_MOMENTUM = {"learning_rate": 0.02, "momentum": 0.9}
JUDGING = (
    Kind(
        "digits, tanh FC x 3, momentum",
        _settings(
            "digits",
            800,
            "fully_connected",
            {"n_hidden": 3, "width": 64, "activation": "tanh"},
            120,
            batch_size=32,
            **_MOMENTUM,
        ),
        4,
        _OTHER,
        (10, 11),
        (12, 13),
    ),
    Kind(
        "digits, dropout FC, Adam",
        _settings(
            "digits", 400, "fully_connected", {"width": 200, "dropout": 0.2}, 200, optimizer="adam", learning_rate=5e-4
        ),
        6,
        _OTHER,
        (10, 11),
    ),
    Kind(
        "digits, CNN, momentum",
        _settings("digits", 500, "small_cnn", {"width_multiplier": 0.35}, 90, **_MOMENTUM),
        4,
        _OTHER,
        (10, 11),
    ),
    Kind(
        "digits, BatchNorm CNN, Adam",
        _settings("digits", 800, "small_cnn", {"width_multiplier": 0.35, "batch_norm": True}, 40, **_ADAM),
        2,
        _OTHER,
        (10,),
        (11,),
    ),
    Kind(
        "MNIST, LeNet-5, momentum",
        _settings("mnist", 700, "lenet5", {}, 60, batch_size=32, learning_rate=0.01, momentum=0.9),
        3,
        _OTHER,
        (10, 11),
    ),
    Kind(
        "MNIST, FC, Adam", _settings("mnist", 1000, "fully_connected", {}, 60, **_ADAM), 3, _OTHER, (10, 11), (12, 13)
    ),
    Kind(
        "Fashion, LeNet-5, cyclical SGD",
        _settings("fashion_mnist", 1500, "lenet5", {}, 60, schedule="cyclical", schedule_epochs=5),
        3,
        _OTHER,
        (10,),
    ),
    Kind(
        "Fashion, tanh FC, SGD",
        _settings("fashion_mnist", 1000, "fully_connected", {"activation": "tanh"}, 200, learning_rate=0.05),
        8,
        _OTHER,
        (10, 11),
    ),
    Kind(
        "CIFAR-10, LeNet-5, momentum", _settings("cifar10", 1500, "lenet5", {}, 45, **_MOMENTUM), 3, (0.0, 0.3), (10,)
    ),
)


def _small_kind(kind: Kind, noises: Sequence[float]) -> Kind:
    return Kind(kind.name, {**kind.settings, "training.epochs": 60}, 6, noises, kind.seeds[:1])


def tuning_cases(setting: Setting) -> list[Case]:
    """Networks to tune the rules on."""
    return _cases(setting, TUNING)


def judging_cases(setting: Setting) -> list[Case]:
    """Networks to judge the tuned rules on, of other sizes, kinds, optimisers, noise and seeds."""
    return _cases(setting, JUDGING)


def _cases(setting: Setting, kinds: Sequence[Kind]) -> list[Case]:
    if setting.scale == "smoke":
        kinds = [_small_kind(kinds[1] if kinds is TUNING else kinds[0], (0.0, 0.5))]
    if setting.scale == "paper":
        kinds = [
            Kind(k.name, k.settings, k.every, k.noises, [100 * i + s for i in range(5) for s in k.seeds], k.clean_seeds)
            for k in kinds
        ]
    return [case for kind in kinds for case in kind.cases()]
