"""Collation of NumPy, pandas, mappings, datasets and loaders into tensors."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gapscope.base.columns import (
    column,
    column_names,
    is_column,
    label_array,
    label_column,
    library_of,
    naming_note,
    stack_columns,
    stack_rows,
)
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.foreign_data import convert_foreign
from gapscope.base.loader_order import is_sequential, plan_reading
from gapscope.base.type_guards import is_list, is_list_or_tuple, is_mapping

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
MAX_STREAMED = 500_000
"""Samples after which a stream of unknown length counts as endless: more than one reads into memory by mistake."""
LABEL_NAMES = ("labels", "label", "targets", "target", "y")
FORMS = (
    "a tensor x, a pair (x, y) of tensors, numpy arrays or pandas objects, a mapping of inputs with 'labels', Samples, "
    "a Dataset, a list of samples (x, y) or a DataLoader"
)


@dataclass
class CollatedData:
    """Inputs with raw targets, and notes about omitted data."""

    inputs: Inputs
    targets: Tensor | None = None
    notes: list[str] = field(default_factory=list[str])
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # names of the columns of a frame
    rows: Tensor | None = None  # row numbers in the data set, if not all rows are read
    n_rows: int = 0  # number of rows in the data set, if not all rows are read
    has_order: bool = True  # False if the order changes from one reading to the next


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


def _renumber_classes(parts: list[CollatedData]) -> tuple[str, ...]:
    """Renumber the classes of all batches by their sorted union, and return the names."""
    names = parts[0].class_names
    if any(part.class_names != names for part in parts):
        names = tuple(sorted({name for part in parts for name in part.class_names}))
    for part in parts if names else []:
        if part.targets is None or not part.class_names:
            raise InvalidInput("All batches must have labels of one type; some are strings, some are not.")
        codes = torch.tensor([names.index(name) for name in part.class_names])
        part.targets = codes[part.targets]
    return names


def _from_mapping(data: Mapping[str, Any]) -> CollatedData:
    notes: list[str] = []
    data = {str(name): stack_columns(value) for name, value in data.items()}
    label_name, names = next((name for name in LABEL_NAMES if name in data), None), ()
    if label_name is not None:
        data[label_name] = label_array(data[label_name])
    if label_name is not None and is_column(data[label_name]):
        data[label_name], names = label_column(data[label_name])
        notes += naming_note(names)
    omitted = [name for name, value in data.items() if not is_column(value)]
    if omitted:
        notes.append(f"Omitted from the inputs, because they are no numbers: {', '.join(omitted)}.")
    columns = {name: column(value) for name, value in data.items() if is_column(value)}
    target = next((name for name in LABEL_NAMES if name in columns), None)
    targets = None
    if target is not None:
        targets = columns.pop(target)
    if not columns:
        raise InvalidInput(f"A mapping must hold inputs besides the labels; got {', '.join(data) or 'nothing'}.")
    return CollatedData(columns, targets, notes, names)


def _from_sequence(batch: Sequence[Any]) -> CollatedData:
    x, *rest = batch
    if rest:
        rest = [label_array(rest[0]), *rest[1:]]
    if rest and is_column(rest[0]) and rest[0].ndim:
        x = stack_rows(x, len(rest[0]))
    if not _are_inputs(x) or (rest and not is_column(rest[0])):
        raise InvalidInput(f"data must be {FORMS}; got {type(batch).__name__} of {_kinds(batch)}.")
    notes: list[str] = []
    if len(rest) > 1:
        notes.append(
            f"A sample holds {1 + len(rest)} items: the first is used as the input, the second as its target; "
            f"ignored: {_kinds(rest[1:])}. To use several inputs pass ((x1, x2), y)."
        )
    labels, names = label_column(rest[0]) if rest else (None, ())
    return CollatedData(_inputs(x), labels, notes + naming_note(names), names, column_names(x))


def _kinds(values: Iterable[Any]) -> str:
    return ", ".join(
        f"{type(value).__name__} {list(value.shape)}" if hasattr(value, "shape") else type(value).__name__
        for value in values
    )


def _collate(batch: Any) -> CollatedData:
    """Collate one batch, or data that are in memory as a whole."""
    if is_column(batch):
        return CollatedData(column(batch), columns=column_names(batch))
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
    if isinstance(inputs, dict):
        return inputs
    return {f"input {i}": part for i, part in enumerate(inputs)}


def _has_length(batches: Any) -> bool:
    """Return whether the number of batches is known (a DataLoader of a stream only seems to have one)."""
    try:
        return len(batches) >= 0
    except TypeError:
        return False


def _read_batches(batches: Iterable[Any], at_most: int | None) -> list[CollatedData]:
    """Collate batches until there are `at_most` samples, or raise InvalidInput for a stream that does not end."""
    parts: list[CollatedData] = []
    n = 0
    try:
        for batch in batches:
            parts.append(_collate(batch))
            if parts[-1].targets is not None and not parts[-1].targets.ndim:
                raise InvalidInput(
                    "A loader must yield batches; this one yields single samples (batch_size=None). Pass its data set, "
                    "or set its batch_size."
                )
            n += _length(parts[-1].inputs)
            if at_most is not None and n >= at_most:
                break
            if n >= MAX_STREAMED and not _has_length(batches):
                raise InvalidInput(
                    f"A stream of unknown length must end; {n} samples were read. Pass the first n of it, for example "
                    "list(itertools.islice(stream, n)), or a data set with a length."
                )
    except (TypeError, RuntimeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidInput) or "_utils/collate.py" not in "".join(traceback.format_exception(error)):
            raise
        message = (str(error).splitlines() or [""])[0][:160].rstrip(".")
        raise InvalidInput(
            "All samples must have tensors of one shape, which can be stacked; torch's collate function raised "
            f"{type(error).__name__}: {message}. Convert, pad or crop the samples in the data set, or pass a "
            "DataLoader with a collate_fn."
        ) from error
    return parts


def _join_batches(batches: Iterable[Any], at_most: int | None = None) -> CollatedData:
    parts = _read_batches(batches, at_most)
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
    if isinstance(first, Tensor):
        inputs = columns["x"]
    elif isinstance(first, dict):
        inputs = columns
    else:
        inputs = (*columns.values(),)
    targets, names = None, _renumber_classes(parts)
    notes = [note for note in parts[0].notes if note not in naming_note(parts[0].class_names)] + naming_note(names)
    if parts[0].targets is not None:
        targets = _join_column([part.targets for part in parts if part.targets is not None], "y", -100)
    return CollatedData(inputs, targets, notes, names)


def _hugging_face(data: Any) -> CollatedData:
    """Read a whole `datasets.Dataset` without its text columns."""
    rows = data.with_format("torch")[:]
    incomplete = [name for name, value in rows.items() if is_list(value) and any(item is None for item in value)]
    if incomplete:
        raise InvalidInput(
            f"Every sample needs all its values; {', '.join(incomplete)} of the Dataset hold None. Drop these samples: "
            "data.filter(lambda row: None not in row.values())."
        )
    ragged = [name for name, value in rows.items() if isinstance(value, list) and isinstance(value[0], Tensor)]
    if ragged:
        raise InvalidInput(
            f"All samples must have the same shape; {', '.join(ragged)} of the Dataset have several. Tokenize with "
            "padding='max_length' (and truncation=True), or pass a DataLoader that pads."
        )
    return _from_mapping(rows)


def _read_in_order(loader: Any, at_most: int | None) -> CollatedData:
    """Read the data set of a loader in order, whatever the order of the loader."""
    plan = plan_reading(loader, at_most)
    collated = _join_batches(plan.loader, None if plan.has_rows else at_most)
    collated.notes += plan.notes
    if not plan.has_rows:
        return collated
    if _length(collated.inputs) == plan.n_rows:
        collated.rows = plan.rows
        if plan.rows is None:
            collated.n_rows = 0
        else:
            collated.n_rows = len(loader.dataset)
    else:  # the collate function drops or adds samples
        collated.has_order = False
    return collated


def _from_loader(loader: Any, at_most: int | None) -> CollatedData:
    """Read a loader once, without moving the global random state of torch."""
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        is_stream = isinstance(loader.dataset, IterableDataset)
        if not is_stream and not is_sequential(loader):
            return _read_in_order(loader, at_most)
        collated = _join_batches(loader, at_most)
        if is_stream:
            collated.has_order = _repeats_first_batch(loader, collated)
        return collated


def _repeats_first_batch(loader: Any, collated: CollatedData) -> bool:
    """Return whether a stream that is read again begins with the same samples."""
    again = next(iter(loader), None)
    if again is None:
        return True  # it can be read only once
    first = _columns(_collate(again).inputs)
    stored = _columns(collated.inputs)
    return all(
        name in stored and part.shape[1:] == stored[name].shape[1:] and torch.equal(part, stored[name][: len(part)])
        for name, part in first.items()
    )


def _from_batches(loader: Iterable[Any], at_most: int | None) -> CollatedData:
    """Read a loader that is no DataLoader of torch: any object that yields batches each time it is iterated."""
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        collated = _join_batches(loader, at_most)
        collated.has_order = _repeats_first_batch(loader, collated)
        return collated


def _is_data_set(data: Any) -> bool:
    """Return whether an object is a data set by its methods alone, as torch's DataLoader takes it."""
    if is_list_or_tuple(data) or isinstance(data, str | bytes):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def _yields_batches(data: Any) -> bool:
    """Return whether an object can be iterated over like a loader."""
    return hasattr(data, "__iter__") and not is_list_or_tuple(data) and not isinstance(data, str | bytes | set)


