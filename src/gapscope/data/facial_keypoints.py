"""Kaggle's Facial Keypoints Detection: 96 x 96 faces with 15 points each, as rows of text.

pandas does not read them: it has no limit on the length of a line, and would return the 9,216 pixels as text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from gapscope.base.errors import UnreadableFile
from gapscope.base.samples import Samples
from gapscope.data.file_formats import open_maybe_gzip
from gapscope.data.location import FileLayout, locate
from gapscope.data.problem import Problem, split_indices

# pixels of the official images
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
# 9,216 pixels of up to four characters, and coordinates
_MAX_LINE_BYTES = 65_536
# far beyond the official file
_MAX_ROWS = 50_000


def _row(line: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return coordinates (NaN where unknown) and pixels of a row, or raise ValueError."""
    *points, image = line.rstrip(b"\r\n").split(b",")
    coordinates = np.array([float(cell) if cell.strip() else np.nan for cell in points])
    if len(coordinates) != len(COORDINATES) or np.isinf(coordinates).any():
        raise ValueError(
            f"it has {len(coordinates)} coordinates, {int(np.isinf(coordinates).sum())} infinite"
        )
    if image.translate(None, b"0123456789 "):
        raise ValueError("its pixels have other characters than digits")
    pixels = np.fromstring(image.decode("ascii"), dtype=np.int64, sep=" ")
    if len(pixels) != SIDE * SIDE or int(pixels.max()) > 255:
        raise ValueError(f"it has {len(pixels)} pixels up to {int(pixels.max(initial=0))}")
    return coordinates, pixels.astype(np.uint8)


def read_facial_keypoints(
    path: str | Path,
) -> tuple[UInt8[Tensor, "n 1 96 96"], Float32[Tensor, "n 30"]]:
    """Read the complete rows of a file in the format of Kaggle's training.csv.

    The first line names the 30 coordinates, then "Image"; every other line contains 30 numbers in pixels, empty if
    unknown (the row is dropped), and 9,216 grey values separated by blanks. At most 50,000 rows are read.

    Returns:
        Pixels 0 to 255, and coordinates in the order of `COORDINATES`: x to the right and y down, in pixels from the
        centre of the upper left one.

    Raises:
        UnreadableFile: Another header, or a truncated or invalid row.
    """
    path = Path(path)
    coordinates = []
    images = []
    with open_maybe_gzip(path) as file:
        header = file.readline(_MAX_LINE_BYTES).strip()
        if header != HEADER.encode():
            raise UnreadableFile(
                f"{path} must begin with the header of Kaggle's training.csv ({HEADER[:40]}...); it begins with "
                f"{header[:40]!r}. Is it another file?"
            )
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), 2):
            if number > _MAX_ROWS + 1:
                raise UnreadableFile(
                    f"{path} must hold at most {_MAX_ROWS:,} rows; it holds more. Split it."
                )
            try:
                values, pixels = _row(line)
            except ValueError as error:
                raise UnreadableFile(
                    f"{path} must hold {len(COORDINATES)} finite coordinates (or nothing) and {SIDE * SIDE} pixels 0 "
                    f"to 255 in every row; line {number} does not: {error}. Fetch it again."
                ) from None
            if not np.isnan(values).any():
                coordinates.append(values)
                images.append(pixels)
    pixels = np.array(images, dtype=np.uint8).reshape(-1, 1, SIDE, SIDE)
    keypoints = np.array(coordinates, dtype=np.float32).reshape(-1, len(COORDINATES))
    return torch.from_numpy(pixels), torch.from_numpy(keypoints)


def facial_keypoints(
    root: str | Path | None = None, *, test_fraction: float = 0.3, split_seed: int = 0
) -> Problem:
    """Load faces [n, 1, 96, 96] in [0, 1] with 30 coordinates in pixels, from training.csv.

    Kaggle's own test images have no public keypoints, so the complete rows of training.csv (2,140 of 7,049) are split.

    Args:
        root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
        test_fraction: Fraction of the complete rows for the test, see `gapscope.data.problem.split_indices`.
        split_seed: Seed of the samples, or of their split into training and test.
    """
    pixels, keypoints = read_facial_keypoints(locate(FACIAL_KEYPOINTS, root)["table"])
    train, test = split_indices(len(pixels), test_fraction, split_seed)
    samples = Samples(pixels.float().div_(255), keypoints)
    return Problem(
        "facial_keypoints",
        "regression",
        samples.subset(train),
        samples.subset(test),
        len(COORDINATES),
    )
