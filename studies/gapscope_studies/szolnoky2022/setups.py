"""What is trained: networks on corrupted data in the middle scenario in which every method is tuned.

The paper's appendix, which holds its settings, could not be had: everything here but the names of data and networks,
the noise levels, the 3,000 samples of Table 1 and plain gradient descent is our own choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gapscope.base.specs import DataSpec, NetworkSpec, Spec, TrainingSpec
from gapscope_studies.kit.study import Setting
from gapscope_studies.szolnoky2022.methods import (
    ADAM,
    DROPOUT,
    LOG_DETERMINANT,
    LOSS_GRADIENT,
    SIMILARITY,
    UNREGULARISED,
    WEIGHT,
    Method,
    cyclical,
)

# Data sets that are drawn anew from a seed of their own.
GENERATED = ("two_circles",)
FIVE_METHODS = (UNREGULARISED, DROPOUT, WEIGHT, LOSS_GRADIENT, SIMILARITY)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A network on data, the methods that are compared on it, and how they are tuned.

    Attributes:
        base: The unregularised network in the middle scenario.
        methods: The methods, "Unregularised" first.
        n_strengths: Strengths that are tried of each method.
        folds: Folds of the cross-validation, each a part of the training samples that is held out.
        folds_scored: How many of them are held out in turn.
        runs: Networks a method and scenario, with their own training samples, corruption and initial weights.
        metric: "accuracy" or "loss", of the test split.
        chance: Metric that a diverged network is given: that of guessing, in per cent; NaN for losses.
    """

    base: Spec
    methods: tuple[Method, ...]
    n_strengths: int
    folds: int
    folds_scored: int
    runs: int
    metric: str = "accuracy"
    chance: float = 10.0

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric is a loss."""
        return self.metric == "loss"

    def with_seed(self, seed: int) -> Spec:
        """The base with other training samples, corruption, initial weights and order of samples."""
        changes: dict[str, Any] = {"seed": seed, "data.seed": seed}
        if self.base.data.name in GENERATED:
            changes["data.options.seed"] = seed
        return self.base.replace(changes)


def _images(setting: Setting, name: str, *, small: int, paper: int, noise: float = 0.5) -> DataSpec:
    """Blurred training images with wrong labels, clean test images; the digits of scikit-learn at smoke scale."""
    return DataSpec(
        name=setting.choose(smoke="digits", small=name, paper=name),
        train_size=setting.choose(smoke=60, small=small, paper=paper),
        test_size=setting.choose(smoke=50, small=1000, paper=None),
        blur_severity=1,
        label_noise=noise,
    )


def _sgd(setting: Setting, *, small: int, learning_rate: float = 0.1) -> TrainingSpec:
    """Plain gradient descent on mini-batches of 50; at paper scale smaller steps and more of them."""
    return TrainingSpec(
        learning_rate=setting.choose(smoke=learning_rate, small=learning_rate, paper=0.1),
        batch_size=setting.choose(smoke=15, small=50, paper=50),
        epochs=setting.choose(smoke=4, small=small, paper=200),
    )


def _effort(setting: Setting) -> dict[str, Any]:
    """Strengths, folds and runs: few at small scale (one fold of three held out), more at paper scale."""
    return {
        "n_strengths": setting.choose(smoke=2, small=5, paper=10),
        "folds": setting.choose(smoke=2, small=3, paper=5),
        "folds_scored": setting.choose(smoke=2, small=1, paper=5),
        "runs": setting.choose(smoke=2, small=3, paper=10),
    }


def lenet5(setting: Setting) -> Setup:
    """LeNet-5 on corrupted MNIST (Table 1): 3,000 samples, half of the labels wrong."""
    network = NetworkSpec(name="lenet5")
    if setting.scale == "smoke":
        network = NetworkSpec(name="fully_connected", options={"width": 16})
    return Setup(
        base=Spec(
            data=_images(setting, "mnist", small=3000, paper=3000),
            network=network,
            training=_sgd(setting, small=40, learning_rate=0.3),
        ),
        methods=FIVE_METHODS,
        **_effort(setting),
    )


def fully_connected(setting: Setting) -> Setup:
    """Two hidden layers on the same data (the fully connected variant); at small scale 1,000 samples."""
    width = setting.choose(smoke=12, small=100, paper=300)
    return Setup(
        base=Spec(
            data=_images(setting, "mnist", small=1000, paper=3000),
            network=NetworkSpec(name="fully_connected", options={"width": width}),
            training=_sgd(setting, small=40, learning_rate=0.3),
        ),
        methods=FIVE_METHODS,
        **_effort(setting),
    )


def circles(setting: Setting) -> Setup:
    """Two circles with noise, a tanh network trained by Adam on the whole data at once (Fig. 2)."""
    return Setup(
        base=Spec(
            data=DataSpec(name="two_circles", options={"noise": 0.2, "test_size": 1000}),
            network=NetworkSpec(
                name="fully_connected",
                options={"width": setting.choose(smoke=8, small=50, paper=50), "activation": "tanh"},
            ),
            training=TrainingSpec(
                optimizer="adam",
                learning_rate=setting.choose(smoke=0.01, small=0.02, paper=0.01),
                batch_size=100,
                epochs=setting.choose(smoke=6, small=250, paper=2000),
            ),
        ),
        methods=(*FIVE_METHODS, LOG_DETERMINANT),
        chance=50.0,
        **_effort(setting) | {"folds_scored": setting.choose(smoke=2, small=3, paper=5)},
    )


def alexnet(setting: Setting) -> Setup:
    """AlexNet without dropout on corrupted MNIST (Fig. 3); at small scale an eighth as wide, 1,000 samples.

    Its gradients are large (tr K / nC is some hundreds at first), so that the penalty on them begins at less.

    Args:
        setting: Says the scale.

    Returns:
        The setup.
    """
    narrow = {"width_multiplier": 0.125, "head_width": 64}
    options = setting.choose(smoke={"width": 12}, small=narrow, paper={})
    network = NetworkSpec(
        name="alexnet", options={**options, "dropout": 0.0}, initialization="he_uniform"
    ) if setting.scale != "smoke" else NetworkSpec(name="fully_connected", options=options)  # fmt: skip
    return Setup(
        base=Spec(
            data=_images(setting, "mnist", small=1000, paper=3000),
            network=network,
            training=_sgd(setting, small=60, learning_rate=0.05),
        ),
        methods=(UNREGULARISED, DROPOUT, WEIGHT.between(0.001, 0.1), LOSS_GRADIENT, SIMILARITY.between(1e-5, 1e-2)),
        **_effort(setting),
    )


def resnet20(setting: Setting) -> Setup:
    """ResNet-20 with group normalisation on corrupted Fashion-MNIST (Fig. 4); at small scale a quarter as wide, 500."""
    options = setting.choose(smoke={"width": 12}, small={"width_multiplier": 0.25}, paper={})
    network = NetworkSpec(
        name="resnet20", options={**options, "normalization": "group"}
    ) if setting.scale != "smoke" else NetworkSpec(name="fully_connected", options=options)  # fmt: skip
    training = _sgd(setting, small=48)
    return Setup(
        base=Spec(
            data=_images(setting, "fashion_mnist", small=500, paper=3000),
            network=network,
            training=training,
        ),
        methods=(
            UNREGULARISED,
            DROPOUT,
            WEIGHT.between(3e-5, 3e-3),
            LOSS_GRADIENT,
            SIMILARITY.between(1e-4, 1e-2),
            ADAM,
            cyclical(training.epochs // 2),
        ),
        **_effort(setting),
    )


def _keypoints(setting: Setting, network: NetworkSpec, *, learning_rate: float = 1e-3) -> Setup:
    """Blurred faces with noise of standard deviation 10 pixels on the coordinates, trained by Adam.

    Coordinates are measured from their means over the training samples: else all of a short training goes into moving
    every output from 0 to about 48. Ranges of strengths follow the size of the loss.

    Args:
        setting: Says the scale.
        network: The network.
        learning_rate: Of Adam.

    Returns:
        The setup.
    """
    faces = setting.choose(smoke=20, small=300, paper=1498)
    drawn = {"n": faces, "test_size": setting.choose(smoke=10, small=200, paper=500)}
    return Setup(
        base=Spec(
            data=DataSpec(
                name=setting.choose(smoke="drawn_faces", small="drawn_faces", paper="facial_keypoints"),
                options=setting.choose(smoke=drawn, small=drawn, paper={}),
                train_size=setting.choose(smoke=20, small=300, paper=None),
                blur_severity=1,
                target_noise=10.0,
                center_targets=True,
            ),
            network=network,
            training=TrainingSpec(
                optimizer="adam",
                learning_rate=learning_rate,
                epochs=setting.choose(smoke=2, small=60, paper=300),
            ),
        ),
        methods=(
            UNREGULARISED,
            DROPOUT,
            WEIGHT.between(0.003, 0.3),
            LOSS_GRADIENT.between(1e-6, 1e-3),
            SIMILARITY.between(0.001, 1.0),
        ),
        **_effort(setting),
        metric="loss",
        chance=float("nan"),
    )


def keypoints_lenet5(setting: Setting) -> Setup:
    """LeNet-5 on faces (Table 2)."""
    options = setting.choose(smoke={"width_multiplier": 0.2}, small={"width_multiplier": 0.5}, paper={})
    return _keypoints(setting, NetworkSpec(name="lenet5", options=options))


def keypoints_fully_connected(setting: Setting) -> Setup:
    """Two hidden layers on faces (Table A.2)."""
    width = setting.choose(smoke=8, small=100, paper=300)
    return _keypoints(setting, NetworkSpec(name="fully_connected", options={"width": width}))
