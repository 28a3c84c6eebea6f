"""Data sets for studies: image folders, quartiles as classes, and wrong labels."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from gapscope.base.files import write_atomically
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.data import Problem, inject_label_noise


def write_images(samples: Samples, folder: Path) -> None:
    """Write images [n, c, h, w] in [0, 1] as folder/CLASS/NUMBER.png, of grey or RGB pixels."""
    assert samples.targets is not None
    pixels = (samples.inputs * 255).round().byte().movedim(1, -1).numpy()
    for number, (image, label) in enumerate(zip(pixels, samples.targets.tolist(), strict=True)):
        target = folder / f"{label:03d}"
        target.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(content, format="PNG")
        write_atomically(target / f"{number:05d}.png", content.getvalue(), durable=False)


def image_folder(folder: Path, make: Callable[[], Problem], most: int | None = None) -> Path:
    """Write a folder of `train` and `val` images once, and return its path.

    The images are those of the problem that `make` gives, `most` or fewer of each split.
    """
    if not (folder / "complete").exists():
        problem = make()
        for split, samples in (("train", problem.train), ("val", problem.test)):
            write_images(samples.subset(torch.arange(len(samples))[:most]), folder / split)
        write_atomically(folder / "complete", "")
    return folder


def quartile_classes(problem: Problem) -> Problem:
    """The regression target as four classes, cut at the quartiles of the training split."""
    train, test = (part.targets for part in (problem.train, problem.test))
    assert train is not None and test is not None
    cuts = train[:, 0].quantile(torch.tensor([0.25, 0.5, 0.75]))
    first = replace(problem.train, targets=torch.bucketize(train[:, 0], cuts))
    second = replace(problem.test, targets=torch.bucketize(test[:, 0], cuts))
    return Problem(problem.name, "classification", first, second, 4)


def noisy_subset(problem: Any, n: int, n_test: int, noise: float, seed: int, *, pairwise: bool = False) -> Problem:
    """Return random training samples, a share with wrong labels, and test samples.

    Wrong labels are any class, or with `pairwise` the next one.
    """
    order = torch.randperm(len(problem.train), generator=make_generator(seed, "training subset"))[:n]
    train, test = problem.train.subset(order), problem.test.subset(torch.arange(min(n_test, len(problem.test))))
    generator = make_generator(seed, "label noise")
    if pairwise:
        wrong = torch.randperm(n, generator=generator)[: round(noise * n)]
        labels = train.targets.clone()
        labels[wrong] = (labels[wrong] + 1) % problem.n_outputs
    else:
        labels = inject_label_noise(train.targets, noise, problem.n_outputs, generator)
    return Problem(problem.name, "classification", replace(train, targets=labels), test, problem.n_outputs)
