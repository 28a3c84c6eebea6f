"""Small images as PNG data URIs, embedded in the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy

LARGEST_SIDE = 64


def is_image(sample: Any) -> bool:
    """Return True for an image: [h, w], or [c, h, w] of one or three channels, sides above 1."""
    shape = numpy.shape(sample)
    return len(shape) in (2, 3) and min(shape[-2:]) >= 2 and (len(shape) == 2 or shape[0] in (1, 3))


def data_uri(sample: Any) -> str:
    """Encode an image as a PNG data URI, scaled from black to white, at most 64 pixels wide.

    Values that are not finite become black.
    """
    from PIL import Image

    image = numpy.asarray(sample, dtype=numpy.float64)
    image = image if image.ndim == 2 else image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    step = -(-max(image.shape[:2]) // LARGEST_SIDE)
    image, finite = image[::step, ::step], numpy.isfinite(image[::step, ::step])
    low, high = (image[finite].min(), image[finite].max()) if finite.any() else (0.0, 1.0)
    scaled = numpy.where(finite, (image - low) / (high - low or 1.0), 0.0)
    file = io.BytesIO()
    Image.fromarray((scaled * 255).round().astype(numpy.uint8)).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
