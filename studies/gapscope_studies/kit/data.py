"""Data sets for studies: completeness, image folders, quantiles as classes, and label noise."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from gapscope.base.errors import DataNotFound
from gapscope.base.files import write_atomically
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.specs import RunSpec
from gapscope.data import Problem, inject_label_noise, load_dataset
from gapscope.data.catalogue import SOURCES


def check_complete(specs: Iterable[RunSpec], root: str | None) -> None:
    """Raise DataNotFound if a data set of these specs is missing or has fewer training samples than they need.

    A spec without `train_size` needs the complete set, whose size the catalogue states.
    """
    needed: dict[str, tuple[RunSpec, int]] = {}
    for spec in specs:
        complete = re.match(
            r"[\d,]+", SOURCES[spec.data.name].sizes if spec.data.name in SOURCES else ""
        )
        most = int(complete.group().replace(",", "")) if complete else 0
        size = most if spec.data.train_size is None else spec.data.train_size
        key = f"{spec.data.name} {sorted(spec.data.options.items())}"
        needed[key] = max(needed.get(key, (spec, 0)), (spec, size), key=lambda pair: pair[1])
    for spec, size in needed.values():
        present = len(load_dataset(spec.data.name, root=root, **spec.data.options).train)
        if present < size:
            raise DataNotFound(
                f"'{spec.data.name}' has {present:,} training samples here; the scale 'paper' needs {size:,}. "
                f"Get the complete set (gapscope data fetch {spec.data.name}), or run --scale small."
            )


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
    train, test = (
        replace(s, targets=torch.bucketize(s.targets[:, 0], cuts))
        for s in (problem.train, problem.test)
    )
    return Problem(problem.name, "classification", train, test, 4)


def shift_labels(labels: Tensor, rate: float, n_classes: int, generator: torch.Generator) -> Tensor:
    """Change a fraction of the labels to the next class (pair-wise noise)."""
    rows = torch.randperm(len(labels), generator=generator)[: round(rate * len(labels))]
    noisy = labels.clone()
    noisy[rows] = (labels[rows] + 1) % n_classes
    return noisy


def noisy_subset(
    problem: Any, n: int, n_test: int, noise: float, seed: int, *, pairwise: bool = False
) -> Problem:
    """Return n random training samples with label noise, and the first test samples."""
    order = torch.randperm(len(problem.train), generator=make_generator(seed, "training subset"))[
        :n
    ]
    train, test = (
        problem.train.subset(order),
        problem.test.subset(torch.arange(min(n_test, len(problem.test)))),
    )
    corrupt = shift_labels if pairwise else inject_label_noise
    labels = corrupt(train.targets, noise, problem.n_outputs, make_generator(seed, "label noise"))
    return Problem(
        problem.name, "classification", replace(train, targets=labels), test, problem.n_outputs
    )
