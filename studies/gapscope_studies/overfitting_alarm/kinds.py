"""What kinds of networks the rules are tuned and judged on: data, architecture, optimiser, label noise, seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
_MOMENTUM = {"learning_rate": 0.02, "momentum": 0.9}
_WIDE = (0.0, 0.2, 0.4, 0.6, 0.8)
_OTHER = (0.0, 0.1, 0.3, 0.5, 0.7)
_THIRD = (0.0, 0.05, 0.25, 0.45, 0.65)
_FOURTH = (0.0, 0.15, 0.35, 0.55, 0.75)

# The alarm's form was chosen on these, too.
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
    Kind(
        "digits, FC x 4, Nesterov",
        _settings(
            "digits",
            700,
            "fully_connected",
            {"n_hidden": 4, "width": 80},
            100,
            learning_rate=0.01,
            momentum=0.9,
            nesterov=True,
        ),
        4,
        _THIRD,
        (20, 21),
        (22, 23),
    ),
    Kind(
        "digits, deep CNN, Adam",
        _settings("digits", 900, "small_cnn", {"width_multiplier": 0.25, "depth": 4}, 75, **_ADAM),
        3,
        _THIRD,
        (20,),
        (21, 22),
    ),
    Kind(
        "digits, narrow FC, step SGD",
        _settings(
            "digits", 500, "fully_connected", {"width": 40}, 240, learning_rate=0.2, schedule="step", schedule_epochs=90
        ),
        8,
        _THIRD,
        (20, 21),
        (22,),
    ),
    Kind(
        "MNIST, tanh FC, momentum",
        _settings(
            "mnist", 800, "fully_connected", {"activation": "tanh", "width": 150}, 75, learning_rate=0.01, momentum=0.9
        ),
        3,
        _THIRD,
        (20, 21),
        (22, 23),
    ),
    Kind(
        "MNIST, plain CNN, Adam",
        _settings("mnist", 1200, "plain_cnn", {"n_conv": 2, "channels": 8, "max_pool": True}, 60, **_ADAM),
        3,
        _THIRD,
        (20,),
        (21, 22),
    ),
    Kind(
        "MNIST, dropout LeNet-5, Adam",
        _settings("mnist", 900, "lenet5", {"dropout": 0.3}, 60, **_ADAM),
        3,
        _THIRD,
        (20,),
        (21,),
    ),
    Kind(
        "Fashion, FC x 3, Adam",
        _settings("fashion_mnist", 1200, "fully_connected", {"n_hidden": 3, "width": 120}, 60, **_ADAM),
        3,
        _THIRD,
        (20, 21),
        (22, 23),
    ),
    Kind(
        "Fashion, BatchNorm CNN, momentum",
        _settings(
            "fashion_mnist",
            1000,
            "plain_cnn",
            {"n_conv": 2, "channels": 8, "max_pool": True, "batch_norm": True},
            50,
            **_MOMENTUM,
        ),
        2,
        _THIRD,
        (20,),
        (21,),
    ),
    Kind(
        "CIFAR-10, plain CNN, momentum",
        _settings("cifar10", 1500, "plain_cnn", {"n_conv": 3, "channels": 12, "max_pool": True}, 45, **_MOMENTUM),
        3,
        (0.0, 0.25),
        (20,),
    ),
)

JUDGING = (
    Kind(
        "digits, FC, cyclical SGD",
        _settings(
            "digits",
            600,
            "fully_connected",
            {"width": 150},
            160,
            learning_rate=0.3,
            schedule="cyclical",
            schedule_epochs=20,
        ),
        5,
        _FOURTH,
        (30, 31),
        (32, 33),
    ),
    Kind(
        "digits, tanh FC x 2, Adam",
        _settings("digits", 450, "fully_connected", {"n_hidden": 2, "width": 90, "activation": "tanh"}, 100, **_ADAM),
        4,
        _FOURTH,
        (30, 31),
        (32,),
    ),
    Kind(
        "digits, dropout CNN, Adam",
        _settings("digits", 800, "small_cnn", {"width_multiplier": 0.3, "dropout": 0.2}, 75, **_ADAM),
        3,
        _FOURTH,
        (30,),
        (31, 32),
    ),
    Kind(
        "MNIST, FC x 3, momentum",
        _settings("mnist", 1100, "fully_connected", {"n_hidden": 3, "width": 100}, 60, **_MOMENTUM),
        3,
        _FOURTH,
        (30,),
        (31, 32),
    ),
    Kind(
        "MNIST, CNN, momentum",
        _settings("mnist", 900, "plain_cnn", {"n_conv": 3, "channels": 10, "max_pool": True}, 60, **_MOMENTUM),
        3,
        _FOURTH,
        (30,),
        (31, 32),
    ),
    Kind(
        "MNIST, BatchNorm LeNet-5, Adam",
        _settings("mnist", 800, "lenet5", {"batch_norm": True}, 40, **_ADAM),
        2,
        _FOURTH,
        (30,),
        (31,),
    ),
    Kind(
        "Fashion, LeNet-5, momentum",
        _settings("fashion_mnist", 1300, "lenet5", {}, 50, **_MOMENTUM),
        2,
        _FOURTH,
        (30,),
        (31, 32),
    ),
    Kind(
        "Fashion, dropout tanh FC, Adam",
        _settings(
            "fashion_mnist", 900, "fully_connected", {"activation": "tanh", "width": 180, "dropout": 0.2}, 75, **_ADAM
        ),
        3,
        _FOURTH,
        (30,),
        (31, 32),
    ),
    Kind(
        "CIFAR-10, FC, Adam",
        _settings("cifar10", 1200, "fully_connected", {}, 45, **_ADAM),
        3,
        (0.0, 0.15, 0.35),
        (30,),
    ),
)
