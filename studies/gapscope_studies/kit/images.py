"""A data set as folders of images: what stands in for photographs that are not on this machine."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from gapscope.base.files import write_atomically
from gapscope.base.samples import Samples
from gapscope.data import Problem


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
    """A folder of `train` and `val`, written once from the problem that `make` gives, at most so many images each."""
    if not (folder / "complete").exists():
        problem = make()
        for split, samples in (("train", problem.train), ("val", problem.test)):
            write_images(samples.subset(torch.arange(len(samples))[:most]), folder / split)
        write_atomically(folder / "complete", "")
    return folder
