"""Text of files in any encoding, also gzipped; what holds no text is named."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from gapscope.base.errors import UnreadableFile

BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
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


def read_text(path: Path, needed: str = READABLE) -> tuple[str, str]:
    """Return the text of a file, and its encoding if that is not UTF-8.

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
    marked = next(
        (name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), None
    )
    # text in UTF-16 without a mark has a zero in nearly every second byte
    half = len(content[:4000]) // 2
    zeros = [content[:4000][start::2].count(0) for start in (0, 1)]
    if marked is None and max(zeros) > 0.4 * half:
        marked = "utf-16-le"
        if zeros[0] > zeros[1]:
            marked = "utf-16-be"
    try:
        text = content.decode(marked or "utf-8")
        encoding = "UTF-16"
        if marked in (None, "utf-8-sig"):
            encoding = ""
    except UnicodeDecodeError:
        if marked is not None:
            raise UnreadableFile(
                f"{path} must be text; its {marked} is damaged. Save it as CSV (UTF-8)."
            ) from None
        text = content.decode("cp1252", errors="replace")
        encoding = "Latin-1 (Windows-1252)"
    n_control = sum(text.count(chr(code)) for code in range(32) if chr(code) not in "\t\n\v\f\r")
    if "\0" in text or n_control > MAX_CONTROL * len(text):
        raise UnreadableFile(
            f"{path} must be {needed}; it holds bytes that are no text. Pass another file."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n"), encoding
