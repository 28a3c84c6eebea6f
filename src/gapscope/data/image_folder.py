"""Image-folder data sets: one folder per class, as ImageNet is usually unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from torch import Tensor

from gapscope.base.errors import UnreadableFile, check_range
from gapscope.base.samples import Samples
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_SPLITS = {"train": ("train",), "test": ("val", "test")}
IMAGE_FOLDER = FileLayout("image_folder", ("images",), _SPLITS, of_folders=True)


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pixels(path: Path, side: int) -> Tensor:
    """Read an image as uint8 [3, side, side], scaled and cropped to the middle."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(image.convert("RGB"), (side, side), method=Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UnreadableFile(f"{path} must be a whole image; reading it failed: {error}. Remove it.") from None
    return torch.from_numpy(numpy.array(square)).permute(2, 0, 1)


def _samples(folder: Path, class_names: Sequence[str], side: int) -> Samples:
    """List the images below a folder, taking the classes in turn."""
    files = []
    for label, name in enumerate(class_names):
        result = sorted(path for path in (folder / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        if not result:
            raise UnreadableFile(
                f"{folder / name} must hold at least one image ({', '.join(SUFFIXES)}); it holds none. Remove the "
                "folder, or add images."
            )
        files += [(rank, label, path) for rank, path in enumerate(result)]
    files.sort(key=lambda entry: entry[:2])
    inputs = torch.empty(len(files), 3, side, side)
    for row, (_, _, path) in enumerate(files):
        inputs[row] = _pixels(path, side).float().div_(255)
    return Samples(inputs, torch.tensor([label for _, label, _ in files]))


def image_folder(root: str | Path | None = None, *, folder: str = "images", side: int = 32) -> Problem:
    """Load photographs from `folder`/train/CLASS/*.jpg and `folder`/val/CLASS/*.jpg.

    Classes are the folders of `train` in alphabetical order; the test split is `val`, or `test` where there is no
    `val`. The first images of all classes come before the second ones, so that the first samples hold all classes.
    All images are held in memory as float32: the 1.28 million of ImageNet take 63 GB with a side of 64 pixels, and
    770 GB with 224.

    Args:
        folder: Name of the folder below the data root, or an absolute path.
        side: Height and width: an image is scaled and cut to a square in its middle.

    Raises:
        UnreadableFile: The splits have other classes, a class has no image, or an image is damaged.
    """
    check_range("side of image_folder", side, 1)
    paths = locate(replace(IMAGE_FOLDER, folders=(folder,)), root)
    class_names, tested = (_class_names(paths[split]) for split in ("train", "test"))
    if class_names != tested or not class_names:
        other = sorted(set(class_names) ^ set(tested))
        raise UnreadableFile(
            f"{paths['train']} and {paths['test'].name} must hold the same folders, one a class; "
            f"{f'they differ in {len(other)}, first {other[0]}' if other else 'they hold none'}. Add or remove folders."
        )
    train, test = (_samples(paths[split], class_names, side) for split in ("train", "test"))
    return Problem("image_folder", "classification", train, test, len(class_names), tuple(class_names))
