"""Readers of the files of data sets: gzip, IDX (MNIST), CIFAR in binary, and tables of numbers as text.

Sizes are checked before anything is read. Tables are not read by pandas: it takes a line that was cut off for one with
empty cells, and does not name the line of a wrong cell.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

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
    """Open a plain or gzipped file for reading (distinguished by the first bytes).

    Yields:
        The unpacked bytes.

    Raises:
        DataNotFound: The file does not exist.
        UnreadableFile: It is a directory, cannot be read, or is a truncated or damaged gzip file.
    """
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
    """Raise UnreadableFile if `path` is too small to hold `size` unpacked bytes.

    A gzip file cannot hold more than 1032 times its own size (deflate spends two bits at least on 258 bytes), so a
    header that promises more is false.

    Raises:
        UnreadableFile: The file cannot hold that much.
    """
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


_PIXELS = 3 * 32 * 32
_MOST_CIFAR_RECORDS = 60_000
_LARGEST_LABELS = {1: (9,), 2: (19, 99)}


def read_cifar(
    path: str | Path, *, labels_each: Literal[1, 2]
) -> tuple[UInt8[Tensor, "n 3 32 32"], UInt8[Tensor, "n labels"]]:
    """Return pixels and labels of one file in CIFAR's binary format, plain or gzipped.

    A record is 1 label byte (CIFAR-10) or 2 (CIFAR-100: coarse, then fine), then 1024 red, 1024 green and 1024 blue
    bytes, row by row. There is no header; at most 60,000 records, the size of the whole set, are unpacked.

    Args:
        labels_each: Label bytes per record, 1 or 2.

    Returns:
        Pixels 0 to 255 and labels, both uint8.

    Raises:
        UnreadableFile: It is no whole number of records, too long, or holds labels that do not exist.
    """
    path = Path(path)
    record = labels_each + _PIXELS
    content = read_bounded(path, record * _MOST_CIFAR_RECORDS)
    if not content or len(content) % record:
        raise UnreadableFile(
            f"{path} must hold whole records of {record} bytes; it holds {len(content):,} bytes, that is "
            f"{len(content) / record:.2f} records. Fetch it again."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = records[:, :labels_each]
    for column, largest in enumerate(_LARGEST_LABELS[labels_each]):
        found = int(labels[:, column].max())
        if found > largest:
            raise UnreadableFile(
                f"{path} must hold labels 0 to {largest} in byte {column} of every record; it holds {found}. "
                "Is it another file?"
            )
    return records[:, labels_each:].reshape(-1, 3, 32, 32), labels


_MOST_CSV_BYTES = 64 * 2**20


def _splitter(line: str) -> Callable[[str], list[str]]:
    """Return the separator of a table: a comma if the first line has one, else blanks."""
    return (lambda text: [cell.strip().strip('"') for cell in text.split(",")]) if "," in line else str.split


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _is_header(path: Path, cells: list[str], columns: Sequence[str]) -> bool:
    if all(_is_number(cell) for cell in cells):
        return False
    if [cell.lower() for cell in cells] == [column.lower() for column in columns]:
        return True
    raise UnreadableFile(
        f"{path} must begin with the columns {', '.join(columns)}, or with numbers; it begins with "
        f"{', '.join(cells)[:80]!r}. Is it another file?"
    )


def _numbers(path: Path, line: int, cells: list[str], columns: Sequence[str]) -> list[float]:
    if len(cells) != len(columns):
        raise UnreadableFile(
            f"{path} must have {len(columns)} numbers in every line; line {line} has {len(cells)}. Fetch it again."
        )
    for cell, column in zip(cells, columns, strict=True):
        if not _is_number(cell):
            raise UnreadableFile(
                f"{path} must hold finite numbers; line {line}, column {column}, holds {cell!r}. Correct or delete it."
            )
    return [float(cell) for cell in cells]


def read_table(path: str | Path, columns: Sequence[str]) -> Float64[Tensor, "n columns"]:
    """Return the numbers of a text table, plain or gzipped, in the file's order.

    Cells are separated by commas, or by blanks where the first line has no comma; empty lines are passed over. A
    header line may be there or not; if it is, it must name `columns` (upper and lower case do not matter).

    Args:
        path: The file, 64 MiB unpacked at most.
        columns: Names of its columns, in order.

    Returns:
        One row per line, float64.

    Raises:
        UnreadableFile: Another header, a line of another length, or a cell that is no finite number.
    """
    path = Path(path)
    text = read_bounded(path, _MOST_CSV_BYTES).decode("utf-8-sig", errors="replace")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    cut = _splitter(lines[0][1] if lines else "")
    if lines and _is_header(path, cut(lines[0][1]), columns):
        del lines[0]
    if not lines:
        raise UnreadableFile(f"{path} must hold at least one line of numbers; it holds none. Fetch it again.")
    return torch.tensor([_numbers(path, number, cut(line), columns) for number, line in lines], dtype=torch.float64)
