"""PNG data URIs: scaling, size and finite values of the decoded pixels."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from gapscope.report.svg import data_uri, is_image


def read_uri(uri: str) -> numpy.ndarray:
    content = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return numpy.asarray(Image.open(io.BytesIO(content)))


@pytest.mark.parametrize("make", [numpy.asarray, torch.as_tensor])
def test_a_sample_is_stretched_from_black_to_white(make: Any) -> None:
    grey = make(numpy.array([[[-1.0, 0.0], [1.0, 3.0]]]))
    assert read_uri(data_uri(grey)).tolist() == [[0, 64], [128, 255]]
    colour = make(numpy.stack([numpy.full((4, 6), value) for value in (0.0, 0.5, 1.0)]))
    assert read_uri(data_uri(colour)).shape == (4, 6, 3) and read_uri(data_uri(colour))[0, 0].tolist() == [0, 128, 255]
    assert read_uri(data_uri(make(numpy.ones((2, 2))))).tolist() == [[0, 0], [0, 0]]


def test_numbers_that_are_not_finite_are_black_and_large_images_small() -> None:
    image = numpy.linspace(0, 1, 200 * 130).reshape(200, 130)
    image[0, 0] = numpy.nan
    read_back = read_uri(data_uri(image))
    assert read_back.shape == (50, 33) and read_back[0, 0] == 0


@pytest.mark.parametrize(
    ("shape", "drawn"),
    [((8, 8), True), ((1, 8, 8), True), ((3, 8, 8), True), ((4, 8, 8), False), ((8,), False), ((1, 1), False)],
)
def test_what_is_an_image(shape: tuple[int, ...], drawn: bool) -> None:
    assert is_image(numpy.zeros(shape)) is drawn
