"""Base class of multi-value results with table and JSON export."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gapscope.base.files import to_json
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
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
    """A result of several numbers: a table for reading, JSON-serializable values for keeping.

    A subclass gives `to_pandas`; one that is no data class, tuple of rows or mapping gives `to_dict` too.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table of the result."""
        raise NotImplementedError(f"{type(self).__name__} must define to_pandas.")

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the result holds as JSON-serializable values, see `plain`."""
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
        """Return one row a row, one column a field."""
        import pandas

        return pandas.DataFrame([to_builtin(row) for row in self])

    __repr__ = Result.__repr__
