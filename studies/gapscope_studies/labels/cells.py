"""Data sets with planted label errors: samples, network and kind of noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.data import inject_label_noise, load_dataset
from gapscope_studies.kit.data import shift_labels

KINDS = ("symmetric", "pair-wise", "instance-dependent", "class-similar")
RATES = (0.05, 0.1, 0.2)
WIDE: tuple[str, dict[str, Any]] = ("fully_connected", {"n_hidden": 2, "width": 128})
# name -> source of the samples, their number, and the network that is trained on them
IMAGES: dict[str, tuple[str, int, tuple[str, dict[str, Any]]]] = {
    "digits": ("digits", 600, WIDE),
    "MNIST": ("mnist", 600, WIDE),
    "Fashion-MNIST": ("fashion_mnist", 600, ("lenet5", {})),
    "CIFAR-10": ("cifar10", 600, ("small_cnn", {"width_multiplier": 0.25})),
}
TABLES = {
    "breast cancer": ("breast_cancer", 569, WIDE),
    "wine": ("wine", 178, WIDE),
    "California thirds": ("california_housing", 800, WIDE),
    "concrete thirds": ("concrete", 700, WIDE),
}
DATASETS = IMAGES | TABLES


def clean_samples(name: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return samples with published labels, and regression targets as three equal classes."""
    source, n, _ = DATASETS[name]
    if source in ("breast_cancer", "wine"):
        from sklearn import datasets

        table = getattr(datasets, f"load_{source}")()
        x, y = torch.as_tensor(table.data, dtype=torch.float32), torch.as_tensor(table.target)
        x = (x - x.mean(0)) / x.std(0)
    else:
        train = load_dataset(source).train
        x, y = train.inputs, train.y
        if y.is_floating_point():
            y = y.squeeze(1)
            y = torch.bucketize(y, y.quantile(torch.tensor([1 / 3, 2 / 3], dtype=y.dtype)))
    rows = torch.randperm(len(x), generator=generator)[:n]
    return x[rows], y[rows].long()


def instance_dependent(
    x: Tensor, labels: Tensor, rate: float, n_classes: int, generator: torch.Generator
) -> Tensor:
    """Corrupt labels to classes that depend on the sample (Xia et al. 2020, arXiv:2006.07836).

    Probabilities are normal about the rate, clipped to [0, 1]; odds of the classes are a random linear map.
    """
    x = x.flatten(1)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6) / x.shape[1] ** 0.5
    maps = torch.randn(n_classes, x.shape[1], n_classes, generator=generator)
    odds = torch.stack([row @ maps[int(label)] for row, label in zip(x, labels, strict=True)])
    odds = odds.scatter(1, labels[:, None], -torch.inf).softmax(1)
    errs = torch.rand(len(x), generator=generator) < (
        rate + 0.1 * torch.randn(len(x), generator=generator)
    ).clamp(0, 1)
    return torch.where(errs, torch.multinomial(odds, 1, generator=generator).squeeze(1), labels)


def class_similar(
    x: Tensor, labels: Tensor, rate: float, n_classes: int, generator: torch.Generator
) -> Tensor:
    """Corrupt labels with odds of a nearest-neighbour classifier's confusions, plus 0.1."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    predicted = cross_val_predict(
        KNeighborsClassifier(5), x.flatten(1).numpy(), labels.numpy(), cv=folds
    )
    odds = torch.full((n_classes, n_classes), 0.1)
    odds.index_put_(
        (labels, torch.as_tensor(np.asarray(predicted))), torch.ones(len(labels)), accumulate=True
    )
    odds.fill_diagonal_(0.0)
    rows = torch.randperm(len(labels), generator=generator)[: round(rate * len(labels))]
    noisy = labels.clone()
    noisy[rows] = torch.multinomial(odds[labels[rows]], 1, generator=generator).squeeze(1)
    return noisy


def make_cell(name: str, kind: str, rate: float, seed: int) -> tuple[gs.Samples, Tensor, int]:
    """Return samples with noisy labels, a mask of the wrong ones, and the number of classes."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"{name} {kind} {rate}"))
    x, y = clean_samples(name, generator)
    noise, n_classes = (rate, int(y.max()) + 1, generator), int(y.max()) + 1
    if kind in ("symmetric", "pair-wise"):
        noisy = (inject_label_noise if kind == "symmetric" else shift_labels)(y, *noise)
    else:
        noisy = (instance_dependent if kind == "instance-dependent" else class_similar)(
            x, y, *noise
        )
    return gs.Samples(x, noisy), noisy != y, n_classes


def make_network(name: str, samples: gs.Samples, n_classes: int, seed: int) -> nn.Module:
    """Build the untrained network of a data set."""
    network, options = DATASETS[name][2]
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial weights"))
    shape = tuple(samples.inputs.shape[1:])
    return gs.build_network(
        network, input_shape=shape, n_outputs=n_classes, generator=generator, **options
    )
