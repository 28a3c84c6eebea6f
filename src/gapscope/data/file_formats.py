"""Readers of data files: gzip, IDX (MNIST), binary CIFAR, and tables of numbers.

No reader unpacks more than a fixed number of bytes. Tables are not read by pandas, which completes truncated lines by
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


@contextmanager
def open_maybe_gzip(path: Path) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped file for reading (distinguished by the first bytes)."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP_MAGIC
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except FileNotFoundError:
        raise DataNotFound(
            f"{path} must exist to be read; it does not. Check the path, or fetch the file."
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableFile(
            f"{path} must be a complete gzip file; unpacking failed: {error}. Fetch it again."
        ) from None
    except OSError as error:
        raise UnreadableFile(
            f"{path} must be a readable file; reading failed: {error.strerror or error}."
        ) from None


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return all unpacked bytes of a file, or raise UnreadableFile for more than `max_bytes`."""
    with open_maybe_gzip(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise UnreadableFile(
            f"{path} must hold at most {max_bytes:,} bytes; it holds more. Is it another file?"
        )
    return content


_IDX_MAGIC = b"\0\0\x08"  # two zeros, and the type of unsigned bytes
# of one file: MNIST's training images have 47 MB, those of EMNIST 550 MB
MAX_BYTES = 2**30


def read_idx(path: str | Path, *, dimensions: int) -> UInt8[Tensor, "*shape"]:
    """Return the array of unsigned bytes in an IDX file, plain or gzipped.

    Format: 00 00 08 D, then D big-endian uint32 sizes, then the bytes in row-major order, and nothing after them.

    Args:
        path: File to read, plain or gzipped.
        dimensions: Required number of dimensions: 3 for images [n, height, width], 1 for labels [n].

    Raises:
        UnreadableFile: It is of another format, truncated, longer than its header states, or larger than 1 GiB.
    """
    path = Path(path)
    header_size = 4 + 4 * dimensions
    with open_maybe_gzip(path) as file:
        header = file.read(header_size)
        if header[:3] != _IDX_MAGIC or len(header) < header_size:
            raise UnreadableFile(
                f"{path} must be an IDX file of unsigned bytes, which begins with 00 00 08 and a complete header; it "
                f"begins with {header[:4].hex(' ')}. Is it another file?"
            )
        if header[3] != dimensions:
            raise UnreadableFile(
                f"{path} must have {dimensions} dimensions (images have 3, labels 1); its header states {header[3]}. "
                "Are images and labels swapped?"
            )
        shape = struct.unpack(f">{dimensions}I", header[4:])
        size = math.prod(shape)
        if not 0 < size <= MAX_BYTES:
            raise UnreadableFile(
                f"{path} must hold 1 to {MAX_BYTES:,} bytes after its header; for shape {list(shape)} these are "
                f"{size:,}. Split larger arrays, and pass them as tensors."
            )
        content = file.read(size + 1)
    if len(content) != size:
        n_bytes = "more"
        if len(content) < size:
            n_bytes = f"{len(content):,}"
        raise UnreadableFile(
            f"{path} must hold {size:,} bytes after its header, for shape {list(shape)}; it holds {n_bytes}. Fetch it "
            "again."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(shape)


_MAX_LABELS = {1: (9,), 2: (19, 99)}


def read_cifar(
    path: str | Path, *, labels_each: Literal[1, 2]
) -> tuple[UInt8[Tensor, "n 3 32 32"], UInt8[Tensor, "n labels"]]:
    """Return pixels and labels of one file in CIFAR's binary format, plain or gzipped.

    A record is 1 label byte (CIFAR-10) or 2 (CIFAR-100: coarse, then fine), then 1024 red, 1024 green and 1024 blue
    bytes, row by row. There is no header; at most 60,000 records, the complete set, are unpacked.

    Args:
        path: File to read, plain or gzipped.
        labels_each: Label bytes per record, 1 or 2.

    Raises:
        UnreadableFile: The number of records is not an integer or too large, or labels are out of range.
    """
    path = Path(path)
    record = labels_each + 3 * 32 * 32  # pixels
    content = read_bounded(path, MAX_BYTES)
    if not content or len(content) % record:
        raise UnreadableFile(
            f"{path} must hold complete records of {record} bytes; it holds {len(content):,} bytes, that is "
            f"{len(content) / record:.2f} records. Fetch it again."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = records[:, :labels_each]
    for column, max_label in enumerate(_MAX_LABELS[labels_each]):
        label = int(labels[:, column].max())
        if label > max_label:
            raise UnreadableFile(
                f"{path} must hold labels 0 to {max_label} in byte {column} of every record; it holds {label}. "
                "Is it another file?"
            )
    return records[:, labels_each:].reshape(-1, 3, 32, 32), labels


def read_table(path: str | Path, columns: Sequence[str]) -> Float64[Tensor, "n columns"]:
    """Return the numbers of a text table, plain or gzipped, in the file's order.

    Cells are separated by commas, or by blanks if the first line has no comma; empty lines are ignored. A header line
    is optional and must name `columns` (in upper or lower case).

    Args:
        path: The file, 64 MiB unpacked at most.
        columns: Names of its columns, in order.

    Raises:
        UnreadableFile: Another header, a line of another length, or a cell that is not a finite number.
    """
    path = Path(path)
    text = read_bounded(path, MAX_BYTES).decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    separator = None
    if lines and "," in lines[0]:
        separator = ","
    if lines and [cell.strip('" ').lower() for cell in lines[0].split(separator)] == [
        name.lower() for name in columns
    ]:
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
        raise UnreadableFile(
            f"{expected}; it has {numbers.shape[1]} columns and {count} values that are not finite."
        )
    return torch.from_numpy(numbers)
