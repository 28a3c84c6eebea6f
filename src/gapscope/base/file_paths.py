"""Texts that are paths of files: their words are names of folders and files, which often give the label away."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from gapscope.base.errors import InvalidInput

MIN_SHARE = 0.9
"""Fraction of the texts that are paths, by judgment: others may be empty or wrong."""
_FILE = re.compile(
    r"[^\n]*[^\s/\\]\.(jpe?g|png|bmp|gif|tiff?|webp|heic|pgm|ppm|svg|np[yz]|pth?|mat|h5|hdf5|dcm|nii|nrrd|wav|mp3|flac"
    r"|ogg|m4a|aac|mp4|avi|mov|mkv|webm|txt|csv|tsv|json|xml|parquet|pdf|docx?|html?|pkl|bin|dat)(\.gz)?(\?\S*)?",
    re.IGNORECASE,
)


def are_file_paths(values: Iterable[Any]) -> bool:
    """Return whether nearly all values that are not missing are paths of files, as text or as objects.

    Args:
        values: Cells of a column, or texts.
    """
    cells = [str(value).strip() for value in values if isinstance(value, str | PurePath)]
    cells = [cell for cell in cells if cell]
    n = sum(_FILE.fullmatch(cell) is not None for cell in cells)
    return n > 0 and n >= MIN_SHARE * len(cells)


# UUIDs, and digests of 64 bits or more as hexadecimal digits
_DIGEST = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}", re.IGNORECASE)
# Largest fraction of one digit in digests, by judgment: 1/16 is expected, and bits or fingerprints have half zeros.
MAX_DIGIT = 0.15
# one word before a number at the end, but neither a time nor a text: "A-1027", "visit 17"
_NUMBERED = re.compile(r"((?=\S*[A-Za-z])\S*[^\d\s] ?)(\d+)")
# rows from which values of their own are codes, by judgment
MIN_CODES = 10


def are_codes(values: Iterable[Any]) -> bool:
    """Return whether each value surely names its row alone, so that it tells nothing about what the row holds.

    All are different, and paths of files, digests such as UUIDs, or one word with a number that counts the rows in
    their order. Other texts, such as formulae, times or sizes, may be measured.

    Args:
        values: Cells of a column.
    """
    passed = list(values)
    cells = [str(value).strip() for value in passed if isinstance(value, str | PurePath)]
    if not MIN_CODES <= len(cells) == len(passed) == len(set(cells)):
        return False
    return are_file_paths(cells) or _are_digests(cells) or _count_rows(cells)


def _are_digests(cells: list[str]) -> bool:
    """Return whether all cells are digests, of which every digit is as frequent as another."""
    if not all(_DIGEST.fullmatch(cell) for cell in cells):
        return False
    digits = "".join(cells).lower().replace("-", "")
    return max(map(digits.count, set(digits))) <= MAX_DIGIT * len(digits)


def _count_rows(cells: list[str]) -> bool:
    """Return whether all cells are one word, and a number that is one more than that of the row before."""
    found = [_NUMBERED.fullmatch(cell) for cell in cells]
    parts = [match.groups() for match in found if match is not None]
    if len(parts) < len(cells) or len({word for word, _ in parts}) > 1:
        return False
    numbers = [int(number) for _, number in parts]
    return all(after == before + 1 for before, after in pairwise(numbers))


def refuse_file_paths(values: Iterable[Any], owner: str = "The inputs") -> None:
    """Raise InvalidInput if nearly all values are paths of files.

    Args:
        values: Cells of a column, or texts.
        owner: What holds them, for the message.

    Raises:
        InvalidInput: They are.
    """
    cells = list(values)
    if not are_file_paths(cells):
        return
    raise InvalidInput(
        f"{owner} must hold features or texts; got paths of files, such as {str(cells[0])[-60:]!r}. Pass the folder "
        "(gapscope.data.ImageFolder), the decoded files, or their features."
    )
