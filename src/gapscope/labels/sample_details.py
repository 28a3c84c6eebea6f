"""What a reviewer needs to recognize a sample: columns, text, file, class names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
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


def _folder(data: Any) -> tuple[Any, Sequence[int] | None]:
    """Return the data set behind loaders and subsets, and the rows of it that are used (None for all)."""
    rows: Sequence[int] | None = None
    while not isinstance(data, Samples) and getattr(data, "dataset", None) is not None:
        indices = getattr(data, "indices", None)
        if indices is not None:
            chosen = [int(index) for index in indices]
            if rows is None:
                rows = chosen
            else:
                rows = [chosen[row] for row in rows]
        data = data.dataset
    return data, rows


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
    folder, rows = _folder(data)
    paths = _paths(folder)
    if rows is not None and paths:
        paths = [paths[row] for row in rows]
    return SampleDetails(table, paths if len(paths) >= n else ())


def with_class_names(samples: Samples, data: Any) -> Samples:
    """Return the samples with the class names of their data set, if labels are its class numbers.

    Args:
        samples: Samples of the data.
        data: Data as the user passed them; `classes` of a data set are its names, as in torchvision.
    """
    if samples.class_names or samples.targets is None or not samples.is_classification:
        return samples
    folder, _ = _folder(data)
    classes = getattr(folder, "classes", None)
    if not is_list_or_tuple(classes) or len(set(map(str, classes))) != len(classes):
        return samples
    if int(samples.targets.min()) < 0 or int(samples.targets.max()) >= len(classes):
        return samples
    return replace(samples, class_names=tuple(str(name) for name in classes))
