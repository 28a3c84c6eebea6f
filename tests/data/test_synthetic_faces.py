from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.data.facial_keypoints import COORDINATES, HEADER, facial_keypoints, read_facial_keypoints
from gapscope.data.synthetic_faces import drawn_faces, render_faces, write_csv


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(keypoints: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name.removesuffix("_x") for name in COORDINATES[::2]]
    return dict(zip(names, keypoints.reshape(-1, 15, 2).unbind(1), strict=True))


def test_every_keypoint_lies_in_the_image() -> None:
    _, keypoints = render_faces(1000, seeded())
    assert float(keypoints.min()) > 1
    assert float(keypoints.max()) < 94


def test_left_and_right_are_the_faces_own() -> None:
    at = points(render_faces(200, seeded())[1])
    assert (at["left_eye_center"][:, 0] > at["right_eye_center"][:, 0]).all()
    assert (at["mouth_left_corner"][:, 0] > at["mouth_right_corner"][:, 0]).all()
    assert (at["left_eye_outer_corner"][:, 0] > at["left_eye_inner_corner"][:, 0]).all()
    assert (at["mouth_center_bottom_lip"][:, 1] > at["nose_tip"][:, 1]).all()
    assert (at["nose_tip"][:, 1] > at["left_eye_center"][:, 1]).all()
    assert (at["left_eyebrow_outer_end"][:, 1] < at["left_eye_outer_corner"][:, 1]).all()


def test_keypoints_lie_on_what_was_drawn() -> None:
    images, keypoints = render_faces(400, seeded())
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


def test_faces_depend_on_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = render_faces(70, seeded()), render_faces(70, seeded()), render_faces(70, seeded(1))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])
    assert torch.equal(render_faces(2)[1], render_faces(2)[1])  # no generator: the same draws at every call
    assert torch.equal(torch.get_rng_state(), before)


def test_faces_vary_in_every_coordinate_and_in_light() -> None:
    images, keypoints = render_faces(300, seeded())
    assert (keypoints.std(0) > 2).all()
    assert images.float().mean((1, 2, 3)).std() > 20


def test_what_is_written_is_read_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "training.csv"
    write_csv(path, 70, seeded())
    assert path.read_text().split("\n", 1)[0] == HEADER
    images, keypoints = read_facial_keypoints(path)
    generator = seeded()
    torch.randperm(70, generator=generator)
    drawn = render_faces(70, generator)
    assert torch.equal(images, drawn[0])
    assert torch.equal(keypoints, drawn[1])
    assert list(tmp_path.iterdir()) == [path]


def test_some_rows_have_only_four_keypoints_as_in_the_original(tmp_path: Path) -> None:
    (tmp_path / "facial_keypoints").mkdir()
    path = tmp_path / "facial_keypoints" / "training.csv"
    write_csv(path, 50, seeded(), complete_fraction=0.3)
    unknown = read_facial_keypoints(path, missing="keep")[1].isnan()
    assert sorted(unknown.sum(1).tolist()) == [0] * 15 + [22] * 35
    known = {COORDINATES[i] for i in (~unknown.any(0)).nonzero().flatten()}
    points_known = ("left_eye_center", "right_eye_center", "nose_tip", "mouth_center_bottom_lip")
    assert known == {f"{name}_{axis}" for name in points_known for axis in "xy"}
    assert len(facial_keypoints(tmp_path).train) == 11


def test_a_broken_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gapscope.data.synthetic_faces._row", full)
    with pytest.raises(GapscopeError, match=r"could not be written \(No space left on device\); what was there"):
        write_csv(tmp_path / "training.csv", 2, seeded())
    assert list(tmp_path.iterdir()) == []


def test_the_problem_has_independent_splits() -> None:
    problem = drawn_faces(n=20, test_size=20)
    assert (problem.input_shape, problem.n_outputs, problem.task) == ((1, 96, 96), 30, "regression")
    assert not torch.equal(problem.train.inputs, problem.test.inputs)
    assert torch.equal(drawn_faces(n=5, test_size=20).test.inputs, problem.test.inputs)
    assert 0 <= float(problem.train.inputs.min()) < float(problem.train.inputs.max()) <= 1


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"n of draw_faces must lie in \[1, inf\); got 0"):
        render_faces(0)
    with pytest.raises(InvalidInput, match=r"complete_fraction of write_csv must lie in \[0, 1\]; got 2"):
        write_csv(tmp_path / "a.csv", 1, complete_fraction=2)
    with pytest.raises(InvalidInput, match="test_size of drawn_faces"):
        drawn_faces(test_size=0)
