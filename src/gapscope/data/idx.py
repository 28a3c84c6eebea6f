"""The IDX format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from gapscope.base.errors import UnreadableFile
from gapscope.data.compressed import check_capacity, open_maybe_gzip

_UNSIGNED_BYTES = 0x08


def _checked_shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    if len(header) < 4 or header[:2] != b"\0\0" or header[2] == 0:
        raise UnreadableFile(
            f"{path} must be an IDX file, which begins with two zero bytes; it begins with {header[:4].hex(' ')}. "
            "Is it another file?"
        )
    if header[2] != _UNSIGNED_BYTES:
        raise UnreadableFile(f"{path} must hold unsigned bytes (IDX type 0x08); its type is 0x{header[2]:02x}.")
    if header[3] != dimensions:
        raise UnreadableFile(
            f"{path} must have {dimensions} dimensions (images have 3, labels 1); its header states {header[3]}. "
            "Are images and labels swapped?"
        )
    if len(header) < 4 + 4 * dimensions:
        raise UnreadableFile(f"{path} must hold a whole IDX header; it ends within it. Fetch it again.")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    if 0 in shape:
        raise UnreadableFile(f"{path} must hold at least one record; its header states the shape {list(shape)}.")
    return shape


def read_idx(path: str | Path, *, dimensions: int) -> UInt8[Tensor, ...]:
    """Return the array of unsigned bytes in an IDX file, plain or gzipped.

    Format: 00 00 08 D, then D big-endian uint32 sizes, then the bytes in row-major order, and nothing after them.
    At most as many bytes are unpacked as the header states.

    Args:
        dimensions: Number of dimensions it must have: 3 for images [n, height, width], 1 for labels [n].

    Returns:
        The array, uint8.

    Raises:
        UnreadableFile: It is of another format, truncated, or longer than its header states.
    """
    path = Path(path)
    with open_maybe_gzip(path) as file:
        shape = _checked_shape(path, file.read(4 + 4 * dimensions), dimensions)
        size = math.prod(shape)
        check_capacity(path, size)
        content = file.read(size + 1)
    if len(content) != size:
        held = f"{len(content):,}" if len(content) < size else "more"
        raise UnreadableFile(
            f"{path} must hold {size:,} bytes after its header, for shape {list(shape)}; it holds {held}. "
            "Fetch it again."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)
