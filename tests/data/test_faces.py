from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.data import facial_keypoints as module
from gapscope.data.facial_keypoints import COORDINATES, HEADER, facial_keypoints, read_facial_keypoints
from gapscope.data.synthetic_faces import drawn_faces, render_faces

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


def test_endless_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 3)
    with pytest.raises(UnreadableFile, match="must hold at most 3 rows; it holds more"):
        read_facial_keypoints(written(tmp_path, *[row()] * 4))
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
def test_other_and_damaged_files_are_refused(tmp_path: Path, rows: tuple[str, ...], header: str, message: str) -> None:
    with pytest.raises(UnreadableFile, match=message):
        read_facial_keypoints(written(tmp_path, *rows, header=header))


def test_the_complete_rows_are_split(tmp_path: Path) -> None:
    (tmp_path / "facial-keypoints").mkdir()
    written(tmp_path / "facial-keypoints", *(row(str(i) if i % 3 else "") for i in range(30)))
    problem = facial_keypoints(tmp_path)
    assert (len(problem.train), len(problem.test), problem.n_outputs) == (14, 6, 30)
    assert problem.train.inputs[0].flatten().tolist() == pytest.approx([value / 255 for value in PIXELS])


def rendered(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return render_faces(n, torch.Generator().manual_seed(0))


def points(keypoints: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name.removesuffix("_x") for name in COORDINATES[::2]]
    return dict(zip(names, keypoints.reshape(-1, 15, 2).unbind(1), strict=True))


def test_every_keypoint_lies_in_the_image() -> None:
    _, keypoints = rendered(1000)
    assert float(keypoints.min()) > 1
    assert float(keypoints.max()) < 94


def test_left_and_right_are_the_faces_own() -> None:
    at = points(rendered(200)[1])
    assert (at["left_eye_center"][:, 0] > at["right_eye_center"][:, 0]).all()
    assert (at["mouth_left_corner"][:, 0] > at["mouth_right_corner"][:, 0]).all()
    assert (at["left_eye_outer_corner"][:, 0] > at["left_eye_inner_corner"][:, 0]).all()
    assert (at["mouth_center_bottom_lip"][:, 1] > at["nose_tip"][:, 1]).all()
    assert (at["nose_tip"][:, 1] > at["left_eye_center"][:, 1]).all()
    assert (at["left_eyebrow_outer_end"][:, 1] < at["left_eye_outer_corner"][:, 1]).all()


def test_keypoints_lie_on_what_was_drawn() -> None:
    images, keypoints = rendered(400)
    grey = images[:, 0].float()
    at = points(keypoints)

    def brightness(spot: torch.Tensor) -> torch.Tensor:
        x, y = spot.round().long().T
        return grey[torch.arange(len(grey)), y, x]

    lips = (at["mouth_center_top_lip"] + at["mouth_center_bottom_lip"]) / 2
    brow = (at["left_eyebrow_inner_end"] + at["left_eyebrow_outer_end"]) / 2
    forehead = (at["left_eyebrow_inner_end"] + at["right_eyebrow_inner_end"]) / 2
    assert (brightness(lips) < brightness(forehead)).float().mean() > 0.97
    assert (brightness(brow) < brightness(forehead)).float().mean() > 0.97


def test_the_problem_has_independent_splits() -> None:
    problem = drawn_faces(n=20, test_size=20)
    assert (problem.input_shape, problem.n_outputs, problem.task) == ((1, 96, 96), 30, "regression")
    assert not torch.equal(problem.train.inputs, problem.test.inputs)
    assert torch.equal(drawn_faces(n=5, test_size=20).test.inputs, problem.test.inputs)
    assert 0 <= float(problem.train.inputs.min()) < float(problem.train.inputs.max()) <= 1
    with pytest.raises(InvalidInput, match="test_size of drawn_faces"):
        drawn_faces(test_size=0)
