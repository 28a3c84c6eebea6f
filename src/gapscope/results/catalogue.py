"""Registered items by name, shown as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas

Item = TypeVar("Item")


class Catalogue(dict[str, Item]):
    """Dictionary of registered items, which is printed as a table.

    Args:
        items: Name -> item.
        describe: Function that returns the cells of an item, by column.

    >>> Catalogue({"a": 3, "bc": 4}, lambda item: {"size": item})
    name  size
       a     3
      bc     4
    """

    def __init__(
        self, items: Mapping[str, Item], describe: Callable[[Item], Mapping[str, Any]]
    ) -> None:
        super().__init__(items)
        self._describe = describe

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per item, its name first."""
        import pandas

        return pandas.DataFrame(
            [{"name": name, **self._describe(item)} for name, item in self.items()]
        )

    def __repr__(self) -> str:
        return self.to_pandas().to_string(index=False)

    def _repr_html_(self) -> str:
        return self.to_pandas().to_html(index=False)
