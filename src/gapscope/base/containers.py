"""Collation of NumPy, pandas, mappings, datasets and loaders into tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.type_guards import is_list, is_list_or_tuple, is_mapping

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
LABEL_NAMES = ("labels", "label", "targets", "target", "y")
FORMS = (
    "a tensor x, a pair (x, y) of tensors, numpy arrays or pandas objects, a mapping of inputs with 'labels', Samples, "
    "a Dataset or a DataLoader"
)


@dataclass
class CollatedData:
    """Inputs with raw targets, and notes about omitted data."""

    inputs: Inputs
    targets: Tensor | None = None
    notes: list[str] = field(default_factory=list[str])
    class_names: tuple[str, ...] = ()


def _library(value: Any) -> str:
    return type(value).__module__.split(".")[0]


def _frame_numbers(value: Any) -> Any:
    """Return the numbers of a pandas object."""
    columns = value.to_frame() if value.ndim == 1 else value
    text_columns = [str(name) for name in columns.columns if columns[name].dtype.kind not in "biuf"]
    if text_columns:
        raise InvalidInput(
            f"Columns must hold numbers; {', '.join(map(repr, text_columns[:5]))} do not. Encode them first, one "
            "column per value: pandas.get_dummies(frame, dtype=float)."
        )
    # extension types of pandas with missing values become arrays of objects
    array = value.to_numpy()
    return array if array.dtype.kind in "biuf" else value.to_numpy(dtype=float, na_value=float("nan"))


def is_column(value: Any) -> bool:
    """Return whether a value is a tensor, a numpy array or a pandas object."""
    library = _library(value)
    is_frame = library == "pandas" and hasattr(value, "columns")
    return isinstance(value, Tensor) or is_frame or (library in ("numpy", "pandas") and hasattr(value, "dtype"))


def column(value: Any) -> Tensor:
    """Return a tensor, array or pandas object as a tensor (float64 to default type)."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InvalidInput(f"data must be dense tensors; got {value.layout}. Use x.to_dense().")
        return value
    array = _frame_numbers(value) if _library(value) == "pandas" else value
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"data must hold numbers; got a NumPy array of {array.dtype}. Use x.astype(float).")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.tensor(array).contiguous()
    return tensor.to(torch.get_default_dtype()) if tensor.dtype == torch.float64 else tensor


