"""Image-folder data sets: one folder per class, as ImageNet is usually unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
from torch import Tensor

from gapscope.base.errors import UnreadableFile, check_range
from gapscope.base.samples import Samples
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_SPLITS = {"train": ("train",), "test": ("val", "test")}
IMAGE_FOLDER = FileLayout("image_folder", ("images",), _SPLITS, of_folders=True)


def _is_hidden(path: Path) -> bool:
    """Return whether a name is no data: `.ipynb_checkpoints`, `._photo.jpg` of macOS, `__MACOSX`."""
    return path.name.startswith((".", "__MACOSX"))


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not _is_hidden(path))


def _image_paths(folder: Path) -> list[Path]:
    """Return the images below a folder, without hidden files and those of hidden folders."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(_is_hidden(folder / part) for part in path.relative_to(folder).parts)
    )


def _as_rgb(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit RGB: 16 bits scaled, transparent pixels on white (on black for a bright silhouette)."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; Pillow would clip all values above 255
        values = numpy.asarray(image, dtype=float)
        return Image.fromarray((values * (255 / 65535)).round().clip(0, 255).astype(numpy.uint8)).convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        # an image of one colour is drawn by its transparency alone
        colours = numpy.asarray(picture.convert("RGB")).reshape(-1, 3)
        is_bright = bool((colours == colours[0]).all() and colours[0].mean() > 127)
        background = Image.new("RGBA", picture.size, "black" if is_bright else "white")
        return Image.alpha_composite(background, picture).convert("RGB")
    return image.convert("RGB")


def _pixels(path: Path, side: int) -> Tensor:
    """Read an image as uint8 [3, side, side], scaled and cropped to the middle."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(_as_rgb(image), (side, side), method=Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UnreadableFile(f"{path} must be a complete image; reading it failed: {error}. Remove it.") from None
    return torch.from_numpy(numpy.array(square)).permute(2, 0, 1)


def _samples(folder: Path, class_names: Sequence[str], side: int) -> Samples:
    """Read the images below a folder, alternating between the classes."""
    files = []
    for label, name in enumerate(class_names):
        paths = _image_paths(folder / name)
        if not paths:
            raise UnreadableFile(
                f"{folder / name} must hold at least one image ({', '.join(SUFFIXES)}); it holds none. Remove the "
                "folder, or add images."
            )
        files += [(rank, label, path) for rank, path in enumerate(paths)]
    files.sort(key=lambda entry: entry[:2])
    inputs = torch.empty(len(files), 3, side, side)
    for row, (_, _, path) in enumerate(files):
        inputs[row] = _pixels(path, side).float().div_(255)
    return Samples(inputs, torch.tensor([label for _, label, _ in files]))


def image_folder(root: str | Path | None = None, *, folder: str = "images", side: int = 32) -> Problem:
    """Load photographs from `folder`/train/CLASS/*.jpg and `folder`/val/CLASS/*.jpg.

    Classes are the folders of `train` in alphabetical order; the test split is `val`, or `test` without `val`. The
    first images of all classes precede the second ones, so that the first samples contain all classes. All images are
    loaded into memory as float32 in [0, 1] (16-bit images scaled, transparent pixels on white; hidden files are
    skipped): the 1.28 million of ImageNet need 63 GB at 64 x 64 pixels, and 770 GB at 224 x 224.

    Args:
        folder: Name of the folder below the data root, or an absolute path.
        side: Height and width, to which an image is scaled and cropped in its middle.

    Raises:
        UnreadableFile: The splits have different classes, a class has no image, or an image is corrupted.
    """
    check_range("side of image_folder", side, 1)
    paths = locate(replace(IMAGE_FOLDER, folders=(folder,)), root)
    class_names, test_names = (_class_names(paths[split]) for split in ("train", "test"))
    if class_names != test_names or not class_names:
        unmatched = sorted(set(class_names) ^ set(test_names))
        difference = f"they differ in {len(unmatched)}, first {unmatched[0]}" if unmatched else "they have none"
        raise UnreadableFile(
            f"{paths['train']} and {paths['test'].name} must have the same folders, one per class; {difference}. "
            "Add or remove folders."
        )
    train, test = (_samples(paths[split], class_names, side) for split in ("train", "test"))
    return Problem("image_folder", "classification", train, test, len(class_names), tuple(class_names))
