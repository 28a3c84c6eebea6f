from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import UnreadableFile
from gapscope.data import facial_keypoints as module
from gapscope.data.facial_keypoints import (
    COORDINATES,
    HEADER,
    facial_keypoints,
    read_facial_keypoints,
)

PIXELS = [(7 * i) % 256 for i in range(9216)]


def row(first: str = "1.5", pixels: list[int] | None = None) -> str:
    cells = [first, *(f"{i}.25" for i in range(1, 30))]
    return ",".join((*cells, " ".join(map(str, PIXELS if pixels is None else pixels)))) + "\n"


def write_csv(folder: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    path = folder / "training.csv"
    path.write_text(header + end + "".join(rows), newline="")
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_pixels_and_coordinates_are_read(tmp_path: Path, packed: bool) -> None:
    path = write_csv(tmp_path, row(), row("2"), end="\r\n")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    images, keypoints = read_facial_keypoints(path)
    assert images.dtype == torch.uint8
    assert images.shape == (2, 1, 96, 96)
    assert (
        HEADER.startswith("left_eye_center_x,left_eye_center_y,right_eye_center_x")
        and len(COORDINATES) == 30
    )
    assert images[1].flatten().tolist() == PIXELS
    assert keypoints[0].tolist() == [1.5, *(i + 0.25 for i in range(1, 30))]


def test_endless_rows_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 3)
    with pytest.raises(UnreadableFile, match="most 3 rows"):
        read_facial_keypoints(write_csv(tmp_path, *[row()] * 4))
    path = tmp_path / "line.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode() + b"\n" + b" " * 10**7))
    with pytest.raises(UnreadableFile, match="line 2 does not"):
        read_facial_keypoints(path)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ((), "ImageId,Image", "must begin with the header of Kaggle's training.csv"),
        ((row(), row()[: len(row()) // 2] + "\n"), HEADER, "line 3 does not: it has [0-9]* pixels"),
        ((row(), "1.5,2"), HEADER, "line 3 does not: it has 1 coordinates, 0 infinite"),
        ((row("abc"),), HEADER, "line 2 does not: could not convert"),
        ((row("inf"),), HEADER, "line 2 does not: it has 30 coordinates, 1 infinite"),
        ((row(pixels=[256, *PIXELS[1:]]),), HEADER, "9216 pixels up to 256"),
        ((row(pixels=[10**25, *PIXELS[1:]]),), HEADER, "9216 pixels up to"),
        ((row(pixels=[-1, *PIXELS[1:]]),), HEADER, "other characters than digits"),
        ((row(pixels=[]),), HEADER, "it has 0 pixels"),
    ],
)
def test_other_and_corrupted_files_are_rejected(
    tmp_path: Path, rows: tuple[str, ...], header: str, message: str
) -> None:
    with pytest.raises(UnreadableFile, match=message):
        read_facial_keypoints(write_csv(tmp_path, *rows, header=header))


def test_the_complete_rows_are_split(tmp_path: Path) -> None:
    (tmp_path / "facial-keypoints").mkdir()
    write_csv(tmp_path / "facial-keypoints", *(row(str(i) if i % 3 else "") for i in range(30)))
    problem = facial_keypoints(tmp_path)
    assert (len(problem.train), len(problem.test), problem.n_outputs) == (14, 6, 30)
    assert problem.train.inputs[0].flatten().tolist() == pytest.approx(
        [value / 255 for value in PIXELS]
    )
