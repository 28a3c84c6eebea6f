"""Measures beside the programs of the 2020 competition's winners, in TensorFlow; rows for `peers.py`.

A small network of convolutions is trained in PyTorch and copied into Keras, so that both programs see one function.
The programs are not packages. Put their functions into folders on PYTHONPATH, with tensorflow-cpu and tf_keras:
`pgdl_first/final.py` (github.com/parthnatekar/pgdl: `complexityMixup`), `pgdl_second/complexity.py`
(github.com/sumukhaithal6/pgdl) and `pgdl_third/complexity.py` (github.com/cadurosar/pgdl: `generate_laplacian`,
`smoothness` of its VR).
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

import gapscope as gs
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.measures.representations import label_variation
from gapscope.measures.robustness import augmentation_robustness, mixup_robustness

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # the programs were written for Keras 2
N, SEEDS = 500, range(6)


@lru_cache
def subject() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A network trained on images of ten classes, in [0, 1]."""
    split = gs.load_dataset("cifar10").train
    assert split.targets is not None
    x, y = split.inputs[:4000, :, 8:24, 8:24], split.targets[:4000]
    # as many of each class, since a mean over classes and one over samples are then the same
    chosen = torch.cat([(y == label).nonzero()[: N // 10, 0] for label in range(10)])
    chosen = chosen[torch.randperm(N, generator=torch.Generator().manual_seed(0))]
    x, y = ((x - x.min()) / (x.max() - x.min()))[chosen].contiguous(), y[chosen]
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip
    gs.train(
        network,
        Samples(x, y),
        TrainingSpec(optimizer="adam", learning_rate=0.01, epochs=15, batch_size=50),
    )
    return network.eval(), x, y


@lru_cache
def copied() -> tuple[Any, Any]:
    """The same network in Keras, and its images as a dataset."""
    import tensorflow as tf  # type: ignore[import-not-found]

    network, x, y = subject()
    layers: Any = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", input_shape=(16, 16, 3)), layers.ReLU(),
            layers.Conv2D(24, 3, padding="same"), layers.ReLU(), layers.GlobalAveragePooling2D(), layers.Dense(10),
        ]
    )  # fmt: skip
    weighted = [module for module in network if isinstance(module, nn.Conv2d | nn.Linear)]
    for layer, module in zip(
        [layer for layer in model.layers if layer.weights], weighted, strict=True
    ):
        kernel = module.weight.detach()
        kernel = kernel.permute(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
        assert module.bias is not None
        layer.set_weights([kernel.numpy(), module.bias.detach().numpy()])
    images = x.permute(0, 2, 3, 1).contiguous().numpy()
    assert np.abs(model(images).numpy() - network(x).detach().numpy()).max() < 1e-3
    return model, tf.data.Dataset.from_tensor_slices((images, y.numpy().astype(np.int32)))


def _over_seeds(number: str, ours: list[float], theirs: list[float], note: str) -> dict[str, Any]:
    """Equal where the means over draws are, within 3 standard errors."""
    errors = [
        np.var(values, ddof=1) / len(values) if len(values) > 1 else 0.0
        for values in (ours, theirs)
    ]
    return {
        "number": number, "ours": float(np.mean(ours)), "theirs": float(np.mean(theirs)),
        "tolerance": 3 * math.sqrt(sum(errors)), "note": f"{note}; mean over {len(SEEDS)} seeds, equal within 3 "
        "standard errors",
    }  # fmt: skip


def _streams() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in SEEDS]


def pgdl_first_place() -> list[dict[str, Any]]:
    """Predictions on mixtures."""
    from pgdl_first.final import complexityMixup  # type: ignore[import-not-found]

    (network, x, y), (model, data) = subject(), copied()
    ours = [
        float(mixup_robustness(network, x, y, generator=stream)["loss"]) for stream in _streams()
    ]
    orders = [data.shuffle(N, seed=seed, reshuffle_each_iteration=False) for seed in SEEDS]
    theirs = [float(complexityMixup(model, order)) for order in orders]
    return [
        _over_seeds(
            "mixup_robustness.loss",
            ours,
            theirs,
            "they mix all pairs of a class within batches of 100",
        )
    ]


def pgdl_second_place() -> list[dict[str, Any]]:
    """Predictions on changed images."""
    import tensorflow as tf  # type: ignore[import-not-found]
    from pgdl_second.complexity import complexity  # type: ignore[import-not-found]

    (network, x, _), (model, data) = subject(), copied()
    np.int = int  # type: ignore[attr-defined]  # which their numpy had
    ours, theirs = [], []
    for seed, stream in zip(SEEDS, _streams(), strict=True):
        ours.append(float(augmentation_robustness(network, x, generator=stream)["penalty"]))
        np.random.seed(seed)
        tf.random.set_seed(seed)
        theirs.append(-float(complexity(model, data)) / N)
    note = "minus their score over the number of samples; they draw one factor of the saturation for a batch of 64"
    return [_over_seeds("augmentation_robustness.penalty", ours, theirs, note)]


def pgdl_third_place() -> list[dict[str, Any]]:
    """Labels of near neighbours."""
    import tensorflow as tf  # type: ignore[import-not-found]
    from pgdl_third.complexity import generate_laplacian, smoothness  # type: ignore[import-not-found]

    network, x, y = subject()
    features = network[:-1](x).detach()
    laplacian = generate_laplacian(tf.constant(features.numpy()))
    one_hot = tf.one_hot(y.numpy(), 10)
    edges = float(tf.linalg.trace(laplacian))
    theirs = float(smoothness(laplacian, one_hot)) * 2 * 50 * 1000 / edges
    return [
        {"number": "graph_label_variation.features", "ours": label_variation(features, y, 20), "theirs": theirs,
         "tolerance": 1e-4 * theirs, "note": "their variation of labels over the weight of all edges"}
    ]  # fmt: skip
