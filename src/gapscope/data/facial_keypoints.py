"""Kaggle's Facial Keypoints Detection: 96 x 96 faces with 15 points each, as rows of text.

Not pandas: its reader has no bound on the length of a line, and would leave the 9,216 pixels of a cell to us as text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from gapscope.base.errors import UnreadableFile, check_choice
from gapscope.base.samples import Samples
from gapscope.data.file_formats import open_maybe_gzip
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem, split_indices

SIDE = 96
KEYPOINTS = (
    "left_eye_center",
    "right_eye_center",
    "left_eye_inner_corner",
    "left_eye_outer_corner",
    "right_eye_inner_corner",
    "right_eye_outer_corner",
    "left_eyebrow_inner_end",
    "left_eyebrow_outer_end",
    "right_eyebrow_inner_end",
    "right_eyebrow_outer_end",
    "nose_tip",
    "mouth_left_corner",
    "mouth_right_corner",
    "mouth_center_top_lip",
    "mouth_center_bottom_lip",
)
COORDINATES = tuple(f"{keypoint}_{axis}" for keypoint in KEYPOINTS for axis in "xy")
HEADER = ",".join((*COORDINATES, "Image"))
FACIAL_KEYPOINTS = FileLayout(
    "facial_keypoints",
    ("facial_keypoints", "facial-keypoints", "facial-keypoints-detection"),
    {"table": ("training.csv",)},
)
_MOST_LINE_BYTES = 65_536
_MOST_ROWS = 50_000


def _coordinates(path: Path, number: int, cells: list[bytes]) -> list[float]:
    try:
        values = [float(cell) if cell.strip() else np.nan for cell in cells]
    except ValueError as error:
        raise UnreadableFile(
            f"{path} must hold a number or nothing for every coordinate; line {number}: {error}. Fetch it again."
        ) from None
    if any(np.isinf(value) for value in values):
        raise UnreadableFile(f"{path} must hold finite coordinates; line {number} holds an infinite one. Delete it.")
    return values


def _pixels(path: Path, number: int, text: bytes) -> np.ndarray:
    strange = text.translate(None, b"0123456789 ")
    values = np.empty(0) if strange else np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" ")
    if len(values) != SIDE * SIDE or int(values.max()) > 255:
        got = f"the characters {strange[:20]!r}" if strange else f"{len(values)} numbers"
        if len(values) == SIDE * SIDE:
            got = f"the number {int(values.max())}"
        raise UnreadableFile(
            f"{path} must hold {SIDE * SIDE} pixels 0 to 255 in every row; line {number} holds {got}. Fetch it again."
        )
    return values.astype(np.uint8)


def _row(path: Path, number: int, line: bytes) -> tuple[list[float], np.ndarray]:
    cells = line.rstrip(b"\r\n").split(b",")
    if len(cells) != len(COORDINATES) + 1:
        raise UnreadableFile(
            f"{path} must have {len(COORDINATES)} coordinates and an image in every row; line {number} has "
            f"{len(cells)} cells. Fetch it again."
        )
    return _coordinates(path, number, cells[:-1]), _pixels(path, number, cells[-1])


def read_facial_keypoints(
    path: str | Path, *, missing: str = "drop"
) -> tuple[UInt8[Tensor, "n 1 96 96"], Float32[Tensor, "n 30"]]:
    """Read images and keypoints from a file in the format of Kaggle's training.csv.

    The first line names the 30 coordinates, then "Image"; every other line holds 30 numbers in pixels, nothing where a
    point is unknown, and 9,216 grey values separated by blanks. At most 50,000 rows are read.

    Args:
        missing: "drop" omits rows with an unknown coordinate, "keep" keeps them, with NaN.

    Returns:
        Pixels 0 to 255, and coordinates in the order of `COORDINATES`: x to the right and y down, in pixels from the
        centre of the upper left one.

    Raises:
        InvalidInput: missing is neither.
        UnreadableFile: Another header, or a row that is cut off or holds anything else.
    """
    check_choice("missing of read_facial_keypoints", missing, ("drop", "keep"))
    path = Path(path)
    coordinates, images = [], []
    with open_maybe_gzip(path) as file:
        header = file.readline(_MOST_LINE_BYTES).strip()
        if header != HEADER.encode():
            raise UnreadableFile(
                f"{path} must begin with the header of Kaggle's training.csv ({HEADER[:40]}...); it begins with "
                f"{header[:40]!r}. Is it another file?"
            )
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 2):
            if number > _MOST_ROWS + 1:
                raise UnreadableFile(f"{path} must hold at most {_MOST_ROWS:,} rows; it holds more. Split it.")
            values, pixels = _row(path, number, line)
            if missing == "keep" or not np.isnan(values).any():
                coordinates.append(values)
                images.append(pixels)
    pixels = np.array(images, dtype=np.uint8).reshape(-1, 1, SIDE, SIDE)
    return torch.from_numpy(pixels), torch.tensor(coordinates, dtype=torch.float32).reshape(-1, len(COORDINATES))


def _with_incomplete(train: Samples, images: Tensor, keypoints: Tensor) -> Samples:
    """Add the incomplete rows, with missing coordinates set to the means."""
    assert train.targets is not None
    known = torch.cat((train.targets, keypoints))
    filled = torch.where(keypoints.isnan(), known.nanmean(0), keypoints)
    return Samples(torch.cat((train.inputs, images)), torch.cat((train.targets, filled)))


def facial_keypoints(
    root: str | Path | None = None, *, missing: str = "drop", test_fraction: float = 0.3, split_seed: int = 0
) -> Problem:
    """Faces [n, 1, 96, 96] in [0, 1] with 30 coordinates in pixels, from training.csv.

    Kaggle's own test images have no public keypoints, so the complete rows of training.csv (2,140 of 7,049) are split.
    The test split is the same for both values of `missing`.

    Args:
        missing: "drop" omits rows with unknown coordinates; "mean" adds them to the training split, each unknown
            coordinate set to the mean of the known ones there.
        test_fraction: Fraction of the complete rows to test on, see `gapscope.data.problem.split_indices`.

    Raises:
        InvalidInput: An option is out of range, or there are too few complete rows.
        DataNotFound: training.csv is not there.
        UnreadableFile: It is damaged or another file.
    """
    check_choice("missing of facial_keypoints", missing, ("drop", "mean"))
    path = locate(FACIAL_KEYPOINTS, root)["table"]
    pixels, keypoints = read_facial_keypoints(path, missing="keep" if missing == "mean" else "drop")
    images = pixels.float().div_(255)
    complete = ~keypoints.isnan().any(1)
    train, test = split_indices(int(complete.sum()), test_fraction, split_seed)
    samples = Samples(images[complete], keypoints[complete])
    train_samples = samples.subset(train)
    if not complete.all():
        train_samples = _with_incomplete(train_samples, images[~complete], keypoints[~complete])
    return Problem("facial_keypoints", "regression", train_samples, samples.subset(test), len(COORDINATES))
