"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from their official files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from gapscope.base.errors import DataNotFound, UnreadableFile, check_choice
from gapscope.base.samples import Samples
from gapscope.data.file_formats import MAX_BYTES, read_bounded, read_cifar, read_idx
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem

_IDX_FILES = {
    "train_images": ("train-images-idx3-ubyte", "train-images.idx3-ubyte"),
    "train_labels": ("train-labels-idx1-ubyte", "train-labels.idx1-ubyte"),
    "test_images": ("t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"),
    "test_labels": ("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"),
}
MNIST = FileLayout("mnist", ("mnist", "MNIST/raw"), _IDX_FILES)
FASHION_MNIST = FileLayout(
    "fashion_mnist", ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"), _IDX_FILES
)
CIFAR10 = FileLayout(
    "cifar10",
    ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    {"train_1": ("data_batch_1.bin",), "test": ("test_batch.bin",)},
    {f"train_{i}": (f"data_batch_{i}.bin",) for i in range(2, 6)},
)
CIFAR100 = FileLayout(
    "cifar100",
    ("cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"),
    {"train": ("train.bin",), "test": ("test.bin",)},
    {"fine": ("fine_label_names.txt",), "coarse": ("coarse_label_names.txt",)},
)
_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_PHOTOGRAPHS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def _image_samples(pixels: Tensor, labels: Tensor) -> Samples:
    return Samples(pixels.float().div_(255), labels.long())


def _idx_samples(images_path: Path, labels_path: Path, n_classes: int) -> Samples:
    images = read_idx(images_path, dimensions=3)
    labels = read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise UnreadableFile(
            f"{images_path} and {labels_path.name} must hold one label per image; they hold {len(images):,} images "
            f"and {len(labels):,} labels. Fetch both again."
        )
    if int(labels.max()) >= n_classes:
        raise UnreadableFile(
            f"{labels_path} must hold labels 0 to {n_classes - 1}; it holds {int(labels.max())}. Is it another file?"
        )
    return _image_samples(images.unsqueeze(1), labels)


def _idx_problem(
    layout: FileLayout, root: str | Path | None, class_names: tuple[str, ...]
) -> Problem:
    paths = locate(layout, root)
    train, test = (
        _idx_samples(paths[f"{split}_images"], paths[f"{split}_labels"], len(class_names))
        for split in ("train", "test")
    )
    return Problem(layout.source, "classification", train, test, len(class_names), class_names)


def mnist(root: str | Path | None = None) -> Problem:
    """Load MNIST: handwritten digits [n, 1, 28, 28]."""
    return _idx_problem(MNIST, root, _DIGITS)


def fashion_mnist(root: str | Path | None = None) -> Problem:
    """Load Fashion-MNIST: clothes [n, 1, 28, 28]."""
    return _idx_problem(FASHION_MNIST, root, _CLOTHES)


def cifar10(root: str | Path | None = None) -> Problem:
    """Load CIFAR-10: photographs of ten classes [n, 3, 32, 32] (shorter files are accepted).

    Raises:
        DataNotFound: A training file is missing, but a later one exists.
    """
    paths = locate(CIFAR10, root)
    numbers = [i for i in range(1, 6) if f"train_{i}" in paths]
    if numbers != list(range(1, len(numbers) + 1)):
        raise DataNotFound(
            f"{paths['train_1'].parent} must hold data_batch_1.bin and so on without a gap; it holds the numbers "
            f"{numbers}. Run `gapscope data fetch cifar10`."
        )
    parts = [read_cifar(paths[f"train_{i}"], labels_each=1) for i in numbers]
    train = _image_samples(
        torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])[:, 0]
    )
    pixels, labels = read_cifar(paths["test"], labels_each=1)
    return Problem(
        "cifar10", "classification", train, _image_samples(pixels, labels[:, 0]), 10, _PHOTOGRAPHS
    )


def _class_names(path: Path | None, n_classes: int) -> tuple[str, ...]:
    """Return the first names in a file, or none without a file."""
    if path is None:
        return ()
    names = read_bounded(path, MAX_BYTES).decode("utf-8", errors="replace").split()
    if len(names) < n_classes:
        raise UnreadableFile(
            f"{path} must name at least the {n_classes} classes of the labels; it names {len(names)}. Fetch it again."
        )
    return tuple(names[:n_classes])


def cifar100(root: str | Path | None = None, *, labels: str = "fine") -> Problem:
    """Load CIFAR-100: photographs of a hundred classes [n, 3, 32, 32].

    The number of outputs is the largest label of both splits plus 1: 100 (or 20 coarse ones) for the official files,
    fewer for files with the first classes only.

    Args:
        root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
        labels: "fine" (100 classes) or "coarse" (20 groups of them).
    """
    check_choice("labels of cifar100", labels, ("fine", "coarse"))
    paths = locate(CIFAR100, root)
    column = 0
    if labels == "fine":
        column = 1
    splits = {}
    for split in ("train", "test"):
        pixels, coarse_and_fine = read_cifar(paths[split], labels_each=2)
        splits[split] = _image_samples(pixels, coarse_and_fine[:, column])
    n_outputs = 1 + max(int(samples.targets.max()) for samples in splits.values())
    names = _class_names(paths.get(labels), n_outputs)
    return Problem("cifar100", "classification", splits["train"], splits["test"], n_outputs, names)
