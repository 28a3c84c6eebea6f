"""Texts that are paths of files: their words are names of folders and files, which often give the label away."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


# letters, digits and signs that join them, with a digit: "A-1027", "scan_03/17", but no text and no chemical formula
_CODE = re.compile(r"(?=.*\d)[A-Za-z0-9][\w.:/\\#-]*", re.ASCII)
# rows from which values of their own are codes, by judgment
MIN_CODES = 10


def are_codes(values: Iterable[Any]) -> bool:
    """Return whether all values are different paths of files, or different codes: they name the rows alone.

    Args:
        values: Cells of a column.
    """
    cells = [str(value).strip() for value in values if isinstance(value, str | PurePath)]
    if len(cells) < MIN_CODES or len(set(cells)) < len(cells):
        return False
    return are_file_paths(cells) or all(_CODE.fullmatch(cell) for cell in cells)


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
