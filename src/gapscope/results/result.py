"""Base class of results: text, HTML, pandas, JSON, plot."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import GapscopeError, UnreadableFile
from gapscope.base.files import read_json, standard_json, to_json, write_output
from gapscope.base.renamed import new_name
from gapscope.base.type_guards import is_dict, is_list_or_tuple, is_mapping
from gapscope.results.estimate import Estimate
from gapscope.results.formatting import format_number

if TYPE_CHECKING:
    import pandas


# rows and pixels of a cell in a notebook
MAX_ROWS, MAX_SIDE = 20, 64


def picture(result: Any) -> str:
    """Return a result's plot as an inline image (empty without a plot)."""
    draw = getattr(result, "plot", None)
    if draw is None:
        return ""
    import matplotlib.pyplot as plt

    try:
        axes = draw()
    except GapscopeError:
        return ""
    figure = cast(Any, axes[0] if isinstance(axes, list) else axes).figure
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=60)
    plt.close(figure)  # notebooks would show an open figure a second time
    return f'<img alt="plot" src="{_png_uri(content)}">'


def _png_uri(content: io.BytesIO) -> str:
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def data_uri(sample: Any) -> str:
    """Encode an image [h, w] or [1 or 3, h, w] as a PNG data URI of at most 64 pixels.

    The smallest value is black, the largest white; non-finite values are black.
    """
    import numpy
    from PIL import Image

    if not hasattr(sample, "shape"):
        sample = numpy.asarray(sample)
    shape = tuple(sample.shape)
    if (
        len(shape) not in (2, 3)
        or min(shape[-2:]) < 2
        or (len(shape) == 3 and shape[0] not in (1, 3))
    ):
        return ""
    step = -(-max(shape[-2:]) // MAX_SIDE)
    image = numpy.array(sample[..., ::step, ::step].tolist(), dtype=float)
    if image.ndim != 2:
        image = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
    finite = numpy.isfinite(image)
    low, high = (image[finite].min(), image[finite].max()) if finite.any() else (0.0, 1.0)
    scaled = numpy.where(finite, (image - low) / (high - low or 1.0), 0.0)
    content = io.BytesIO()
    Image.fromarray((scaled * 255).round().astype(numpy.uint8)).save(content, "png", optimize=True)
    return _png_uri(content)


def _format_cell(value: float) -> str:
    return format_number(value, 4)


def to_html(result: Any, sentences: Iterable[str], table: Any = None, *, index: bool = True) -> str:
    """Return paragraphs, table (default `result.to_pandas()`) and plot of a result."""
    if table is None:
        table = result.to_pandas()
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in sentences)
    lines += table.head(MAX_ROWS).to_html(float_format=_format_cell, index=index)
    if len(table) > MAX_ROWS:
        lines += f"<p>{len(table) - MAX_ROWS} more rows: to_pandas()</p>"
    return f"<div>{lines}{picture(result)}</div>"


Row = TypeVar("Row")


def to_builtin(value: Any) -> Any:
    """Return numbers, texts, lists and dictionaries for a value of a result.

    Estimates become `{"value": ..., "standard_error": ...}`, tensors and arrays nested lists, data classes dictionaries
    of their fields, tuples lists. Non-finite numbers stay as they are.

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
    if to_list is None:
        return value
    return to_list()


def numbers_of(row: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a data class from JSON, in which its non-finite numbers are texts."""
    floats = [item.name for item in fields(row) if item.type == "float"]
    return {**content, **{name: float(content[name]) for name in floats}}


