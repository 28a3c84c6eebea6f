"""A small image as a PNG that lies in the page itself."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy

LARGEST_SIDE = 64


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(pixels: numpy.ndarray) -> bytes:
    """Encode 8-bit pixels.

    Args:
        pixels: uint8, [h, w] grey or [h, w, 3] red, green, blue.

    Returns:
        The file (PNG specification, third edition, sections 5 and 11; no filter).

    >>> png(numpy.zeros((1, 1), dtype=numpy.uint8))[1:4]
    b'PNG'
    """
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    # every line begins with the number of its filter, 0 for none
    lines = b"".join(b"\0" + numpy.ascontiguousarray(row).tobytes() for row in pixels)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def is_image(sample: Any) -> bool:
    """Whether a sample can be drawn: [h, w], or [c, h, w] with one channel or three, both sides 2 or larger."""
    shape = numpy.shape(sample)
    return len(shape) in (2, 3) and min(shape[-2:]) >= 2 and (len(shape) == 2 or shape[0] in (1, 3))


def data_uri(sample: Any) -> str:
    """Draw a sample: its smallest number black, its largest white, whatever it was normalized by.

    Args:
        sample: [h, w], [1, h, w] or [3, h, w]; numbers that are not finite are drawn black.

    Returns:
        A data URI; of a side longer than 64 every k-th pixel is drawn.
    """
    image = numpy.asarray(sample, dtype=numpy.float64)
    image = image if image.ndim == 2 else image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    step = -(-max(image.shape[:2]) // LARGEST_SIDE)
    image, finite = image[::step, ::step], numpy.isfinite(image[::step, ::step])
    low, high = (image[finite].min(), image[finite].max()) if finite.any() else (0.0, 1.0)
    scaled = numpy.where(finite, (image - low) / (high - low or 1.0), 0.0)
    return "data:image/png;base64," + base64.b64encode(png((scaled * 255).round().astype(numpy.uint8))).decode()
