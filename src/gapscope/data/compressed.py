"""Bytes of plain or gzipped files, never more of them than the reader expects."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

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