class Result:
    """Result of several numbers, as a table and as JSON-serializable values.

    Subclasses define `to_pandas`, and `_content` unless they are a data class, a mapping or a `RowResult`.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            renamed = new_name(type(self).__name__, name)
            if renamed is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return attrgetter(renamed)(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table of the result."""
        raise NotImplementedError(f"{type(self).__name__} must define to_pandas.")

    _is_read_again: ClassVar[bool] = False  # whether the class reads its own JSON

    def _content(self) -> dict[str, Any]:
        """Return all contents as built-in values, see `to_builtin`."""
        return to_builtin(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the contents as JSON-serializable values: numbers, texts, lists and dictionaries.

        NaN and infinities are None. They stay numbers in results that can be read again (`from_json`, `load`).
        """
        content = self._content()
        if self._is_read_again:
            return content
        return standard_json(content, null=True)

    @check_arguments
    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON; NaN and infinities are null, or strings in results that can be read again.

        Args:
            indent: Spaces per level; None for a single line.
        """
        return to_json(self.to_dict(), indent=indent)

    def __repr__(self) -> str:
        return self.to_pandas().to_string(float_format=_format_cell)

    def _repr_html_(self) -> str:
        summary: Any = getattr(self, "summary", self.to_pandas)
        return to_html(
            self, getattr(self, "sentences", None) or getattr(self, "verdict", ()), summary()
        )


class RowResult(tuple[Row, ...], Result):
    """Result that is a tuple of rows, each a data class, with further attributes.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Size:
    ...     name: str
    ...     parameters: int
    >>> RowResult([Size("a", 3)], unit="weights").to_json()
    '{"rows": [{"name": "a", "parameters": 3}], "unit": "weights"}'
    """

    def __new__(cls, rows: Iterable[Row] = (), **attributes: Any) -> Self:
        """Collect the rows and the attributes."""
        result = super().__new__(cls, rows)
        vars(result).update(attributes)
        return result

    def _content(self) -> dict[str, Any]:
        """Return the list "rows" and the attributes."""
        return {"rows": [to_builtin(row) for row in self], **to_builtin(vars(self))}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one table row per row, one column per field."""
        import pandas

        return pandas.DataFrame([to_builtin(row) for row in self])

    __repr__ = Result.__repr__


class StoredRows(RowResult[Row]):
    """Rows that can be written to a JSON file and read again.

    Subclasses define `_kind`, their name in messages, `_keys`, which identify their files, and `_from`, the inverse of
    `to_dict`.
    """

    _is_read_again = True
    _kind: ClassVar[str]
    _keys: ClassVar[frozenset[str]]

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build from JSON.

        Args:
            text: Result of `to_json`.
        """
        return cls._from(json.loads(text))

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write a JSON file atomically (raises NotWritten if its folder is missing).

        Args:
            path: File to write; its folder must exist.
        """
        write_output(path, self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file.

        Args:
            path: File that `save` wrote.

        Raises:
            UnreadableFile: The file is corrupted, or has other contents.
        """
        content = read_json(Path(path))
        if not is_dict(content) or not cls._keys <= content.keys():
            raise UnreadableFile(
                f"{path} must hold {cls._kind}; it does not. Pass a file that {cls.__name__}.save wrote."
            )
        return cls._from(content)


def axes_or_new(axes: Any, *, height: float = 4.0) -> Any:
    """Return `axes`, or those of a new figure."""
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(7.0, height), layout="constrained")[1]


def panels(names: Sequence[str], *, sharex: bool = True) -> list[Any]:
    """Return the axes of a new figure, one below the other, one per name."""
    import matplotlib.pyplot as plt

    size = (7.0, 1.8 * len(names))
    _, axes = plt.subplots(
        len(names), 1, sharex=sharex, squeeze=False, figsize=size, layout="constrained"
    )
    for panel, name in zip(axes[:, 0], names, strict=True):
        panel.set_ylabel(name, rotation=0, ha="right", va="center")
    return list(axes[:, 0])


def plot_lines(
    epochs: Sequence[int], columns: Mapping[str, Sequence[float]], *, marked: Mapping[str, int]
) -> list[Any]:
    """Plot each number over epochs in its own panel, with vertical lines at `marked` epochs."""
    all_axes = panels(list(columns))
    for axes, values in zip(all_axes, columns.values(), strict=True):
        axes.plot(epochs, values, marker="." if len(epochs) < 40 else None)
        for style, (name, epoch) in zip(("--", ":"), marked.items(), strict=False):
            axes.axvline(epoch, color="tab:red", linestyle=style, label=name)
    if all_axes:
        all_axes[-1].set_xlabel("epoch")
        if marked:
            all_axes[0].legend(fontsize=8)
    return all_axes
