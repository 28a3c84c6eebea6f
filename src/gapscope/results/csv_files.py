"""CSV files for spreadsheet programs: text that looks like a formula is quoted, and read back as it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.files import write_output

if TYPE_CHECKING:
    import pandas

# cells that spreadsheet programs take for a formula, behind quotes and spaces; full-width signs count as well
_FORMULA = re.compile("'*(\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])")


def to_csv_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet program takes for a formula (text gets a quote in front).

    Numbers are returned as they are. `from_csv_cell` is the inverse.

    >>> [to_csv_cell(value) for value in ("cat", "=1+1", "-3", -3, "'=1")]
    ['cat', "'=1+1", "'-3", -3, "''=1"]
    """
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return value


def from_csv_cell(value: Any) -> Any:
    """Return the value of which `to_csv_cell` made the cell.

    >>> [from_csv_cell(cell) for cell in ("cat", "'=1+1", "''=1", "'tis")]
    ['cat', '=1+1', "'=1", "'tis"]
    """
    if isinstance(value, str) and value.startswith("'") and _FORMULA.match(value[1:]):
        return value[1:]
    return value


def write_csv(path: str | Path, table: pandas.DataFrame) -> Path:
    """Write a table as CSV (UTF-8, no index), atomically and without formulas, and return its path.

    Raises:
        NotWritten: See `gapscope.base.files.check_output`; call that before the work.
    """
    cells = table.map(to_csv_cell)
    cells.columns = [to_csv_cell(name) for name in table.columns]
    return write_output(path, cells.to_csv(index=False))
