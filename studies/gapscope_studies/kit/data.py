"""Data sets for studies: image folders, quantiles as classes, and label noise."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from gapscope.base.files import write_atomically
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.data import Problem, inject_label_noise


def write_images(samples: Samples, folder: Path) -> None:
    """Write images [n, c, h, w] in [0, 1] as folder/CLASS/NUMBER.png, of grey or RGB pixels."""
    pixels = (samples.inputs * 255).round().byte().movedim(1, -1).numpy()
    for number, (image, label) in enumerate(zip(pixels, samples.y.tolist(), strict=True)):
        target = folder / f"{label:03d}"
        target.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(content, format="PNG")
        write_atomically(target / f"{number:05d}.png", content.getvalue(), durable=False)


def image_folder(folder: Path, make: Callable[[], Problem], most: int | None = None) -> Path:
    """Write at most `most` images per split to `train` and `val`, once, and return the folder."""
    if not (folder / "complete").exists():
        problem = make()
        for split, samples in (("train", problem.train), ("val", problem.test)):
            write_images(samples.subset(torch.arange(len(samples))[:most]), folder / split)
        write_atomically(folder / "complete", "")
    return folder


def quartile_classes(problem: Any) -> Problem:
    """Return a regression target as four classes, cut at the quartiles of the training split."""
    cuts = problem.train.targets[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
    train, test = (replace(s, targets=torch.bucketize(s.targets[:, 0], cuts)) for s in (problem.train, problem.test))
    return Problem(problem.name, "classification", train, test, 4)


def shift_labels(labels: Tensor, rate: float, n_classes: int, generator: torch.Generator) -> Tensor:
    """Change a fraction of the labels to the next class (pair-wise noise)."""
    rows = torch.randperm(len(labels), generator=generator)[: round(rate * len(labels))]
    noisy = labels.clone()
    noisy[rows] = (labels[rows] + 1) % n_classes
    return noisy


def noisy_subset(problem: Any, n: int, n_test: int, noise: float, seed: int, *, pairwise: bool = False) -> Problem:
    """Return n random training samples with label noise, and the first test samples."""
    order = torch.randperm(len(problem.train), generator=make_generator(seed, "training subset"))[:n]
    train, test = problem.train.subset(order), problem.test.subset(torch.arange(min(n_test, len(problem.test))))
    corrupt = shift_labels if pairwise else inject_label_noise
    labels = corrupt(train.targets, noise, problem.n_outputs, make_generator(seed, "label noise"))
    return Problem(problem.name, "classification", replace(train, targets=labels), test, problem.n_outputs)
