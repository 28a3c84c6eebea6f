"""Three pools that vary what the paper kept fixed: data, sizes, clean labels, networks that do not fit their data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from gapscope.base.specs import Spec
from gapscope_studies.kit.study import Setting
from gapscope_studies.zhao2022.grids import fractions, vgg


def _base(setting: Setting, data: str, network: str, train_size: int, learning_rate: float, epochs: int) -> Spec:
    smoke = setting.scale == "smoke"
    content = {
        "data.name": "digits" if smoke else data,
        "data.train_size": 80 if smoke else train_size,
        "data.test_size": 100 if smoke else (None if data == "digits" else 1000),
        "data.label_noise_may_keep_class": True,
        "network.name": "small_cnn" if smoke else network,
        "network.initialization": "he_normal",
        "training.learning_rate": 0.05 if smoke else learning_rate,
        "training.momentum": 0.9,
        "training.nesterov": True,
        "training.batch_size": 20,
        "training.epochs": 8 if smoke else epochs,
        "training.schedule": "step",
        "training.schedule_epochs": 6 if smoke else 2 * epochs // 3,
        "training.stop_at_train_loss": 0.1 if smoke else 0.03,
    }
    return Spec().replace(content)


def _numbered(specs: list[Spec]) -> list[Spec]:
    return [spec.replace({"seed": number}) for number, spec in enumerate(specs)]


def _variants(base: Spec, options: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[Spec]:
    return [
        base.replace({"network.options": option, **change}) for option, change in itertools.product(options, changes)
    ]


def _pool(setting: Setting, base: Spec, shapes: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> list[Spec]:
    """Corrupted labels, clean labels and few samples, training that stops early; each with and without batch norm.

    Every network has a seed of its own, so that no two of them share initial weights; the data are the same.

    Args:
        setting: Says the scale.
        base: What they share.
        shapes: Options of the network, the first ones for what is not varied with the shape.
        sizes: Numbers of training samples of the networks with clean labels, beside that of `base`.

    Returns:
        The specs.
    """
    built = [{**shape, "batch_norm": norm} for shape in shapes for norm in (False, True)]
    narrow = built[:2]
    dropped = [{**option, "dropout": 0.2} for option in narrow]
    noises = fractions(setting)
    early = {"training.epochs": setting.choose(smoke=2, small=3, paper=3)}
    corrupted = _variants(base, built, [{"data.label_noise": noise} for noise in noises])
    corrupted += _variants(base, dropped, [{"data.label_noise": noise} for noise in noises[1::3]])
    clean = _variants(base, narrow, [{"data.train_size": size} for size in sizes])
    stopped = _variants(base, narrow, [{"data.label_noise": noise, **early} for noise in noises[::2]])
    return _numbered([*corrupted, *clean, *stopped])


def _widths(multipliers: Sequence[float]) -> list[dict[str, Any]]:
    return [{"width_multiplier": multiplier} for multiplier in multipliers]


def _repeated(setting: Setting, specs: list[Spec]) -> list[Spec]:
    """Paper scale has every network five times."""
    times = setting.choose(smoke=1, small=1, paper=5)
    return [spec.replace({"seed": spec.seed + 1000 * k}) for k in range(times) for spec in specs]


def digits(setting: Setting) -> list[Spec]:
    """Small CNNs on scikit-learn's digits; at small scale those with corrupted labels alone."""
    base = _base(setting, "digits", "small_cnn", 400, 0.03, 40)
    shapes = _widths(setting.choose(smoke=(0.2,), small=(0.4, 0.8), paper=(0.5, 1.0, 2.0)))
    sizes = setting.choose(smoke=(40,), small=(), paper=(50, 100, 200, 800))
    found = _repeated(setting, _pool(setting, base, shapes, sizes))
    return found[: setting.choose(smoke=None, small=24, paper=None)]


def clothes(setting: Setting) -> list[Spec]:
    """LeNet-5 on Fashion-MNIST."""
    base = _base(setting, "fashion_mnist", "lenet5", 400, 0.03, 50)
    shapes = _widths(setting.choose(smoke=(0.3,), small=(0.7, 1.4), paper=(1.0, 2.0, 4.0)))
    sizes = setting.choose(smoke=(60,), small=(100, 1000), paper=(100, 250, 1000, 4000))
    return _repeated(setting, _pool(setting, base, shapes, sizes))


def dense(setting: Setting) -> list[Spec]:
    """Fully connected networks with three hidden layers on MNIST."""
    base = _base(setting, "mnist", "fully_connected", 400, 0.03, 50).replace({"network.name": "fully_connected"})
    widths = setting.choose(smoke=(12,), small=(64, 256), paper=(100, 300, 1000))
    sizes = setting.choose(smoke=(60,), small=(100, 1000), paper=(100, 250, 1000, 4000))
    return _repeated(setting, _pool(setting, base, [{"n_hidden": 3, "width": width} for width in widths], sizes))


def first_pool(setting: Setting) -> tuple[str, list[Spec]]:
    """Name and networks of the pool behind Figs. 1 to 3.

    The paper's are VGG-16 on CIFAR-100. Even a narrow VGG takes too many steps to fit random labels for minutes on two
    cores: at small scale the figures show the LeNet-5 of the pool "clothes" whose training was not stopped early and
    whose number of samples is the common one.

    Args:
        setting: Says the scale.

    Returns:
        The name, and the specs.
    """
    if setting.scale != "small":
        return "vgg", vgg(setting)
    specs = clothes(setting)
    common = specs[0]
    return "clothes", [
        spec
        for spec in specs
        if (spec.data.train_size, spec.training.epochs) == (common.data.train_size, common.training.epochs)
    ]
