"""Text of files in any encoding, also gzipped; what holds no text is named."""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from gapscope.base.errors import UnreadableFile

BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
READABLE = "a CSV, JSON or Parquet file"
SAVE = "Save the table as CSV (UTF-8)."
# by judgment: tables have a stray control character at most; of random bytes they are one in ten
MAX_CONTROL = 0.01
OTHER = "Pass another file."
NOT_TEXT = {
    b"PK\x03\x04": ("a spreadsheet or zip file", f"{SAVE[:-1]}, or unpack it."),
    b"\xd0\xcf\x11\xe0": ("an old spreadsheet file", SAVE),
    b"ARROW1": (
        "a Feather file",
        "Save the table as Parquet: pandas.read_feather(path).to_parquet(...).",
    ),
    b"\x89HDF": (
        "an HDF5 file",
        "Save the table as Parquet: pandas.read_hdf(path).to_parquet(...).",
    ),
    b"SQLite format 3": ("an SQLite database", SAVE),
    b"PAR1": ("a Parquet file", f"{SAVE[:-1]}, or give it the ending .parquet."),
    b"\x89PNG": ("a picture", OTHER),
    b"\xff\xd8\xff": ("a picture", OTHER),
    b"%PDF": ("a PDF document", SAVE),
} | {
    # the protocols of pickle that pandas writes
    bytes([0x80, protocol]): (
        "a pickle file",
        "Save the table as Parquet: pandas.read_pickle(path).to_parquet(...).",
    )
    for protocol in (2, 3, 4, 5)
}
"""First bytes of files that are no text: what they are, and what to do."""


def _read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is gzipped."""
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            return gzip.decompress(content)
        return content
    except FileNotFoundError:
        raise UnreadableFile(
            f"{path} must be a table; there is no such file. Check the path."
        ) from None
    except IsADirectoryError:
        raise UnreadableFile(
            f"{path} must be a table; it is a folder. Pass the path of a file."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableFile(
            f"{path} must be a table that can be read; reading it failed: {error}."
        ) from None


@dataclass(frozen=True)
class FileText:
    """Text of a file as it is stored.

    Attributes:
        text: The text with its ends of lines, without byte order mark.
        codec: Name by which Python encodes it to the same bytes.
        mark: The byte order mark, or nothing.
        encoding: The encoding for messages, if it is not UTF-8; else empty.
    """

    text: str
    codec: str
    mark: bytes
    encoding: str


def read_text(path: Path, needed: str = READABLE) -> tuple[str, str]:
    """Return the text of a file, and its encoding if that is not UTF-8.

    Args:
        path: File, perhaps gzipped.
        needed: Formats that the caller reads, for messages.

    Raises:
        UnreadableFile: It is missing or no text.
    """
    stored = read_stored_text(path, needed)
    text = re.sub(r"[\udc80-\udcff]", "\ufffd", stored.text)  # bytes that are no character
    return text.replace("\r\n", "\n").replace("\r", "\n"), stored.encoding


def read_stored_text(path: Path, needed: str = READABLE) -> FileText:
    """Return the text of a file with its ends of lines and its encoding.

    Args:
        path: File, perhaps gzipped.
        needed: Formats that the caller reads, for messages.

    Raises:
        UnreadableFile: It is missing or no text.
    """
    content = _read_bytes(path)
    # an array, or an archive whose first file is one
    is_archive = content.startswith(b"PK") and b".npy" in content[30:300]
    if is_archive or content.startswith(b"\x93NUMPY"):
        raise UnreadableFile(
            f"{path} must be {needed}; it holds arrays of NumPy. Pass them in Python: "
            "gapscope.forecast_accuracy(None, (x, y)), or a function: gapscope forecast module:function."
        )
    if content.startswith(b"PK") and b"data.pkl" in content[30:300]:
        raise UnreadableFile(
            f"{path} must be {needed}; it is a file of torch.save, which gapscope never unpickles. Pass the table, or "
            "a function that returns network and data: module:function."
        )
    kind = next((kind for start, kind in NOT_TEXT.items() if content.startswith(start)), None)
    if kind is not None:
        raise UnreadableFile(f"{path} must be {needed}; it is {kind[0]}. {kind[1]}")
    mark = next((mark for mark in BYTE_ORDER_MARKS if content.startswith(mark)), b"")
    # text in UTF-16 without a mark has a zero in nearly every second byte
    half = len(content[:4000]) // 2
    zeros = [content[:4000][start::2].count(0) for start in (0, 1)]
    codec = BYTE_ORDER_MARKS.get(mark, "")
    if not mark and max(zeros) > 0.4 * half:
        codec = "utf-16-le"
        if zeros[0] > zeros[1]:
            codec = "utf-16-be"
    content = content[len(mark) :]
    encoding = ""
    if codec.startswith("utf-16"):
        encoding = "UTF-16"
    damaged = UnreadableFile(
        f"{path} must be text; its {codec} is damaged. Save it as CSV (UTF-8)."
    )
    if encoding and len(content) > 2 and 0 not in content:  # not even an end of a line
        raise damaged
    try:
        text = content.decode(codec or "utf-8")
    except UnicodeDecodeError:
        if codec:
            raise damaged from None
        codec = "cp1252"
        encoding = "Latin-1 (Windows-1252)"
        text = content.decode(codec, errors="surrogateescape")
    n_control = sum(text.count(chr(code)) for code in range(32) if chr(code) not in "\t\n\v\f\r")
    if "\0" in text or n_control > MAX_CONTROL * len(text):
        raise UnreadableFile(
            f"{path} must be {needed}; it holds bytes that are no text. Pass another file."
        )
    return FileText(text, codec or "utf-8", mark, encoding)
