"""Which networks the study trains, as configurations: a point of a figure each, trained several times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from gapscope.base.specs import DataSpec, NetworkSpec, Spec, TrainingSpec
from gapscope_studies.kit.study import Setting

# Scored after every epoch; the study's numbers come from all test samples, after training.
WATCHED_TEST_SAMPLES = 100


@dataclass(frozen=True)
class Configuration:
    """One point of a figure.

    Attributes:
        family: Its group in the figure.
        spec: What is trained; the runs differ in the seed alone.
        runs: Number of runs.
    """

    family: str
    spec: Spec
    runs: int

    @property
    def name(self) -> str:
        """Family, data and settings in a few words."""
        options = ", ".join(f"{key} {value}" for key, value in self.spec.network.options.items())
        return f"{self.spec.network.name} ({options}), {self.spec.network.initialization}, {self.spec.data.train_size}"

    def specs(self) -> list[Spec]:
        """The spec of every run."""
        return [self.spec.replace({"seed": seed}) for seed in range(self.runs)]


def _joined(parts: Iterable[list[Configuration]]) -> list[Configuration]:
    return list(chain.from_iterable(parts))


def n_runs(setting: Setting) -> int:
    """Runs of every configuration (the paper's: 10)."""
    return setting.choose(smoke=2, small=2, paper=10)


def images(setting: Setting, name: str = "cifar10", train_size: int | None = None) -> DataSpec:
    """Training images; at smoke scale scikit-learn's digits stand in for every set of images."""
    default = setting.choose(smoke=50, small=300, paper=1000)
    return DataSpec(
        name=setting.choose(smoke="digits", small=name, paper=name),
        train_size=train_size or default,
        test_size=setting.choose(smoke=20, small=WATCHED_TEST_SAMPLES, paper=WATCHED_TEST_SAMPLES),
    )


def training(setting: Setting, *, epochs: int | None = None, learning_rate: float | None = None) -> TrainingSpec:
    """Adam in batches of 128, until the training loss was near zero in some epochs (the authors': 1e-5 in 10).

    Args:
        setting: Says the scale.
        epochs: Largest number of epochs; None takes the scale's.
        learning_rate: None takes the authors' 1e-3, at small scale 3e-3, which makes up for fewer epochs.

    Returns:
        The settings.
    """
    return TrainingSpec(
        optimizer="adam",
        learning_rate=learning_rate or setting.choose(smoke=1e-3, small=3e-3, paper=1e-3),
        batch_size=setting.choose(smoke=25, small=128, paper=128),
        epochs=epochs or setting.choose(smoke=6, small=150, paper=2000),
        stop_at_train_loss=setting.choose(smoke=1e-2, small=1e-2, paper=1e-5),
        stop_epochs=setting.choose(smoke=3, small=3, paper=10),
    )


def configuration(
    setting: Setting,
    family: str,
    network: str,
    *,
    initialization: str = "standard_normal",
    data: DataSpec | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    **options: Any,
) -> Configuration:
    """One configuration on the images of this scale unless `data` says otherwise."""
    spec = Spec(
        data=data or images(setting),
        network=NetworkSpec(name=network, options=options, initialization=initialization),
        training=training(setting, epochs=epochs, learning_rate=learning_rate),
    )
    return Configuration(family, spec, n_runs(setting))


def fully_connected(
    setting: Setting, family: str, n_hidden: int, widths: Iterable[int], **others: Any
) -> list[Configuration]:
    """Fully connected networks of one depth."""
    return [
        configuration(setting, family, "fully_connected", n_hidden=n_hidden, width=width, **others) for width in widths
    ]


def widths(setting: Setting) -> tuple[int, ...]:
    """Widths of the fully connected networks."""
    return setting.choose(smoke=(8, 16), small=(80, 140, 200), paper=tuple(range(100, 501, 20)))


def depths(setting: Setting) -> tuple[int, ...]:
    """Numbers of hidden layers of Fig. 2(b)."""
    return setting.choose(smoke=(1, 2), small=(2, 3, 4, 5), paper=(3, 4, 5))


def by_depth(setting: Setting, **others: Any) -> list[Configuration]:
    """Fully connected networks of several depths and widths (Fig. 2b)."""
    found = _joined(
        fully_connected(setting, f"{m} hidden layers", m, widths(setting), **others) for m in depths(setting)
    )
    # 4 layers of 500 and 5 of 165 have the same (H/2)^M, as 4 of 200 and 5 of 80 have
    return (
        found + fully_connected(setting, "5 hidden layers", 5, (165,), **others) if setting.scale == "paper" else found
    )


def plain_cnns(setting: Setting, family: str, n_conv: int, **others: Any) -> list[Configuration]:
    """CNNs with `n_conv` convolutions; channels and hidden units grow together as in the authors' code."""
    sizes = setting.choose(
        smoke=((2, 8), (3, 12)),
        small=((5, 100), (8, 120)),
        paper=tuple(((hidden - 100) // 20 + 5, hidden) for hidden in range(100, 481, 20)),
    )
    return [
        configuration(setting, family, "plain_cnn", n_conv=n_conv, channels=channels, hidden=hidden, **others)
        for channels, hidden in sizes
    ]


def cnns_by_depth(setting: Setting) -> list[Configuration]:
    """CNNs with one to four (smoke and small: three) convolutions (Fig. 2c)."""
    numbers = setting.choose(smoke=(1, 2), small=(1, 2, 3), paper=(1, 2, 3, 4))
    return _joined(plain_cnns(setting, f"{m} convolutions", m) for m in numbers)


def _popular_options(setting: Setting, network: str, multiplier: float) -> dict[str, Any]:
    options: dict[str, Any] = {"width_multiplier": multiplier}
    if network == "alexnet" and setting.scale != "paper":
        options["head_width"] = setting.choose(smoke=8, small=128, paper=4096)
    if setting.scale == "smoke" and not network.startswith("resnet"):
        options["max_pool"] = False  # 8 x 8 pixels cannot be halved five times
    return options


def multipliers(setting: Setting) -> tuple[float, ...]:
    """Factors of the widths of the popular networks."""
    return setting.choose(smoke=(1 / 32, 1 / 16), small=(1 / 16, 1 / 8), paper=(0.25, 0.5, 0.75, 1.0, 1.25))


def popular(
    setting: Setting, networks: Iterable[str], *, data: DataSpec | None = None, family: str | None = None
) -> list[Configuration]:
    """Popular CNNs with Xavier uniform weights (Fig. 1)."""
    data = data or images(setting, train_size=setting.choose(smoke=50, small=300, paper=12_800))
    return [
        configuration(
            setting,
            family or network,
            network,
            initialization="xavier_uniform",
            data=data,
            epochs=setting.choose(smoke=3, small=40, paper=2000),
            learning_rate=1e-3,
            **_popular_options(setting, network, multiplier),
        )
        for network in networks
        for multiplier in multipliers(setting)
    ]


def unregularized_popular(setting: Setting) -> list[Configuration]:
    """AlexNet, VGG-11 and VGG-13 without batch normalisation, dropout and pooling, standard normal (Fig. 4)."""
    found = []
    for network in setting.choose(
        smoke=("vgg11",), small=("alexnet", "vgg11", "vgg13"), paper=("alexnet", "vgg11", "vgg13")
    ):
        for multiplier in multipliers(setting):
            options: dict[str, Any] = {**_popular_options(setting, network, multiplier), "max_pool": False}
            options |= {"dropout": 0.0} if network == "alexnet" else {"batch_norm": False}
            found.append(configuration(setting, f"{network}, standard normal", network, **options))
    return found


def housing(setting: Setting) -> list[Configuration]:
    """Fully connected networks of 3 to 8 layers for Boston housing; smoke scale takes a few drawn faces (Fig. 5)."""
    faces = DataSpec(name="drawn_faces", options={"n": 30, "test_size": 20})
    boston = DataSpec(name="boston_housing")
    hidden = setting.choose(smoke=(2, 3), small=(3, 4, 5, 6, 7, 8), paper=(3, 4, 5, 6, 7, 8))
    sizes = setting.choose(smoke=(8, 16), small=(100, 200), paper=(100, 200, 300, 400, 500))
    common = {
        "data": setting.choose(smoke=faces, small=boston, paper=boston),
        "initialization": "torch",
        "epochs": setting.choose(smoke=6, small=300, paper=2000),
    }
    return _joined(fully_connected(setting, f"{m} hidden layers", m, sizes, **common) for m in hidden)


def against_convolutions(setting: Setting) -> list[Configuration]:
    """One hidden layer, and what another layer or a convolution adds to it (Fig. 2a)."""
    return [
        *fully_connected(setting, "FC, 1 hidden layer", 1, widths(setting)),
        *fully_connected(setting, "FC, 2 hidden layers", 2, widths(setting)),
        *plain_cnns(setting, "CNN, 1 convolution", 1),
    ]


def regularized_fully_connected(setting: Setting) -> list[Configuration]:
    """Four hidden layers with and without dropout and batch normalisation (Fig. 2d)."""
    return [
        *fully_connected(setting, "none", 4, widths(setting)),
        *fully_connected(setting, "dropout", 4, widths(setting), dropout=0.5),
        *fully_connected(setting, "batch normalisation", 4, widths(setting), batch_norm=True),
    ]


def regularized_cnns(setting: Setting) -> list[Configuration]:
    """Three convolutions (smoke: two) with and without dropout, batch normalisation and max-pooling (Fig. 2e)."""
    n_conv = setting.choose(smoke=1, small=3, paper=3)
    return [
        *plain_cnns(setting, "none", n_conv),
        *plain_cnns(setting, "dropout", n_conv, dropout=0.5),
        *plain_cnns(setting, "batch normalisation", n_conv, batch_norm=True),
        *plain_cnns(setting, "max-pooling", n_conv, max_pool=True),
    ]


def initialized(setting: Setting) -> list[Configuration]:
    """Four hidden layers from four initialisations (Fig. 3)."""
    kinds = ("standard_normal", "xavier_uniform", "he_uniform", "he_normal")
    return _joined(fully_connected(setting, kind, 4, widths(setting), initialization=kind) for kind in kinds)


def all_popular(setting: Setting) -> list[Configuration]:
    """AlexNet, VGG and ResNet from Xavier uniform weights."""
    names = ("alexnet", "vgg11", "vgg13", "vgg16", "resnet18", "resnet34")
    return popular(setting, setting.choose(smoke=("vgg11", "resnet18"), small=names, paper=names))


def figure_1(setting: Setting) -> list[Configuration]:
    """Popular networks, most from Xavier uniform weights and some standard normal; the paper does not say which."""
    return [*all_popular(setting), *unregularized_popular(setting)]


def table_1(setting: Setting) -> list[Configuration]:
    """VGG-13 and 16, ResNet-18 and 34; the paper trains them on all of CIFAR-10 (accuracies up to 87 %)."""
    names = ("vgg13", "vgg16", "resnet18", "resnet34")
    data = images(setting, train_size=50_000) if setting.scale == "paper" else None
    return popular(setting, setting.choose(smoke=("vgg11", "resnet18"), small=names, paper=names), data=data)


def few_and_many(setting: Setting) -> list[Configuration]:
    """ResNet-18 and 34 on few and on many samples (Fig. 11a, b)."""
    names = setting.choose(smoke=("resnet18",), small=("resnet18", "resnet34"), paper=("resnet18", "resnet34"))
    few = images(setting, train_size=setting.choose(smoke=30, small=75, paper=1000))
    return [*popular(setting, names, data=few, family="few"), *popular(setting, names, family="many")]


def stages(setting: Setting) -> list[Configuration]:
    """Four hidden layers, He normal and standard normal, stopped at several stages of training (Fig. 11d)."""
    epochs = setting.choose(smoke=(1, 4), small=(1, 4, 16, 64), paper=(1, 4, 16, 64, 256))
    return _joined(
        fully_connected(setting, f"{n} epochs", 4, widths(setting), initialization=kind, epochs=n)
        for n in epochs
        for kind in ("he_normal", "standard_normal")
    )


def other_images(setting: Setting, name: str) -> list[Configuration]:
    """Fully connected networks, standard normal, on MNIST or CIFAR-100 (appendix F)."""
    return by_depth(setting, data=images(setting, name))


def untrained(setting: Setting) -> list[Configuration]:
    """Standard normal networks without any regularisation: those that can be compared before training (Fig. 4)."""
    return [*by_depth(setting), *cnns_by_depth(setting), *unregularized_popular(setting)]


def authors(setting: Setting) -> list[Configuration]:
    """4 hidden layers, standard normal, 1,000 images: what the authors stored results of; at small scale two widths."""
    sizes = setting.choose(smoke=(8, 16), small=(200, 300), paper=(200, 300, 500))
    if setting.scale == "smoke":
        return fully_connected(setting, "authors", 4, sizes)
    data = images(setting, train_size=1000)
    found = fully_connected(Setting(scale="paper", work=setting.work), "authors", 4, sizes, data=data)
    return [replace(item, runs=n_runs(setting)) for item in found]
