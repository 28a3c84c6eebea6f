"""Base class of multi-value results with table and JSON export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from gapscope.base.errors import UnreadableFile
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.type_guards import is_dict, is_list_or_tuple, is_mapping
from gapscope.results.estimate import Estimate

if TYPE_CHECKING:
    import pandas

Row = TypeVar("Row")


def to_builtin(value: Any) -> Any:
    """Return numbers, texts, lists and dictionaries for a value of a result.

    Args:
        value: Estimates become `{"value": ..., "standard_error": ...}`, tensors and arrays nested lists, data classes
            dictionaries of their fields, tuples lists.

    Returns:
        The plain value; non-finite numbers stay as they are (`to_json` writes them as strings).

    >>> to_builtin({"a": (Estimate(1.0, 0.5), 2)})
    {'a': [{'value': 1.0, 'standard_error': 0.5}, 2]}
    """
    if isinstance(value, Estimate):
        return {"value": float(value), "standard_error": value.standard_error}
    if is_mapping(value):
        return {str(key): to_builtin(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_builtin(getattr(value, item.name)) for item in fields(value)}
    if is_list_or_tuple(value):
        return [to_builtin(item) for item in value]
    # tensors and NumPy arrays and scalars, without importing either
    to_list = getattr(value, "tolist", None)
    return value if to_list is None else to_list()


class Result:
    """A result of several numbers, as a table and as JSON-serializable values.

    A subclass gives `to_pandas`; one that is no data class, tuple of rows or mapping gives `to_dict` too.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table of the result."""
        raise NotImplementedError(f"{type(self).__name__} must define to_pandas.")

    def to_dict(self) -> dict[str, Any]:
        """Return all contents as JSON-serializable values, see `to_builtin`."""
        return to_builtin(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON, with NaN and infinities as strings."""
        return to_json(self.to_dict(), indent=indent)

    def __repr__(self) -> str:
        return self.to_pandas().to_string(float_format="{:.4g}".format)

    def _repr_html_(self) -> str:
        from gapscope.results.notebook import to_html

        return to_html(self, getattr(self, "sentences", ()))


class RowResult(tuple[Row, ...], Result):
    """A result that is a tuple of rows, each a data class.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Size:
    ...     name: str
    ...     parameters: int
    >>> RowResult([Size("a", 3)]).to_json()
    '{"rows": [{"name": "a", "parameters": 3}]}'
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as JSON-serializable values, in a list called "rows"."""
        return {"rows": [to_builtin(row) for row in self]}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one table row per row, one column per field."""
        import pandas

        return pandas.DataFrame([to_builtin(row) for row in self])

    __repr__ = Result.__repr__


class StoredRows(RowResult[Row]):
    """Rows that can be written to a JSON file and read again.

    A subclass gives `_kind`, its name in messages, `_keys`, which identify its files, and `_from`, the inverse of
    `to_dict`.
    """

    _kind: ClassVar[str]
    _keys: ClassVar[frozenset[str]]

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build from what `to_json` returned."""
        return cls._from(json.loads(text))

    def save(self, path: str | Path) -> None:
        """Write a JSON file atomically."""
        write_atomically(Path(path), self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote.

        Raises:
            UnreadableFile: It is truncated, or holds something else.
        """
        content = read_json(Path(path))
        if not is_dict(content) or not cls._keys <= content.keys():
            raise UnreadableFile(
                f"{path} must hold {cls._kind}; it does not. Name a file that {cls.__name__}.save wrote."
            )
        return cls._from(content)
