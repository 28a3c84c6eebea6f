"""Readers of data files: gzip, IDX (MNIST), binary CIFAR, and tables of numbers.

Sizes are checked before anything is read. Tables are not read by pandas: it takes a line that was cut off for one with
empty cells.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from gapscope.base.errors import DataNotFound, UnreadableFile

_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_DEFLATE_RATIO = 1032


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


@contextmanager
def open_maybe_gzip(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file for reading (distinguished by the first bytes)."""
    try:
        if _is_packed(path):
            with gzip.open(path) as file:
                yield cast("IO[bytes]", file)
        else:
            with path.open("rb") as file:
                yield file
    except FileNotFoundError:
        raise DataNotFound(f"{path} must exist to be read; it does not. Check the path, or fetch the file.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableFile(f"{path} must be a whole gzip file; unpacking failed: {error}. Fetch it again.") from None
    except OSError as error:
        raise UnreadableFile(f"{path} must be a readable file; reading failed: {error.strerror or error}.") from None


def check_capacity(path: Path, size: int) -> None:
    """Raise UnreadableFile if `path` is too small to hold `size` unpacked bytes."""
    # deflate spends two bits at least on 258 bytes, so that a gzip file holds at most 1032 times its own size
    most = path.stat().st_size * (_LARGEST_DEFLATE_RATIO if _is_packed(path) else 1)
    if size > most:
        raise UnreadableFile(
            f"{path} must hold the {size:,} bytes that its header states; it can hold {most:,} at most. Fetch it again."
        )


def read_bounded(path: Path, most: int) -> bytes:
    """Return all unpacked bytes of a file, or raise UnreadableFile for more than `most`."""
    with open_maybe_gzip(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableFile(f"{path} must hold at most {most:,} bytes; it holds more. Is it another file?")
    return content


_IDX_OF_BYTES = b"\0\0\x08"


def _checked_shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    if header[:3] != _IDX_OF_BYTES or len(header) < 4 + 4 * dimensions:
        raise UnreadableFile(
            f"{path} must be an IDX file of unsigned bytes, which begins with 00 00 08 and a whole header; it begins "
            f"with {header[:4].hex(' ')}. Is it another file?"
        )
    if header[3] != dimensions:
        raise UnreadableFile(
            f"{path} must have {dimensions} dimensions (images have 3, labels 1); its header states {header[3]}. "
            "Are images and labels swapped?"
        )
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


_PIXELS = 3 * 32 * 32
_MAX_CIFAR_RECORDS = 60_000
_LARGEST_LABELS = {1: (9,), 2: (19, 99)}


def read_cifar(
    path: str | Path, *, labels_each: Literal[1, 2]
) -> tuple[UInt8[Tensor, "n 3 32 32"], UInt8[Tensor, "n labels"]]:
    """Return pixels and labels of one file in CIFAR's binary format, plain or gzipped.

    A record is 1 label byte (CIFAR-10) or 2 (CIFAR-100: coarse, then fine), then 1024 red, 1024 green and 1024 blue
    bytes, row by row. There is no header; at most 60,000 records, the size of the whole set, are unpacked.

    Args:
        labels_each: Label bytes per record, 1 or 2.

    Raises:
        UnreadableFile: It is no whole number of records, too long, or holds labels that do not exist.
    """
    path = Path(path)
    record = labels_each + _PIXELS
    content = read_bounded(path, record * _MAX_CIFAR_RECORDS)
    if not content or len(content) % record:
        raise UnreadableFile(
            f"{path} must hold whole records of {record} bytes; it holds {len(content):,} bytes, that is "
            f"{len(content) / record:.2f} records. Fetch it again."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = records[:, :labels_each]
    for column, largest in enumerate(_LARGEST_LABELS[labels_each]):
        result = int(labels[:, column].max())
        if result > largest:
            raise UnreadableFile(
                f"{path} must hold labels 0 to {largest} in byte {column} of every record; it holds {result}. "
                "Is it another file?"
            )
    return records[:, labels_each:].reshape(-1, 3, 32, 32), labels


_MAX_CSV_BYTES = 64 * 2**20


def read_table(path: str | Path, columns: Sequence[str]) -> Float64[Tensor, "n columns"]:
    """Return the numbers of a text table, plain or gzipped, in the file's order.

    Cells are separated by commas, or by blanks where the first line has no comma; empty lines are passed over. A
    header line may be there or not; if it is, it must name `columns` (upper and lower case do not matter).

    Args:
        path: The file, 64 MiB unpacked at most.
        columns: Names of its columns, in order.

    Raises:
        UnreadableFile: Another header, a line of another length, or a cell that is no finite number.
    """
    path = Path(path)
    text = read_bounded(path, _MAX_CSV_BYTES).decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    separator = "," if lines and "," in lines[0] else None
    if lines and [cell.strip('" ').lower() for cell in lines[0].split(separator)] == [name.lower() for name in columns]:
        del lines[0]
    expected = f"{path} must hold at least one line of {len(columns)} finite numbers ({', '.join(columns)[:80]})"
    if not lines:
        raise UnreadableFile(f"{expected}; it holds none. Fetch it again.")
    try:
        numbers = np.loadtxt(lines, delimiter=separator, quotechar='"', comments=None, ndmin=2)
    except ValueError as error:
        raise UnreadableFile(f"{expected}; reading failed: {error}. Fetch it again.") from None
    if numbers.shape[1] != len(columns) or not np.isfinite(numbers).all():
        count = int((~np.isfinite(numbers)).sum())
        raise UnreadableFile(f"{expected}; it has {numbers.shape[1]} columns and {count} values that are not finite.")
    return torch.from_numpy(numbers)
