"""Image-folder data sets: one folder per class, as ImageNet is usually unpacked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import UnreadableFile, check_range
from gapscope.base.samples import Samples
from gapscope.base.user_warnings import warn_user
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
NOT_READ = (".gif", ".tif", ".tiff", ".heic", ".avif")
"""Endings of pictures that are not read; files with other endings are no pictures."""
SPLIT_NAMES = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}
"""Names of folders that are parts of the data, and no classes, if they hold folders themselves."""
_SPLITS = {"train": ("train",), "test": ("val", "test")}
IMAGE_FOLDER = FileLayout("image_folder", ("images",), _SPLITS, of_folders=True)


def _is_hidden(path: Path) -> bool:
    """Return whether a name is no data: `.ipynb_checkpoints`, `._photo.jpg` of macOS, `__MACOSX`."""
    return path.name.startswith((".", "__MACOSX"))


def _class_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not _is_hidden(path))


def _image_paths(folder: Path) -> list[Path]:
    """Return the images below a folder, also those that are not read, without hidden ones."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in (*SUFFIXES, *NOT_READ)
        and not any(_is_hidden(folder / part) for part in path.relative_to(folder).parts)
    )


def _is_read(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _as_rgb(image: Image.Image) -> Image.Image:
    """Return an image as 8-bit RGB: 16 bits scaled, transparent pixels on white (on black for a bright silhouette)."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; Pillow would clip all values above 255
        values = numpy.asarray(image, dtype=float)
        return Image.fromarray(
            (values * (255 / 65535)).round().clip(0, 255).astype(numpy.uint8)
        ).convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        # an image of one colour is drawn by its transparency alone
        colours = numpy.asarray(picture.convert("RGB")).reshape(-1, 3)
        is_bright = bool((colours == colours[0]).all() and colours[0].mean() > 127)
        background = Image.new("RGBA", picture.size, "black" if is_bright else "white")
        return Image.alpha_composite(background, picture).convert("RGB")
    return image.convert("RGB")


def _upright(image: Image.Image) -> Image.Image:
    """Return an image as viewers show it, rotated as its EXIF data say."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):  # damaged EXIF data
        return image


def _pixels(path: Path, side: int) -> Tensor:
    """Read an image as uint8 [3, side, side], scaled and cropped to the middle."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            square = ImageOps.fit(
                _as_rgb(_upright(image)), (side, side), method=Image.Resampling.BILINEAR
            )
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UnreadableFile(
            f"{path} must be a complete image; reading it failed: {error}. Replace it."
        ) from None
    return torch.from_numpy(numpy.array(square)).permute(2, 0, 1)


def _check_classes(folder: Path, names: Sequence[str]) -> None:
    """Raise UnreadableFile if a folder has no classes, or parts of the data in their place."""
    if (folder / "pool.json").is_file():
        raise UnreadableFile(
            f"{folder} is a pool of networks; data are needed: one folder of pictures per class, or a table. Pass the "
            "training data."
        )
    if not names:
        raise UnreadableFile(
            f"{folder} must have one folder per class ({folder.name}/CLASS/*.jpg); it has no folders. Move the "
            "pictures of each class into a folder."
        )
    are_splits = all(name.lower() in SPLIT_NAMES for name in names)
    if are_splits and any(_class_names(folder / name) for name in names):
        first = next((name for name in names if name.lower().startswith("train")), names[0])
        raise UnreadableFile(
            f"{folder} must have one folder per class; it has parts of the data ({', '.join(names)}), with the classes "
            f"inside. Pass {folder / first}."
        )


def _paths_of_classes(folder: Path, class_names: Sequence[str]) -> list[list[Path]]:
    """Return the images of each class, and warn of those that are not read.

    Raises:
        UnreadableFile: A class has no image.
    """
    found = [_image_paths(folder / name) for name in class_names]
    paths = [[path for path in each if _is_read(path)] for each in found]
    omitted = [path for each in found for path in each if not _is_read(path)]
    if omitted:
        endings = ", ".join(sorted({path.suffix for path in omitted}))
        warn_user(
            f"{folder}: {pluralize(len(omitted), 'picture')} omitted; {endings} cannot be read. "
            "Convert these files to PNG.",
        )
    if not any(paths):
        raise UnreadableFile(
            f"{folder} must have one folder of pictures per class; no folder in it holds a picture "
            f"({', '.join(SUFFIXES)}). Pass another folder."
        )
    for name, images in zip(class_names, paths, strict=True):
        if not images:
            raise UnreadableFile(
                f"{folder / name} must hold at least one image ({', '.join(SUFFIXES)}); it holds none. Add "
                "images, or move it out of the data if it is no class."
            )
    return paths


def _samples(folder: Path, class_names: Sequence[str], side: int) -> Samples:
    """Read the images below a folder, alternating between the classes."""
    files = [
        (rank, label, path)
        for label, paths in enumerate(_paths_of_classes(folder, class_names))
        for rank, path in enumerate(paths)
    ]
    files.sort(key=lambda entry: entry[:2])
    inputs = torch.empty(len(files), 3, side, side)
    for row, (_, _, path) in enumerate(files):
        inputs[row] = _pixels(path, side).float().div_(255)
    return Samples(inputs, torch.tensor([label for _, label, _ in files]))


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """Pictures in one folder per class, as a data set for any function of gapscope and for torch's DataLoader.

    Item i is (picture, class number): float32 [3, side, side] in [0, 1], read when it is asked for. Pictures of 16 bits
    are scaled, transparent pixels are white, hidden files are skipped.

    Attributes:
        classes: Names of the classes: the folders in alphabetical order.
        samples: Path and class number of every picture, sorted by class and path.

    Args:
        folder: Folder with FOLDER/CLASS/*.jpg (or .png, .bmp, .webp; further folders below a class count).
        side: Height and width in pixels, to which a picture is scaled and cropped in its middle.
        classes: Names of the classes of another folder, whose numbers are used, such as those of the training pictures;
            None for the folders that are found.

    Raises:
        UnreadableFile: There are no folders, they are parts of the data (train, val, test), a class has no picture, or
            a folder is not in `classes`.
    """

    @check_arguments
    def __init__(
        self, folder: str | Path, side: int = 64, classes: Sequence[str] | None = None
    ) -> None:
        """Find the pictures; none is read."""
        check_range("side of ImageFolder", side, 1)
        folder = Path(folder)
        if not folder.is_dir():
            raise UnreadableFile(
                f"{folder} must be a folder with one folder of pictures per class; it is none."
            )
        names = _class_names(folder)
        _check_classes(folder, names)
        unknown = sorted(set(names) - set(names if classes is None else classes))
        if unknown:
            raise UnreadableFile(
                f"{folder} has the classes {', '.join(unknown)}, which the other folder lacks."
            )
        self.side = side
        self.classes = tuple(names if classes is None else classes)
        self.samples = [
            (str(path), self.classes.index(name))
            for name, paths in zip(names, _paths_of_classes(folder, names), strict=True)
            for path in paths
        ]

    def __repr__(self) -> str:
        pictures = pluralize(len(self), "picture")
        classes = pluralize(len(self.classes), "class")
        return f"ImageFolder({pictures} of {classes}, {self.side} x {self.side} pixels)"

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        return _pixels(Path(path), self.side).float().div_(255), label


def has_image_folders(folder: Path) -> bool:
    """Return whether a folder has a folder with a picture in it."""
    return folder.is_dir() and any(
        _is_read(path) for name in _class_names(folder) for path in _image_paths(folder / name)
    )


def image_folder(
    root: str | Path | None = None, *, folder: str = "images", side: int = 32
) -> Problem:
    """Load photographs from `folder`/train/CLASS/*.jpg and `folder`/val/CLASS/*.jpg.

    Classes are the folders of `train` in alphabetical order; the test split is `val`, or `test` without `val`. The
    first images of all classes precede the second ones, so that the first samples contain all classes. All images are
    loaded into memory as float32 in [0, 1] (16-bit images scaled, transparent pixels on white; hidden files are
    skipped): the 1.28 million of ImageNet need 63 GB at 64 x 64 pixels, and 770 GB at 224 x 224.

    Args:
        root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
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
        difference = "they have none"
        if unmatched:
            difference = f"they differ in {len(unmatched)}, first {unmatched[0]}"
        raise UnreadableFile(
            f"{paths['train']} and {paths['test'].name} must have the same folders, one per class; {difference}. "
            "Add or remove folders."
        )
    train, test = (_samples(paths[split], class_names, side) for split in ("train", "test"))
    return Problem(
        "image_folder", "classification", train, test, len(class_names), tuple(class_names)
    )
