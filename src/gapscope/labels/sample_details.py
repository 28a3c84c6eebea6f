"""What a reviewer needs to recognize a sample: columns, text, file, class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.base.own_classes import underlying
from gapscope.base.type_guards import is_list_or_tuple

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SampleDetails:
    """Original forms of the samples, by their row in the data.

    Attributes:
        table: Columns of a pandas frame, as they were passed; None for other data.
        names: Name of each sample: file path, text or name that was passed; empty without names.
    """

    table: pandas.DataFrame | None = None
    names: Sequence[str] = ()

    def name(self, index: int) -> str:
        """Return the name of a sample (empty if it has none).

        Args:
            index: Row number of the sample in the data.
        """
        if index < len(self.names):
            return str(self.names[index])
        return ""


def _is_frame(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "columns")


def _paths(folder: Any) -> list[str]:
    """Return the paths of an image folder, which torchvision and others store as pairs (path, class)."""
    for attribute in ("samples", "imgs"):
        pairs = getattr(folder, attribute, None)
        if is_list_or_tuple(pairs) and pairs and is_list_or_tuple(pairs[0]):
            return [str(pair[0]) for pair in pairs]
    return []


def sample_details(data: Any, names: Sequence[Any] | None, n: int) -> SampleDetails:
    """Return the details of the samples in the first n rows of the data.

    Args:
        data: Data as the user passed them: (inputs, labels), a data set, a loader, or features.
        names: Names of the rows of the data, in their order; None to use the paths of an image folder.
        n: Number of the last row that is a sample, plus 1; rows without a label may follow.

    Raises:
        InvalidInput: There are fewer than n names.
    """
    if names is not None and len(names) < n:
        raise InvalidInput(f"Got {len(names)} names for {n} samples; one per sample is needed.")
    inputs: Any = data[0] if is_list_or_tuple(data) and len(data) else data
    table: Any = inputs if _is_frame(inputs) and len(inputs) >= n else None
    if names is not None:
        return SampleDetails(table, [str(name) for name in names])
    folder, rows = underlying(data)
    paths = _paths(folder)
    if rows is not None and paths:
        paths = [paths[row] for row in rows]
    return SampleDetails(table, paths if len(paths) >= n else ())
