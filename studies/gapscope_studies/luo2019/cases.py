"""Which networks the study trains: data, architecture and recipe of each figure, scale by scale.

The paper gives SGD with momentum 0.9, a learning rate that falls by the factor 1e-4 a step and grows in proportion to
the batch size, and the two architectures. It leaves open the initial rate (here 0.1 at batches of 128), the number of
epochs (here 100) and augmentation (here none).

Small scale: networks are narrow (ResNet-18 an eighth, the CNN a quarter), images 16 x 16 (means of 2 x 2 pixels),
training sets 1,024 images, and batches of 16 and 128 stand for 128 and 1,024. The initial rate is 0.06 at batches of
128, for all methods but a weight-normalised ResNet-18, which collapses when it is so narrow and gets three tenths of
it. It falls by the same factor an epoch for all batch sizes, to a fiftieth over the run: so short a run would hardly
feel 1e-4 a step.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Any

from gapscope.base.specs import DataSpec, NetworkSpec, Spec, TrainingSpec
from gapscope_studies.kit.study import Setting

PAPER_TRAINING_SAMPLES = 50_000
FALL_OVER_A_SHORT_RUN = 0.02


@dataclass(frozen=True, kw_only=True)
class Case:
    """One network of the study.

    Attributes:
        spec: Data, architecture with batch normalisation, recipe, seed.
        normalization: "batch"; "ghost" and "population", which emulate the statistics of another batch size; "weight",
            "weight_mean_only", "weight_variance_only"; or "none".
        emulated_size: Of "ghost": samples a ghost batch; of "population": the batch size whose gamma decay is added,
            0 for none.
        only_in: Name of the one layer that is normalised; "" for all.
        pixels_averaged: Side of the squares of pixels that are averaged to one.
    """

    spec: Spec
    normalization: str = "batch"
    emulated_size: int = 0
    only_in: str = ""
    pixels_averaged: int = 1

    @property
    def id(self) -> str:
        """First 16 digits of the hash of all settings."""
        facts = [self.spec.id, self.normalization, self.emulated_size, self.only_in, self.pixels_averaged]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def batch_size(self) -> int:
        """Samples a step."""
        return self.spec.training.batch_size


def seeds(setting: Setting) -> range:
    """Seeds of every method: initial weights and order of samples; the same for all, so that they can be paired."""
    return range(setting.choose(smoke=2, small=5, paper=5))


def batch_sizes(setting: Setting) -> tuple[int, int]:
    """The normal and the large batch size (the paper's: 128 and 1,024)."""
    return setting.choose(smoke=(10, 30), small=(16, 128), paper=(128, 1024))


def _images(setting: Setting) -> DataSpec:
    return DataSpec(
        name=setting.choose(smoke="digits", small="cifar10", paper="cifar10"),
        train_size=setting.choose(smoke=60, small=1024, paper=None),
        test_size=setting.choose(smoke=40, small=1000, paper=None),
    )


def recipe(setting: Setting, batch_size: int, epochs: int) -> TrainingSpec:
    """SGD of the paper's section 5, see the head of this file.

    Args:
        setting: Says the scale.
        batch_size: Samples a step.
        epochs: Number of epochs.

    Returns:
        The settings.
    """
    steps = math.ceil(PAPER_TRAINING_SAMPLES / batch_size)
    short = FALL_OVER_A_SHORT_RUN ** (1 / epochs)
    return TrainingSpec(
        optimizer="sgd",
        learning_rate=setting.choose(smoke=0.06, small=0.06, paper=0.1) * batch_size / 128,
        momentum=0.9,
        batch_size=batch_size,
        epochs=epochs,
        schedule="exponential",
        schedule_factor=setting.choose(smoke=short, small=short, paper=(1 - 1e-4) ** steps),
    )


def resnet(setting: Setting, batch_size: int, *, dropout: float = 0.0, **method: Any) -> list[Case]:
    """ResNet-18 with one method, a case a seed.

    Args:
        setting: Says the scale.
        batch_size: Samples a step.
        dropout: After every residual block.
        **method: Settings of `Case`.

    Returns:
        The cases.
    """
    options: dict[str, Any] = {"width_multiplier": setting.choose(smoke=1 / 32, small=1 / 8, paper=1.0)}
    options |= {"dropout": dropout} if dropout else {}
    training = recipe(setting, batch_size, setting.choose(smoke=2, small=12, paper=100))
    if method.get("normalization") == "weight":
        slower = setting.choose(smoke=1.0, small=0.3, paper=1.0)
        training = replace(training, learning_rate=slower * training.learning_rate)
    spec = Spec(
        data=_images(setting),
        network=NetworkSpec(name="resnet18", options=options, initialization="he_normal"),
        training=training,
    )
    return _over_seeds(setting, spec, method)


def small_cnn(setting: Setting, batch_size: int, *, epochs: int | None = None, **method: Any) -> list[Case]:
    """The CNN of six layers with one method, a case a seed.

    Args:
        setting: Says the scale.
        batch_size: Samples a step.
        epochs: None takes the scale's.
        **method: Settings of `Case`.

    Returns:
        The cases.
    """
    spec = Spec(
        data=_images(setting),
        network=NetworkSpec(
            name="conv6",
            options={"width_multiplier": setting.choose(smoke=1 / 16, small=1 / 4, paper=1.0)},
            initialization="he_normal",
        ),
        training=recipe(setting, batch_size, epochs or setting.choose(smoke=3, small=16, paper=100)),
    )
    return _over_seeds(setting, spec, method)


def digits(setting: Setting, network: str, options: dict[str, Any], pixels_averaged: int = 1) -> list[Case]:
    """Networks on scikit-learn's digits, on which batch-norm and population-norm loss are compared."""
    spec = Spec(
        data=DataSpec(train_size=setting.choose(smoke=100, small=1000, paper=None), test_size=100),
        network=NetworkSpec(name=network, options=options, initialization="he_normal"),
        training=TrainingSpec(
            learning_rate=0.05, momentum=0.9, batch_size=50, epochs=setting.choose(smoke=1, small=5, paper=5)
        ),
    )
    return [Case(spec=spec.replace({"seed": s}), pixels_averaged=pixels_averaged) for s in seeds(setting)]


def folder(setting: Setting, images: str, batch_size: int, **method: Any) -> list[Case]:
    """Down-sampled ImageNet's protocol on a folder of images: the rate falls to a tenth at 30, 60 and 90 of 100 epochs.

    Args:
        setting: Says the scale.
        images: The folder, as data set "image_folder" takes it.
        batch_size: Samples a step.
        **method: Settings of `Case`.

    Returns:
        The cases, of two seeds.
    """
    epochs = setting.choose(smoke=2, small=7, paper=100)
    side = setting.choose(smoke=8, small=16, paper=32)
    changes: dict[str, Any] = {
        "data": DataSpec(name="image_folder", options={"folder": images, "side": side}).to_dict(),
        "training.epochs": epochs,
        "training.schedule": "step",
        "training.schedule_factor": 0.1,
        "training.schedule_epochs": max(1, round(0.3 * epochs)),
    }
    found = resnet(setting, batch_size, **method)[:2]
    return [replace(case, spec=case.spec.replace(changes), pixels_averaged=1) for case in found]


def _over_seeds(setting: Setting, spec: Spec, method: dict[str, Any]) -> list[Case]:
    pixels = setting.choose(smoke=1, small=2, paper=1)
    return [Case(spec=spec.replace({"seed": seed}), pixels_averaged=pixels, **method) for seed in seeds(setting)]
