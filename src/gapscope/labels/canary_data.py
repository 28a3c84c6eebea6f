"""Data sets with canaries: their samples, and the labels of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.batches import LABEL_NAMES
from gapscope.base.columns import library_of
from gapscope.base.errors import InvalidInput, describe_value, join_names
from gapscope.base.targets import IGNORED
from gapscope.base.type_guards import has_length, is_list, is_list_or_tuple, is_mapping


class DataWithCanaries(Dataset):
    """Data set with replacements for some samples, and additional ones.

    It takes the indices of the data set: also negative ones, slices, lists, and names of columns of Hugging Face.
    """

    def __init__(
        self, dataset: Any, replacements: Mapping[int, Any], additions: Sequence[Any]
    ) -> None:
        self.dataset = dataset
        self.replacements = replacements
        self.additions = additions

    def __len__(self) -> int:
        return len(self.dataset) + len(self.additions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._several(range(len(self))[index])
        if is_list_or_tuple(index) or getattr(index, "ndim", 0) == 1:
            return self._several(index)
        if isinstance(index, str):
            return _together([self[i][index] for i in range(len(self))])
        # of a range, which takes negative indices and raises IndexError for those out of it
        return self._sample(range(len(self))[int(index)])

    def _sample(self, index: int) -> Any:
        if index >= len(self.dataset):
            return self.additions[index - len(self.dataset)]
        if index in self.replacements:
            return self.replacements[index]
        return self.dataset[index]

    def _several(self, indices: Iterable[Any]) -> Any:
        """Return samples as their data set does: a list, or of Hugging Face a mapping of columns."""
        samples = [self[index] for index in indices]
        if library_of(self.dataset) != "datasets":
            return samples
        if not samples:
            return self.dataset[:0]
        return {name: _together([sample[name] for sample in samples]) for name in samples[0]}


def _together(values: list[Any]) -> Any:
    """Return values as one tensor if they are tensors of one shape, else as a list."""
    if not values or not all(isinstance(value, Tensor) for value in values):
        return values
    if len({value.shape for value in values}) > 1:
        return values
    return torch.stack(values)


def check_data(data: Any, n_samples: int) -> None:
    """Raise InvalidInput unless data have a length and samples by index, at least `n_samples`."""
    has_samples = has_length(data) and hasattr(data, "__getitem__")
    is_of_columns = is_mapping(data) or isinstance(data, tuple) or library_of(data) == "pandas"
    if not has_samples or is_of_columns or isinstance(data, str):
        advice = "Pass list(data) if the samples fit into memory."
        if is_of_columns:
            advice = "Pass a list of samples, or datasets.Dataset.from_dict or .from_pandas."
        raise InvalidInput(
            f"Got {type(data).__name__}; canaries need a data set with a length, whose items are samples. {advice}"
        )
    if len(data) < n_samples:
        raise InvalidInput(
            f"Got a data set with {len(data)} samples; canaries need at least {n_samples}. Pass more samples."
        )


def label_name(sample: Any) -> str:
    """Return the key of the labels, or raise InvalidInput if there is none."""
    if not is_mapping(sample):
        raise InvalidInput(
            f"Samples must be mappings with labels; got {describe_value(sample)}. Pass {{'x': x, 'labels': y}}."
        )
    name = next((name for name in LABEL_NAMES if name in sample), None)
    if name is None:
        raise InvalidInput(
            f"Samples must be mappings with labels; got the keys {join_names(sample)}. Add 'labels'."
        )
    return name


def label_key(sample: Any) -> Any:
    """Return the key of the labels of a mapping, or 1 for a pair (x, y); raise InvalidInput for other samples."""
    if is_list_or_tuple(sample) and len(sample) == 2:
        return 1
    return label_name(sample)


def whole_numbers(labels: Any, name: str) -> Tensor:
    """Return labels of a sample as a tensor, or raise InvalidInput if they are no numbers.

    Args:
        labels: The labels.
        name: What the message calls them.

    Raises:
        InvalidInput: They are text, None, or of several lengths.
    """
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"Got {name} {labels!r:.60}; canaries need class numbers. Number the classes 0, 1, 2, ..., and mark "
            f"missing labels by {IGNORED}."
        ) from None


def class_of(sample: Any, n_classes: int) -> Tensor | None:
    """Return the class of a sample as a tensor with one value; None for a sample that does not count.

    Args:
        sample: A mapping with a label, or a pair (x, y).
        n_classes: Number of classes.

    Raises:
        InvalidInput: The sample has no class below `n_classes`.
    """
    key = label_key(sample)
    label = whole_numbers(sample[key], "the label")
    if label.numel() != 1:
        raise InvalidInput(
            f"of_labels needs one class per sample; got {key} {list(label.shape)}. Pass pairs of your own, "
            "PairedCanaries(dataset, trained, others)."
        )
    value = label.item()
    if value == IGNORED:
        return None
    if label.dtype == torch.bool and n_classes != 2:
        raise InvalidInput(
            f"Got a label that is {value} with n_classes={n_classes}; these are two classes. Pass n_classes=2."
        )
    is_real = label.is_floating_point() or label.is_complex()
    if is_real and (n_classes != 2 or value not in (0, 1)):
        raise InvalidInput(
            f"Got the label {value:g} in floating point; of_labels needs classes. Pass integers if these are classes. "
            "For regression pass pairs of your own, PairedCanaries(dataset, trained, others)."
        )
    if not 0 <= value < n_classes:
        raise InvalidInput(
            f"Got the label {value}; n_classes={n_classes} allows 0 to {n_classes - 1}. Pass the number of all "
            f"classes, numbered 0, 1, 2, ...; mark missing labels by {IGNORED}."
        )
    return label


def with_values(sample: Any, values: Mapping[Any, Tensor]) -> Any:
    """Return a copy of a sample with other integers, in the types of those that it has.

    Args:
        sample: A mapping, or a pair.
        values: Key (or position) -> integers.
    """
    converted = {key: _in_type_of(sample[key], value) for key, value in values.items()}
    if is_mapping(sample):
        return {**sample} | converted
    parts = [converted.get(i, part) for i, part in enumerate(cast("Sequence[Any]", sample))]
    if is_list(sample):
        return parts
    return tuple(parts)


def _in_type_of(given: Any, value: Tensor) -> Any:
    """Return a tensor of integers in the type of a given value: a tensor, an array, a list or a number."""
    if isinstance(given, Tensor):
        return value.to(given.dtype)
    if isinstance(given, np.ndarray | np.generic):
        return value.numpy().astype(given.dtype)[()]
    plain = value.tolist()
    if isinstance(given, list):
        return plain
    return type(given)(plain)