def label_column(value: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as a tensor, and the sorted class names of strings and categories."""
    if isinstance(value, Tensor):
        return column(value), ()
    array = value.to_numpy() if _library(value) == "pandas" else value
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind not in "OUS" or array.ndim != 1:
        return column(value), ()
    missing = sum(label is None or label != label for label in array.tolist())
    if missing:
        raise InvalidInput(f"Every sample needs a label; {missing} of {len(array)} are missing. Drop these samples.")
    labels = [str(label) for label in array.tolist()]
    codes = {name: code for code, name in enumerate(sorted(set(labels)))}
    return torch.tensor([codes[label] for label in labels]), tuple(codes)


def _naming_note(names: tuple[str, ...]) -> list[str]:
    first = ", ".join(f"{code} = {name!r}" for code, name in enumerate(names[:5]))
    return [f"Labels are numbered by their sorted names: {first}{', ...' if len(names) > 5 else ''}."] if names else []


def _inputs(value: Any) -> Inputs:
    if is_column(value):
        return column(value)
    if is_mapping(value):
        return {str(name): column(part) for name, part in value.items()}
    return tuple(column(part) for part in value)


def _are_inputs(value: Any) -> bool:
    if is_mapping(value):
        return bool(value) and all(is_column(part) for part in value.values())
    return is_column(value) or (is_list_or_tuple(value) and len(value) > 0 and all(is_column(part) for part in value))


def _stack(value: Any) -> Any:
    """Stack lists of numbers per sample, which torch collates transposed."""
    if is_list(value) and value and all(isinstance(part, Tensor) and part.ndim == 1 for part in value):
        return torch.stack(value, dim=1)
    return value


def _word_array(value: Any) -> Any:
    """Return a list of strings as an array (other values unchanged)."""
    if not is_list_or_tuple(value) or not value or not all(isinstance(label, str) for label in value):
        return value
    import numpy

    return numpy.array(value)


def _renumber_classes(parts: list[CollatedData]) -> tuple[str, ...]:
    """Renumber the classes of all batches by their sorted union, and return the names."""
    names = tuple(sorted({name for part in parts for name in part.class_names}))
    for part in parts if names else []:
        if part.targets is None or not part.class_names:
            raise InvalidInput("All batches must have labels of one type; some are strings, some are not.")
        codes = torch.tensor([names.index(name) for name in part.class_names])
        part.targets = codes[part.targets]
    return names


def _from_mapping(data: Mapping[str, Any]) -> CollatedData:
    notes: list[str] = []
    data = {str(name): _stack(value) for name, value in data.items()}
    label_name, names = next((name for name in LABEL_NAMES if name in data), None), ()
    if label_name is not None:
        data[label_name] = _word_array(data[label_name])
    if label_name is not None and is_column(data[label_name]):
        data[label_name], names = label_column(data[label_name])
        notes += _naming_note(names)
    omitted = [name for name, value in data.items() if not is_column(value)]
    if omitted:
        notes.append(f"Omitted from the inputs, because they are no numbers: {', '.join(omitted)}.")
    columns = {name: column(value) for name, value in data.items() if is_column(value)}
    target = next((name for name in LABEL_NAMES if name in columns), None)
    targets = None if target is None else columns.pop(target)
    if not columns:
        raise InvalidInput(f"A mapping must hold inputs besides the labels; got {', '.join(data) or 'nothing'}.")
    return CollatedData(columns, targets, notes, names)


def _from_sequence(batch: Sequence[Any]) -> CollatedData:
    x, *rest = batch
    rest = [_word_array(rest[0]), *rest[1:]] if rest else rest
    _check_not_sparse(x)
    if not _are_inputs(x) or (rest and not is_column(rest[0])):
        raise InvalidInput(f"data must be {FORMS}; got {type(batch).__name__} of {_kinds(batch)}.")
    notes: list[str] = []
    if len(rest) > 1:
        notes.append(
            f"A sample holds {1 + len(rest)} items: the first is used as the input, the second as its target; "
            f"ignored: {_kinds(rest[1:])}. To use several inputs pass ((x1, x2), y)."
        )
    labels, names = label_column(rest[0]) if rest else (None, ())
    return CollatedData(_inputs(x), labels, notes + _naming_note(names), names)


def _check_not_sparse(value: Any) -> None:
    if _library(value) == "scipy" and hasattr(value, "toarray"):
        raise InvalidInput(f"data must be dense; got a SciPy {type(value).__name__}. Use x.toarray().")


def _kinds(values: Iterable[Any]) -> str:
    return ", ".join(
        f"{type(value).__name__} {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        for value in values
    )


def _collate(batch: Any) -> CollatedData:
    """Collate one batch, or data that are in memory as a whole."""
    if is_column(batch):
        return CollatedData(column(batch))
    if is_mapping(batch):
        return _from_mapping(batch)
    if is_list_or_tuple(batch) and batch:
        return _from_sequence(batch)
    raise InvalidInput(
        f"A loader must yield x, (x, y), or a mapping of inputs with 'labels'; got a batch of type "
        f"{type(batch).__name__}. Set its collate_fn so that it yields pairs."
    )


def _join_column(parts: list[Tensor], name: str, padding: int) -> Tensor:
    """Concatenate batches (token batches of different lengths are padded on the right)."""
    lengths = {part.shape[1] if part.ndim == 2 else -1 for part in parts}
    if len(lengths) > 1 and not parts[0].is_floating_point():
        longest = max(lengths)
        parts = [torch.nn.functional.pad(part, (0, longest - part.shape[1]), value=padding) for part in parts]
    try:
        return torch.cat(parts)
    except RuntimeError:
        shapes = ", ".join(sorted({str(list(part.shape[1:])) for part in parts})[:4])
        raise InvalidInput(
            f"All samples must have the same shape; {name} has the shapes {shapes}. Pad or crop them to one."
        ) from None


def _columns(inputs: Inputs) -> dict[str, Tensor]:
    """Return the inputs by name."""
    if isinstance(inputs, Tensor):
        return {"x": inputs}
    return inputs if isinstance(inputs, dict) else {f"input {i}": part for i, part in enumerate(inputs)}


def _join_batches(batches: Iterable[Any], at_most: int | None = None) -> CollatedData:
    parts: list[CollatedData] = []
    for batch in batches:
        parts.append(_collate(batch))
        if at_most is not None and sum(_length(part.inputs) for part in parts) >= at_most:
            break
    if not parts:
        raise InvalidInput("data must hold at least one sample; the loader is empty.")
    first, named = parts[0].inputs, [_columns(part.inputs) for part in parts]
    other = next((batch for batch in named if set(batch) != set(named[0])), None)
    if other is not None:
        raise InvalidInput(
            f"All batches must have the same inputs; one has {', '.join(named[0])}, another {', '.join(other)}. Change "
            "the loader."
        )
    if isinstance(first, dict) and "attention_mask" not in first:
        tokens = [name for name, part in named[0].items() if part.ndim == 2 and not part.is_floating_point()]
        if len({batch[name].shape[1:] for batch in named for name in tokens}) > 1:
            raise InvalidInput(
                "Batches of different lengths need an attention_mask, which marks the padding; got "
                f"{', '.join(first)}. Pad all samples to one length."
            )
    columns = {name: _join_column([batch[name] for batch in named], name, 0) for name in named[0]}
    inputs = columns["x"] if isinstance(first, Tensor) else columns if isinstance(first, dict) else (*columns.values(),)
    targets, names = None, _renumber_classes(parts)
    notes = [note for note in parts[0].notes if note not in _naming_note(parts[0].class_names)] + _naming_note(names)
    if parts[0].targets is not None:
        targets = _join_column([part.targets for part in parts if part.targets is not None], "y", -100)
    return CollatedData(inputs, targets, notes, names)


def _hugging_face(data: Any) -> CollatedData:
    """Read a whole `datasets.Dataset` without its text columns."""
    rows = data.with_format("torch")[:]
    ragged = [name for name, value in rows.items() if isinstance(value, list) and isinstance(value[0], Tensor)]
    if ragged:
        raise InvalidInput(
            f"All samples must have the same shape; {', '.join(ragged)} of the Dataset have several. Tokenize with "
            "padding='max_length' (and truncation=True), or pass a DataLoader that pads."
        )
    return _from_mapping(rows)


def collate_data(data: Any, at_most: int | None = None) -> CollatedData:
    """Return inputs, targets and notes of a data container as tensors.

    A Dataset or DataLoader is read once, in its own order, a loader until it has yielded `at_most` samples.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable.
    """
    _check_not_sparse(data)
    if isinstance(data, DataLoader):
        return _join_batches(cast("DataLoader[Any]", data), at_most)
    if isinstance(data, Dataset):
        return _join_batches(DataLoader(cast("Dataset[Any]", data), batch_size=256))
    if _library(data) == "datasets":
        if is_mapping(data):
            raise InvalidInput(
                f"data must be one split of the DatasetDict; it has {', '.join(data)}. Pass data['train']."
            )
        return (
            _join_batches(data.with_format("torch").iter(256)) if not hasattr(data, "__len__") else _hugging_face(data)
        )
    if is_list(data) and data and all(is_mapping(item) for item in data):
        labels = next((data[0][name] for name in LABEL_NAMES if name in data[0]), None)
        are_batches = getattr(labels, "ndim", 0) > 0
        return _join_batches(data if are_batches else DataLoader(cast("Dataset[Any]", data), batch_size=256))
    if not is_column(data) and not is_mapping(data):
        if not is_list_or_tuple(data) or len(data) < 2:
            raise InvalidInput(f"data must be {FORMS}; got {type(data).__name__}.")
        if len(data) > 2:
            raise InvalidInput(
                f"data must be a pair (x, y); got a {type(data).__name__} of {len(data)}: {_kinds(data)[:120]}. "
                "To use several inputs pass ((x1, x2), y)."
            )
    collated = _collate(data)
    if collated.targets is not None:
        check_same_length("inputs", _length(collated.inputs), "targets", len(collated.targets))
    return collated


def _length(inputs: Inputs) -> int:
    if isinstance(inputs, Tensor):
        return len(inputs)
    parts = inputs.values() if isinstance(inputs, dict) else inputs
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise InvalidInput(
            f"All inputs must have the same length; got {sorted(lengths)}. Pass inputs with one row per sample."
        )
    return lengths.pop()
