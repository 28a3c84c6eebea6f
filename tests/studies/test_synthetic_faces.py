"""Synthetic faces: keypoints against the image, and loading by name."""

from __future__ import annotations

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.data import dataset_names, load_dataset
from gapscope.data.facial_keypoints import COORDINATES
from gapscope_studies.szolnoky2022.synthetic_faces import render_faces


def render(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return render_faces(n, torch.Generator().manual_seed(0))


def points(keypoints: torch.Tensor) -> dict[str, torch.Tensor]:
    names = [name.removesuffix("_x") for name in COORDINATES[::2]]
    return dict(zip(names, keypoints.reshape(-1, 15, 2).unbind(1), strict=True))


@pytest.mark.thorough
def test_every_keypoint_is_in_the_image() -> None:
    _, keypoints = render(1000)
    assert float(keypoints.min()) > 1
    assert float(keypoints.max()) < 94


def test_left_and_right_are_those_of_the_face() -> None:
    at = points(render(200)[1])
    assert (at["left_eye_center"][:, 0] > at["right_eye_center"][:, 0]).all()
    assert (at["mouth_left_corner"][:, 0] > at["mouth_right_corner"][:, 0]).all()
    assert (at["left_eye_outer_corner"][:, 0] > at["left_eye_inner_corner"][:, 0]).all()
    assert (at["mouth_center_bottom_lip"][:, 1] > at["nose_tip"][:, 1]).all()
    assert (at["nose_tip"][:, 1] > at["left_eye_center"][:, 1]).all()
    assert (at["left_eyebrow_outer_end"][:, 1] < at["left_eye_outer_corner"][:, 1]).all()


def test_keypoints_agree_with_the_image() -> None:
    images, keypoints = render(400)
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


@pytest.mark.thorough
def test_the_problem_has_independent_splits() -> None:
    problem = load_dataset("drawn_faces", n=20, test_size=20)
    assert "drawn_faces" not in dataset_names(), (
        "the data set of a study, loaded by its entry point"
    )
    assert (problem.input_shape, problem.n_outputs, problem.task) == ((1, 96, 96), 30, "regression")
    assert not torch.equal(problem.train.inputs, problem.test.inputs)
    assert torch.equal(
        load_dataset("drawn_faces", n=5, test_size=20).test.inputs, problem.test.inputs
    )
    assert 0 <= float(problem.train.inputs.min()) < float(problem.train.inputs.max()) <= 1
    with pytest.raises(InvalidInput, match="test_size of drawn_faces"):
        load_dataset("drawn_faces", test_size=0)