def _is_list_of_samples(data: Any) -> bool:
    """Return whether data are a list of at least three pairs (x, y) with one label each."""
    if not is_list(data) or len(data) < 3:
        return False
    return all(is_list_or_tuple(item) and len(item) == 2 and _is_number(item[1]) for item in data)


def _is_number(value: Any) -> bool:
    return not is_list_or_tuple(value) and getattr(value, "ndim", 0) == 0


def _check_one_shape(images: Any, n: int) -> None:
    """Raise InvalidInput if a list holds n samples of several shapes, such as images of several sizes."""
    if not is_list_or_tuple(images) or len(images) != n or n < 3:
        return
    shapes = list(dict.fromkeys(tuple(getattr(image, "shape", ())) for image in images))
    # each of several inputs has n rows
    if len(shapes) > 1 and all(len(shape) > 1 and shape[0] != n for shape in shapes):
        raise InvalidInput(
            f"All inputs must have one shape; got a list of {n} with {len(shapes)} shapes, such as {list(shapes[0])} "
            f"and {list(shapes[1])}. Resize or crop them to one size, then pass torch.stack(images)."
        )


def collate_data(data: Any, at_most: int | None = None) -> CollatedData:
    """Return inputs, targets and notes of a data container as tensors.

    A data set is read in its own order, also through a loader that shuffles. `at_most` samples are read.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable.
    """
    if isinstance(data, nn.Module):  # nn.Sequential has a length and items, like a data set
        raise InvalidInput(
            f"data must be {FORMS}; got a network ({type(data).__name__}). "
            "Where a network is passed too, it comes first: f(network, data)."
        )
    data, notes = convert_foreign(data)
    if notes:
        collated = collate_data(data, at_most)
        collated.notes[:0] = notes
        return collated
    if isinstance(data, DataLoader):
        return _from_loader(data, at_most)
    if isinstance(data, Dataset) or _is_list_of_samples(data):
        return _from_loader(DataLoader(cast("Dataset[Any]", data), batch_size=256), at_most)
    if library_of(data) == "datasets":
        if is_mapping(data):
            raise InvalidInput(
                f"data must be one split of the DatasetDict; it has {', '.join(data)}. Pass data['train']."
            )
        if not hasattr(data, "__len__"):
            return _join_batches(data.with_format("torch").iter(256), at_most)
        return _hugging_face(data)
    if is_list(data) and data and all(is_mapping(item) for item in data):
        labels = next((data[0][name] for name in LABEL_NAMES if name in data[0]), None)
        are_batches = getattr(labels, "ndim", 0) > 0
        return _join_batches(data if are_batches else DataLoader(cast("Dataset[Any]", data), batch_size=256))
    if not is_column(data) and not is_mapping(data):
        if _is_data_set(data):
            return _from_loader(DataLoader(cast("Dataset[Any]", data), batch_size=256), at_most)
        if hasattr(data, "__next__"):
            raise InvalidInput(
                f"data must be readable more than once; a {type(data).__name__} is not. Pass list(data) if it yields "
                "samples (x, y), or the loader that it comes from."
            )
        if _yields_batches(data):
            return _from_batches(data, at_most)
        if isinstance(data, str | Path):
            raise InvalidInput(
                f"data must be {FORMS}; got the path {str(data)!r}. Read a table with pandas.read_csv, and a folder of "
                "pictures with gapscope.data.ImageFolder."
            )
        if not is_list_or_tuple(data) or len(data) < 2:
            raise InvalidInput(f"data must be {FORMS}; got {type(data).__name__}.")
        _check_one_shape(data, len(data))
        if len(data) > 2:
            raise InvalidInput(
                f"data must be a pair (x, y); got a {type(data).__name__} of {len(data)}: {_kinds(data)[:120]}. "
                "To use several inputs pass ((x1, x2), y)."
            )
        _check_one_shape(data[0], len(data[1]) if hasattr(data[1], "__len__") else 0)
    collated = _collate(data)
    if collated.targets is not None:
        check_same_length("inputs", _length(collated.inputs), "targets", len(collated.targets))
    return collated


def _length(inputs: Inputs) -> int:
    if isinstance(inputs, Tensor):
        return len(inputs)
    if isinstance(inputs, dict):
        parts = inputs.values()
    else:
        parts = inputs
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise InvalidInput(
            f"All inputs must have the same length; got {sorted(lengths)}. Pass inputs with one row per sample."
        )
    return lengths.pop()
