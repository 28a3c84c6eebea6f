"""Recorded values of a training run as a table that can be saved, loaded and plotted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import UnreadableFile
from gapscope.base.files import read_json, write_atomically
from gapscope.results.plots import plot_lines
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas


class Recordings(Result):
    """Recorded numbers of a training run, one row per recording (without the monitor's data).

    Args:
        epochs: Epoch of each recording.
        rows: Name -> number of each recording.

    >>> Recordings([1, 2], [{"loss": 0.5}, {"loss": 0.25}]).to_pandas()["loss"].to_dict()
    {1: 0.5, 2: 0.25}
    """

    def __init__(self, epochs: Iterable[int], rows: Iterable[Mapping[str, float]]) -> None:
        self.epochs, self.rows = list(epochs), [dict(row) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Return one dictionary per recording, in a list called "rows"."""
        return {"rows": [{"epoch": epoch} | row for epoch, row in zip(self.epochs, self.rows, strict=True)]}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per recording, indexed by epoch, and one column per number."""
        import pandas

        return pandas.DataFrame(self.rows, index=pandas.Index(self.epochs, name="epoch"))

    def save(self, path: str | Path) -> None:
        """Write the recordings to a JSON file for `load`, atomically."""
        write_atomically(Path(path), self.to_json(indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Recordings:
        """Read a file that `save` wrote.

        Raises:
            UnreadableFile: The file is truncated, or holds something else.
        """
        content = read_json(Path(path))
        rows = content.get("rows") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "epoch" in row for row in rows):
            raise UnreadableFile(f"{path} must hold recordings; it does not. Pass a file that Monitor.save wrote.")
        numbers = [{name: float(value) for name, value in row.items() if name != "epoch"} for row in rows]
        return Recordings([row["epoch"] for row in rows], numbers)

    def plot(self) -> list[Any]:
        """Plot every number over the epochs, and return the matplotlib axes."""
        columns = {name: [row[name] for row in self.rows] for name in (self.rows[0] if self.rows else ())}
        return plot_lines(self.epochs, columns, marked={})
