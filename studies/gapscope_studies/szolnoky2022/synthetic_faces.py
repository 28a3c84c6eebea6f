"""Synthetic faces with the 15 keypoints of Kaggle's Facial Keypoints."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from gapscope.base.errors import check_range
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples, slices
from gapscope.data.catalogue import Source
from gapscope.data.facial_keypoints import COORDINATES, KEYPOINTS, SIDE
from gapscope.data.problem import Problem

# Lowest and highest value of each parameter. Lengths are pixels in the frame of an upright face whose middle is the
# origin, x to the right and y down; grey values lie in [0, 1].
_RANGES = {
    "center_x": (42.0, 53.0),
    "center_y": (42.0, 51.0),
    "scale": (0.8, 1.05),
    "rotation": (-0.35, 0.35),
    "head_width": (31.0, 37.0),
    "head_height": (42.0, 50.0),
    "eye_distance": (15.0, 20.0),
    "eye_y": (-14.0, -9.0),
    "eye_width": (5.5, 8.0),
    "eye_height": (2.2, 4.5),
    "gaze": (-2.0, 2.0),
    "brow_lift": (6.5, 10.5),
    "brow_length": (7.0, 11.0),
    "brow_inner": (-2.0, 2.0),
    "brow_outer": (-2.0, 2.0),
    "brow_width": (1.0, 2.2),
    "nose_x": (-2.0, 2.0),
    "nose_y": (8.0, 14.0),
    "mouth_y": (21.0, 28.0),
    "mouth_width": (10.0, 17.0),
    "smile": (-3.5, 4.5),
    "upper_lip": (1.2, 4.0),
    "lower_lip": (1.5, 5.0),
    "background": (0.0, 1.0),
    "skin": (0.45, 0.95),
    "features": (0.1, 0.5),
    "hair": (0.05, 0.7),
    "light_angle": (-math.pi, math.pi),
    "light": (0.0, 0.4),
    "noise": (0.0, 0.06),
}
_CHUNK = 64

Face = dict[str, Tensor]


def _points(face: Face) -> Tensor:
    """Return keypoints [n, 15, 2] in the frame of the upright face."""
    eye_x, eye_y, half_eye = face["eye_distance"], face["eye_y"], face["eye_width"]
    brow_y, half_brow = eye_y - face["brow_lift"], face["brow_length"]
    inner_y, outer_y = brow_y + face["brow_inner"], brow_y + face["brow_outer"]
    corner_y, middle = face["mouth_y"] - face["smile"], torch.zeros_like(eye_x)
    points = {
        "left_eye_center": (eye_x, eye_y),
        "left_eye_inner_corner": (eye_x - half_eye, eye_y),
        "left_eye_outer_corner": (eye_x + half_eye, eye_y),
        "left_eyebrow_inner_end": (eye_x - half_brow, inner_y),
        "left_eyebrow_outer_end": (eye_x + half_brow, outer_y),
        "nose_tip": (face["nose_x"], face["nose_y"]),
        "mouth_left_corner": (face["mouth_width"], corner_y),
        "mouth_center_top_lip": (middle, face["mouth_y"] - face["upper_lip"]),
        "mouth_center_bottom_lip": (middle, face["mouth_y"] + face["lower_lip"]),
    }
    mirrored = {
        name.replace("left", "right"): (-x, y) for name, (x, y) in points.items() if "left" in name
    }
    points |= mirrored
    return torch.stack([torch.stack(points[name], -1) for name in KEYPOINTS], 1)


def _to_image(face: Face, points: Tensor) -> Tensor:
    """Rotate, scale and shift points [n, 15, 2] from the frame of the face into the image."""
    cos, sin = face["rotation"].cos()[:, None], face["rotation"].sin()[:, None]
    scale, x, y = face["scale"][:, None], points[..., 0], points[..., 1]
    right = face["center_x"][:, None] + scale * (cos * x - sin * y)
    down = face["center_y"][:, None] + scale * (sin * x + cos * y)
    return torch.stack((right, down), -1)


class _Canvas:
    """Grey images [n, 96, 96] and the position of every pixel in the frame of the face."""

    def __init__(self, face: Face) -> None:
        self.face = {name: value[:, None, None] for name, value in face.items()}
        across = torch.arange(SIDE, dtype=torch.float32)[None, None, :] - self.face["center_x"]
        down = torch.arange(SIDE, dtype=torch.float32)[None, :, None] - self.face["center_y"]
        cos, sin, scale = (
            self.face["rotation"].cos(),
            self.face["rotation"].sin(),
            self.face["scale"],
        )
        self.x = (cos * across + sin * down) / scale
        self.y = (cos * down - sin * across) / scale
        self.grey = self.face["background"].expand_as(self.x).clone()
        angle = self.face["light_angle"]
        self.light = 1 + self.face["light"] * (across * angle.cos() + down * angle.sin()) / SIDE

    def paint(self, distance: Tensor, grey: Tensor, opacity: float = 1.0) -> None:
        """Paint where the signed distance is negative, with a soft edge one pixel wide."""
        cover = (0.5 - distance * self.face["scale"]).clamp_(0, 1).mul_(opacity)
        self.grey.lerp_(grey.expand_as(self.grey), cover)

    def ellipse(
        self, x: Tensor | float, y: Tensor | float, half_width: Tensor, half_height: Tensor
    ) -> Tensor:
        """Distance to an ellipse, accurate near its edge up to a factor."""
        radius = (
            ((self.x - x) / half_width).square_() + ((self.y - y) / half_height).square_()
        ).sqrt_()
        return (radius - 1) * torch.minimum(half_width, half_height)

    def stroke(
        self, start: tuple[Tensor, Tensor], end: tuple[Tensor, Tensor], half_width: Tensor
    ) -> Tensor:
        """Distance to a straight stroke with round ends."""
        along_x, along_y = end[0] - start[0], end[1] - start[1]
        from_x, from_y = self.x - start[0], self.y - start[1]
        part = ((from_x * along_x + from_y * along_y) / (along_x**2 + along_y**2)).clamp_(0, 1)
        return torch.hypot(from_x - part * along_x, from_y - part * along_y) - half_width

    def mouth(self) -> Tensor:
        """Distance to the region between the parabolas of both lips, which meet in the corners."""
        bend = (self.x / self.face["mouth_width"]).square()
        middle = self.face["mouth_y"] - self.face["smile"] * bend
        above = middle - self.face["upper_lip"] * (1 - bend) - self.y
        below = self.y - middle - self.face["lower_lip"] * (1 - bend)
        return torch.maximum(above, below)


def _paint_face(face: Face) -> Tensor:
    canvas = _Canvas(face)
    face = canvas.face
    skin, dark = face["skin"], face["skin"] * face["features"]
    width, height = face["head_width"], face["head_height"]
    canvas.paint(canvas.ellipse(0.0, -4.0, width + 4, height + 3), face["hair"])
    canvas.paint(canvas.ellipse(0.0, 3.0, width, height - 5), skin)
    for side in (1.0, -1.0):
        x, y = side * face["eye_distance"], face["eye_y"]
        half_width, half_height = face["eye_width"], face["eye_height"]
        canvas.paint(canvas.ellipse(x, y, half_width, half_height), dark)
        canvas.paint(canvas.ellipse(x, y, half_width - 0.8, half_height - 0.8), 0.5 + skin / 2)
        pupil = 0.9 * face["eye_height"]
        canvas.paint(canvas.ellipse(x + face["gaze"], y, pupil, pupil), dark / 2)
        brow_y = y - face["brow_lift"]
        inner = x - side * face["brow_length"], brow_y + face["brow_inner"]
        outer = x + side * face["brow_length"], brow_y + face["brow_outer"]
        canvas.paint(canvas.stroke(inner, outer, face["brow_width"]), dark)
    tip = face["nose_x"], face["nose_y"]
    bridge = face["nose_x"] / 2, face["eye_y"] + 2
    canvas.paint(canvas.stroke(bridge, tip, face["brow_width"]), dark, opacity=0.25)
    canvas.paint(
        canvas.ellipse(*tip, 2 + face["brow_width"], face["brow_width"] + 0.5), dark, opacity=0.5
    )
    canvas.paint(canvas.mouth(), dark)
    return canvas.grey.mul_(canvas.light)


def render_faces(
    n: int, generator: torch.Generator
) -> tuple[UInt8[Tensor, "n 1 96 96"], Float32[Tensor, "n 30"]]:
    """Return pixels 0 to 255 of n synthetic faces and their keypoints, exact up to float32.

    Position, size, rotation, proportions, expression, grey values, direction and strength of light, and noise are
    uniform and independent per face; all keypoints lie inside the image.
    """
    low, high = torch.tensor(list(_RANGES.values())).T
    values = low + (high - low) * torch.rand(n, len(_RANGES), generator=generator)
    images, keypoints = [], []
    # few faces at a time fit into the processor's cache
    for part in slices(n, _CHUNK):
        face: Face = dict(zip(_RANGES, values[part].T, strict=True))
        grey = _paint_face(face)
        grey += face["noise"][:, None, None] * torch.randn(grey.shape, generator=generator)
        images.append(grey.clamp_(0, 1).mul_(255).round_().to(torch.uint8)[:, None])
        keypoints.append(_to_image(face, _points(face)).flatten(1))
    return torch.cat(images), torch.cat(keypoints)


def drawn_faces(*, n: int = 2000, test_size: int = 500, seed: int = 0) -> Problem:
    """Make synthetic faces [n, 1, 96, 96] in [0, 1] with 30 coordinates in pixels.

    Args:
        n: Number of training faces.
        test_size: Number of test faces, sampled independently of n.
        seed: Seed of the faces.
    """
    splits = []
    for split, option, size in (("train", "n", n), ("test", "test_size", test_size)):
        check_range(f"{option} of drawn_faces", size, 1)
        pixels, keypoints = render_faces(size, make_generator(seed, f"drawn faces, {split}"))
        splits.append(Samples(pixels.float().div_(255), keypoints))
    return Problem("drawn_faces", "regression", *splits, n_outputs=len(COORDINATES))


DRAWN_FACES = Source("drawn_faces", "regression", "2,000 + 500", "generated", drawn_faces)
