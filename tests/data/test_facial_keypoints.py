from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.data import facial_keypoints as module
from gapscope.data.facial_keypoints import COORDINATES, HEADER, facial_keypoints, read_facial_keypoints

PIXELS = [(7 * i) % 256 for i in range(9216)]


def row(first: str = "1.5", pixels: list[int] | None = None) -> str:
    cells = [first, *(f"{i}.25" for i in range(1, 30))]
    return ",".join((*cells, " ".join(map(str, PIXELS if pixels is None else pixels)))) + "\n"


def written(folder: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    path = folder / "training.csv"
    path.write_text(header + end + "".join(rows), newline="")
    return path


def test_the_header_is_kaggles() -> None:
    assert HEADER == (
        "left_eye_center_x,left_eye_center_y,right_eye_center_x,right_eye_center_y,left_eye_inner_corner_x,"
        "left_eye_inner_corner_y,left_eye_outer_corner_x,left_eye_outer_corner_y,right_eye_inner_corner_x,"
        "right_eye_inner_corner_y,right_eye_outer_corner_x,right_eye_outer_corner_y,left_eyebrow_inner_end_x,"
        "left_eyebrow_inner_end_y,left_eyebrow_outer_end_x,left_eyebrow_outer_end_y,right_eyebrow_inner_end_x,"
        "right_eyebrow_inner_end_y,right_eyebrow_outer_end_x,right_eyebrow_outer_end_y,nose_tip_x,nose_tip_y,"
        "mouth_left_corner_x,mouth_left_corner_y,mouth_right_corner_x,mouth_right_corner_y,mouth_center_top_lip_x,"
        "mouth_center_top_lip_y,mouth_center_bottom_lip_x,mouth_center_bottom_lip_y,Image"
    )
    assert len(COORDINATES) == 30


@pytest.mark.parametrize("packed", [False, True])
def test_pixels_and_coordinates_are_read(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path, row(), row("2"), end="\r\n")
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    images, keypoints = read_facial_keypoints(path)
    assert images.dtype == torch.uint8
    assert images.shape == (2, 1, 96, 96)
    assert images[1].flatten().tolist() == PIXELS
    assert keypoints[0].tolist() == [1.5, *(i + 0.25 for i in range(1, 30))]


def test_rows_with_unknown_points_are_dropped_or_kept(tmp_path: Path) -> None:
    path = written(tmp_path, row(), row(""), row("3"))
    images, keypoints = read_facial_keypoints(path)
    assert (len(images), keypoints[:, 0].tolist()) == (2, [1.5, 3.0])
    images, keypoints = read_facial_keypoints(path, missing="keep")
    assert len(images) == 3
    assert keypoints.isnan().nonzero().tolist() == [[1, 0]]
    with pytest.raises(InvalidInput, match=r"must be one of 'drop', 'keep'; got 'kep'\. Did you mean 'keep'"):
        read_facial_keypoints(path, missing="kep")


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ((), "ImageId,Image", "must begin with the header of Kaggle's training.csv"),
        ((row(), row()[: len(row()) // 2] + "\n"), HEADER, "must hold 9216 pixels 0 to 255 in every row; line 3 holds"),
        ((row(), "1.5,2"), HEADER, "must have 30 coordinates and an image in every row; line 3 has 2 cells"),
        ((row("abc"),), HEADER, "must hold a number or nothing for every coordinate; line 2: could not convert"),
        ((row("inf"),), HEADER, "must hold finite coordinates; line 2 holds an infinite one"),
        ((row(pixels=[256, *PIXELS[1:]]),), HEADER, "line 2 holds the number 256"),
        ((row(pixels=[10**25, *PIXELS[1:]]),), HEADER, "line 2 holds the number"),
        ((row(pixels=PIXELS[1:]),), HEADER, "line 2 holds 9215 numbers"),
        ((row(pixels=[-1, *PIXELS[1:]]),), HEADER, "line 2 holds the characters b'-'"),
        ((row(pixels=[]),), HEADER, "line 2 holds 0 numbers"),
    ],
)
def test_other_and_damaged_files_are_refused(tmp_path: Path, rows: tuple[str, ...], header: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        read_facial_keypoints(written(tmp_path, *rows, header=header))


def test_endless_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ROWS", 3)
    with pytest.raises(UnreadableFile, match="must hold at most 3 rows; it holds more"):
        read_facial_keypoints(written(tmp_path, *[row()] * 4))
    path = tmp_path / "line.csv.gz"
    path.write_bytes(gzip.compress(HEADER.encode() + b"\n" + b" " * 10**7))
    with pytest.raises(UnreadableFile, match="line 2 has 1 cells"):
        read_facial_keypoints(path)


def problem_folder(tmp_path: Path) -> Path:
    (tmp_path / "facial-keypoints").mkdir()
    written(tmp_path / "facial-keypoints", *(row(str(i) if i % 3 else "") for i in range(30)))
    return tmp_path


def test_the_complete_rows_are_split(tmp_path: Path) -> None:
    problem = facial_keypoints(problem_folder(tmp_path))
    assert (len(problem.train), len(problem.test), problem.n_outputs) == (14, 6, 30)
    assert problem.train.inputs[0].flatten().tolist() == pytest.approx([value / 255 for value in PIXELS])


def test_incomplete_rows_join_the_training_split_on_request(tmp_path: Path) -> None:
    root = problem_folder(tmp_path)
    dropped, filled = (facial_keypoints(root, missing=missing) for missing in ("drop", "mean"))
    assert dropped.train.targets is not None and filled.train.targets is not None
    assert torch.equal(torch.as_tensor(dropped.test.targets), torch.as_tensor(filled.test.targets))
    assert (len(dropped.train), len(filled.train)) == (14, 24)
    mean = dropped.train.targets[:, 0].mean()
    assert torch.allclose(filled.train.targets[14:, 0], mean.expand(10))
    assert filled.train.targets[14:, 1:].tolist() == [[i + 0.25 for i in range(1, 30)]] * 10


def test_too_few_complete_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "facial_keypoints").mkdir()
    written(tmp_path / "facial_keypoints", row(""), row(""))
    with pytest.raises(InvalidInput, match="must each keep at least one of the 0 samples"):
        facial_keypoints(tmp_path)
