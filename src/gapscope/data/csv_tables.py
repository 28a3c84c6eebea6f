"""Text tables of numbers: comma- or space-separated, with or without a header.

Not pandas: it takes a line that was cut off for one with empty cells, and does not name the line of a wrong cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from gapscope.base.errors import UnreadableFile
from gapscope.data.compressed import read_bounded

_MOST_BYTES = 64 * 2**20


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
    text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig", errors="replace")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    cut = _splitter(lines[0][1] if lines else "")
    if lines and _is_header(path, cut(lines[0][1]), columns):
        del lines[0]
    if not lines:
        raise UnreadableFile(f"{path} must hold at least one line of numbers; it holds none. Fetch it again.")
    return torch.tensor([_numbers(path, number, cut(line), columns) for number, line in lines], dtype=torch.float64)
