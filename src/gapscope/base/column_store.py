"""Column store of JSON rows: small, fast to read, exact (without torch)."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas

ABSENT = -1
NAN = float("nan")


def _packed(numbers: array[Any]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()


def _unpacked(code: Literal["d", "i"], text: str) -> array[Any]:
    numbers: array[Any] = array(code)
    numbers.frombytes(base64.b64decode(text, validate=True))
    return numbers


class _Column:
    """Column: floats, or indices into the list of distinct values."""

    def __init__(self) -> None:
        self.floats: array[float] | None = array("d")
        self.values: list[Any] = []
        self.codes: array[int] = array("i")
        self._code_of: dict[tuple[type, Any], int] = {}

    def __len__(self) -> int:
        return len(self.codes) if self.floats is None else len(self.floats)

    def put(self, row: int, value: Any) -> None:
        """Set the value of a row after all others (skipped rows have none)."""
        if len(self) < row:
            self.pad(row)
        if self.floats is not None:
            if value.__class__ is float:
                self.floats.append(value)
                return
            self._to_codes()
        # 1, 1.0 and True are equal, and three values
        key = (value.__class__, value)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self.values)
            self.values.append(value)
        self.codes.append(code)

    def pad(self, length: int) -> None:
        """Add rows without a value."""
        if self.floats is not None:
            self.floats.extend([NAN] * (length - len(self.floats)))
        else:
            self.codes.extend([ABSENT] * (length - len(self.codes)))

    def _to_codes(self) -> None:
        floats, self.floats = self.floats or array("d"), None
        for row, value in enumerate(floats):
            if value == value:  # a row that had no value is NaN, and has none again
                self.put(row, value)
        self.pad(len(floats))

    def select(self, rows: Sequence[int]) -> _Column:
        column = _Column()
        column.values, column._code_of = self.values, self._code_of
        column.floats = None if self.floats is None else array("d", map(self.floats.__getitem__, rows))
        column.codes = array("i", map(self.codes.__getitem__, rows) if self.floats is None else ())
        return column

    def plain(self) -> dict[str, Any]:
        if self.floats is not None:
            return {"floats": _packed(self.floats)}
        return {"values": self.values, "codes": _packed(self.codes)}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> _Column:
        column = cls()
        if "floats" in content:
            column.floats = _unpacked("d", content["floats"])
            return column
        column.floats, column.values, column.codes = None, content["values"], _unpacked("i", content["codes"])
        column._code_of = {(value.__class__, value): code for code, value in enumerate(column.values)}
        return column

    def series(self) -> Any:
        """Return the column of a pandas.DataFrame of the rows."""
        import numpy
        import pandas

        if self.floats is not None:
            return numpy.array(self.floats, dtype=float)
        values = numpy.empty(len(self.values) + 1, dtype=object)
        values[:-1], values[-1] = self.values, numpy.nan
        return pandas.Series(values[numpy.frombuffer(self.codes, dtype=numpy.intc)]).infer_objects().to_numpy()


class ColumnStore:
    """Table of JSON values whose rows may lack any column.

    >>> store = ColumnStore([{"id": "a", "rate": 0.1}, {"id": "b", "depth": 3}])
    >>> store.column("rate"), store.column("depth")
    ([0.1, nan], [None, 3])
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._columns: dict[str, _Column] = {}
        self._length = 0
        self.extend(rows)

    def __len__(self) -> int:
        return self._length

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order of first appearance."""
        return list(self._columns)

    def extend(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows."""
        columns = self._columns
        for row in rows:
            for name, value in row.items():
                if name not in columns:
                    columns[name] = _Column()
                columns[name].put(self._length, value)
            self._length += 1
        for column in columns.values():
            column.pad(self._length)

    def select(self, rows: Sequence[int]) -> ColumnStore:
        """Return a store of some rows, in the given order."""
        store = ColumnStore()
        store._columns = {name: column.select(rows) for name, column in self._columns.items()}
        store._length = len(rows)
        return store

    def column(self, name: str) -> list[Any]:
        """Return the values of one column (missing numbers are NaN, other missing values None)."""
        column = self._columns.get(name)
        if column is None:
            return [None] * self._length
        if column.floats is not None:
            return column.floats.tolist()
        values = [*column.values, None]
        return [values[code] for code in column.codes]

    def to_plain(self) -> dict[str, Any]:
        """Return JSON-serializable values (floats keep all their bits)."""
        columns = {name: column.plain() for name, column in self._columns.items()}
        return {"byteorder": sys.byteorder, "length": self._length, "columns": columns}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> ColumnStore:
        """Build from what `to_plain` returned.

        Raises:
            ValueError: It was written on a machine of another byte order, or its columns differ in length.
        """
        store = cls()
        store._length = content["length"]
        store._columns = {name: _Column.from_plain(column) for name, column in content["columns"].items()}
        if content["byteorder"] != sys.byteorder or any(len(c) != store._length for c in store._columns.values()):
            raise ValueError("the columns are not as this machine writes them")
        return store

    def to_pandas(self, names: Sequence[str], index: str) -> pandas.DataFrame:
        """Return the columns `names` that any row has as a DataFrame with the given index column.

        Args:
            names: Which, in this order; a column that no row has is left out.
        """
        import pandas

        known = [name for name in names if name in self._columns and name != index]
        rows = pandas.Index(self.column(index), name=index, dtype=None if self._length else object)
        return pandas.DataFrame({name: self._columns[name].series() for name in known}, index=rows, copy=False)
