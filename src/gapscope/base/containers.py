"""Collation of NumPy, pandas, mappings, datasets and loaders into tensors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    default_collate,  # pyright: ignore[reportUnknownVariableType]
)

from gapscope.base.batches import (
    FORMS,
    LABEL_NAMES,
    CollatedData,
    collate_batch,
    collate_mapping,
    columns_of,
    join_batches,
    kinds_of,
    length_of,
    without_copies,
)
from gapscope.base.columns import (
    is_column,
    library_of,
)
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.foreign_data import convert_foreign
from gapscope.base.loader_order import is_sequential, plan_reading
from gapscope.base.own_classes import own_class_names
from gapscope.base.random_streams import kept_random_states
from gapscope.base.targets import IGNORED
from gapscope.base.type_guards import has_length, is_list, is_list_or_tuple, is_mapping
from gapscope.base.user_data import (
    CHANGING_NOTE,
    N_READ_AGAIN,
    batches_of,
    change_between_reads,
    check_length,
    is_stream,
    notes_on_numbers,
    read_sample,
    with_one_worker,
)

# Samples that a collate function gets together and one by one: of as many, sorted by length, some change their places.
N_COMPARED = 16
# Of fewer samples each may be of another class, by judgment: of those whose labels are consecutive numbers, and others.
MIN_NUMBERED, MIN_DIFFERENT = 20, 200


def _hugging_face(data: Any) -> CollatedData:
    """Read a whole `datasets.Dataset` without its text columns, and with the columns of its format alone."""
    form = data.format
    columns = None if form["output_all_columns"] else form["columns"]
    rows = data.with_format("torch", columns=columns)[:]
    pictures = [name for name in rows if type(data.features[name]).__name__ == "Image"]
    if pictures:
        raise InvalidInput(
            f"Pictures must be floating point tensors of one shape; {', '.join(pictures)} of the Dataset holds PIL "
            "pictures. Convert them as the network needs it: data.set_transform(lambda rows: {'x': [to_tensor(picture) "
            f"for picture in rows[{pictures[0]!r}]], 'label': rows['label']}})."
        )
    incomplete = [
        name
        for name, value in rows.items()
        if is_list(value) and any(item is None for item in value)
    ]
    if incomplete:
        raise InvalidInput(
            f"Every sample needs all its values; {', '.join(incomplete)} of the Dataset hold None. Drop these samples: "
            "data.filter(lambda row: None not in row.values())."
        )
    ragged = [
        name
        for name, value in rows.items()
        if isinstance(value, list) and isinstance(value[0], Tensor)
    ]
    if ragged:
        raise InvalidInput(
            f"All samples must have the same shape; {', '.join(ragged)} of the Dataset have several. Tokenize with "
            "padding='max_length' (and truncation=True), or pass a DataLoader that pads."
        )
    return collate_mapping(rows)


def _read_in_order(loader: Any, at_most: int | None) -> CollatedData:
    """Read the data set of a loader in order, whatever the order of the loader."""
    plan = plan_reading(loader, at_most)
    collated = join_batches(plan.loader, None if plan.has_rows else at_most)
    collated.notes += plan.notes
    if not plan.has_rows:
        return collated
    if length_of(collated.inputs) == plan.n_rows:
        collated.rows = plan.rows
        if plan.rows is None:
            collated.n_rows = 0
        else:
            collated.n_rows = len(loader.dataset)
    else:  # the collate function drops or adds samples
        collated.has_order = False
    return collated


def _from_data_set(data: Any, at_most: int | None) -> CollatedData:
    """Read a data set once, without moving random states."""
    check_length(data)
    return _from_loader(DataLoader(data, batch_size=256), at_most)


def _from_loader(loader: Any, at_most: int | None) -> CollatedData:
    """Read a loader once, without moving random states."""
    check_length(loader.dataset)
    with kept_random_states(loader.generator):
        streams = is_stream(loader.dataset)
        notes = notes_on_numbers(loader.dataset)
        if streams:
            loader, notes = with_one_worker(loader)
        if not streams and not is_sequential(loader):
            collated = _read_in_order(loader, at_most)
        else:
            collated = join_batches(loader, at_most)
        if streams:
            collated.has_order = _repeats_first_batch(loader, collated)
            collated.notes += notes
            return collated
        if loader.batch_sampler is not None and not _keeps_rows(loader, collated, at_most):
            collated.has_order = False
        again = _first_rows(loader, collated, N_READ_AGAIN)
        if change_between_reads(loader.dataset, again):
            notes = [*notes, CHANGING_NOTE]
        collated.notes += notes
        return collated


def _first_rows(loader: Any, collated: CollatedData, n: int) -> list[int]:
    """Return the first n row numbers that were read."""
    if collated.rows is None:
        return list(range(min(n, len(loader.dataset))))
    return [int(row) for row in collated.rows[:n]]


def _keeps_rows(loader: Any, collated: CollatedData, at_most: int | None) -> bool:
    """Return whether the collate function of a loader yields one row per sample, in their order.

    Some drop samples, or sort a batch by length. The first samples are collated together and one by one.
    """
    if loader.collate_fn is default_collate:
        return True
    is_whole = at_most is None and collated.rows is None
    if is_whole and length_of(collated.inputs) != len(loader.dataset):
        return False
    items = [read_sample(loader.dataset, row) for row in _first_rows(loader, collated, N_COMPARED)]
    try:
        together = collate_batch(loader.collate_fn(items))
        single = [collate_batch(loader.collate_fn([item])) for item in items]
    except Exception:  # a function of the user, which may need a whole batch: not known
        return True
    if length_of(together.inputs) != len(items):
        return False
    if any(not _has_label(together, row, part) for row, part in enumerate(single)):
        return False
    places = [
        [other for other, part in enumerate(single) if _has_inputs(together, row, part)]
        for row in range(len(items))
    ]
    return all(not found or row in found for row, found in enumerate(places))


def _has_label(batch: CollatedData, row: int, single: CollatedData) -> bool:
    """Return whether a row of a batch has the label of a batch of one sample (True without labels)."""
    if batch.targets is None or single.targets is None:
        return True
    if batch.class_names:
        return batch.class_names[int(batch.targets[row])] == single.class_names[0]
    return _begin_alike(batch.targets[row], single.targets[0])


def _has_inputs(batch: CollatedData, row: int, single: CollatedData) -> bool:
    """Return whether a row of a batch has the inputs of a batch of one sample."""
    found = columns_of(batch.inputs)
    return all(
        name in found and _begin_alike(found[name][row], part[0])
        for name, part in columns_of(single.inputs).items()
    )


def _begin_alike(padded: Tensor, single: Tensor) -> bool:
    """Return whether the values of a sample in a batch, which may be padded, begin with those of the sample alone."""
    flat = single.flatten()
    return torch.equal(padded.flatten()[: len(flat)], flat)


def _repeats_first_batch(loader: Any, collated: CollatedData) -> bool:
    """Return whether a stream that is read again begins with the same samples."""
    again = next(batches_of(loader), None)
    if again is None:
        return True  # it can be read only once
    first = columns_of(collate_batch(again).inputs)
    stored = columns_of(collated.inputs)
    return all(
        name in stored
        and part.shape[1:] == stored[name].shape[1:]
        and torch.equal(part, stored[name][: len(part)])
        for name, part in first.items()
    )


def _from_batches(loader: Iterable[Any], at_most: int | None) -> CollatedData:
    """Read a loader that is no DataLoader of torch: any object that yields batches each time it is iterated."""
    with kept_random_states():
        collated = join_batches(loader, at_most)
        collated.has_order = _repeats_first_batch(loader, collated)
        return collated


def _is_data_set(data: Any) -> bool:
    """Return whether an object is a data set by its methods alone, as torch's DataLoader takes it."""
    if is_list_or_tuple(data) or isinstance(data, str | bytes):
        return False
    return hasattr(data, "__getitem__") and has_length(data)


def _yields_batches(data: Any) -> bool:
    """Return whether an object can be iterated over like a loader."""
    return (
        hasattr(data, "__iter__")
        and not is_list_or_tuple(data)
        and not isinstance(data, str | bytes | set)
    )


def _is_list_of_samples(data: Any) -> bool:
    """Return whether data are a list of at least three samples (x, y, ...) with one label each.

    Longer rows of numbers alone are no samples.
    """
    if not is_list(data) or len(data) < 3 or not is_list_or_tuple(data[0]):
        return False
    size = len(data[0])
    are_alike = all(is_list_or_tuple(item) and len(item) == size for item in data)
    if not are_alike or size < 2 or (size > 2 and _is_number(data[0][0])):
        return False
    return all(_is_number(item[1]) for item in data)


def _is_batch(item: Any) -> bool:
    """Return whether a mapping holds several samples: all of its arrays have as many rows, also the labels.

    The inputs of a batch have two dimensions or more. In a sample with a label per token, or per pixel, they have one,
    or another length.
    """
    name = next((name for name in LABEL_NAMES if name in item), None)
    n_dims = getattr(item[name], "ndim", 0) if name is not None else 0
    if not n_dims:
        return False
    inputs = [value for key, value in item.items() if key != name and getattr(value, "ndim", 0)]
    return any(value.ndim > 1 for value in inputs) and all(
        len(value) == len(item[name]) for value in inputs
    )


def _is_labelled_batch(pair: Any) -> bool:
    """Return whether a pair is (x, y) with as many labels as rows, such as a batch or a sequence of labelled tokens."""
    x, y = pair
    return is_column(x) and is_column(y) and x.ndim > y.ndim > 0 and len(x) == len(y)


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


def _check_labels_before_others(collated: CollatedData) -> None:
    """Refuse different labels of all samples (x, y, ...) whose third items could be the labels.

    Raises:
        InvalidInput: All labels differ, and the third items repeat or are fractions.
    """
    targets, further = collated.targets, collated.further
    if targets is None or targets.ndim != 1 or targets.is_floating_point() or targets.is_complex():
        return
    n = len(targets)
    n_further = len(set(further))
    targets = targets.long()  # others have no order in torch, such as uint32
    are_different = bool((targets.sort().values.diff() != 0).all())
    if len(further) != n or n_further < 2 or not are_different:
        return
    could_be_labels = n_further < n or isinstance(further[0], float)
    are_numbered = not collated.class_names and int(targets.max() - targets.min()) == n - 1
    if could_be_labels and n >= (MIN_NUMBERED if are_numbered else MIN_DIFFERENT):
        raise InvalidInput(
            f"Labels, the second items of samples (x, y, ...), must repeat; got {n:,} different ones of {n:,} samples, "
            "as row numbers are. If the third items are the labels, pass [(x, y) for x, _, y in data_set]; if the "
            "second are, pass samples (x, y)."
        )


def collate_data(data: Any, at_most: int | None = None) -> CollatedData:
    """Return inputs, targets and notes of a data container as tensors.

    A data set is read in its own order, also through a loader that shuffles. `at_most` samples are read.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable.
    """
    collated = without_copies(_collate(data, at_most))
    _check_labels_before_others(collated)
    targets = collated.targets
    if collated.class_names or targets is None or targets.ndim != 1 or targets.is_floating_point():
        return collated
    names = own_class_names(data, LABEL_NAMES)
    labels = targets[targets != IGNORED]
    if names and len(labels) and int(labels.min()) >= 0 and int(labels.max()) < len(names):
        collated.class_names = names
        collated.names_are_own = True
    return collated


def _collate(data: Any, at_most: int | None) -> CollatedData:
    """Collate data by their container."""
    if isinstance(data, nn.Module):  # nn.Sequential has a length and items, like a data set
        raise InvalidInput(
            f"data must be {FORMS}; got a network ({type(data).__name__}). "
            "Where a network is passed too, it comes first: f(network, data)."
        )
    data, notes = convert_foreign(data)
    if notes:
        collated = _collate(data, at_most)
        collated.notes[:0] = notes
        return collated
    if isinstance(data, DataLoader):
        return _from_loader(data, at_most)
    if isinstance(data, Dataset) or _is_list_of_samples(data):
        return _from_data_set(data, at_most)
    if library_of(data) == "datasets":
        if is_mapping(data):
            raise InvalidInput(
                f"data must be one split of the DatasetDict; it has {', '.join(data)}. Pass data['train']."
            )
        if not hasattr(data, "__len__"):
            return join_batches(data.with_format("torch").iter(256), at_most)
        if data.format["type"] == "custom":  # a function of the user: set_transform
            return _from_data_set(data, at_most)
        return _hugging_face(data)
    if is_list(data) and data and all(is_mapping(item) for item in data):
        read = join_batches if _is_batch(data[0]) else _from_data_set
        return read(data, at_most)
    if not is_column(data) and not is_mapping(data):
        if _is_data_set(data):
            return _from_data_set(data, at_most)
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
        are_pairs = is_list(data) and all(
            is_list_or_tuple(item) and len(item) == 2 for item in data
        )
        if are_pairs and (len(data) > 2 or all(map(_is_labelled_batch, data))):
            raise InvalidInput(
                f"data must be a pair (x, y); got a list of {len(data)} pairs, the first of {kinds_of(data[0])}. "
                "If each is a batch, pass (torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])). If each "
                "is a sample with a label per position, pad to one length (the label -100 is ignored) and pass "
                "(torch.stack(x), torch.stack(y))."
            )
        if all(isinstance(item, str) for item in data):
            raise InvalidInput(
                f"data must be a pair (x, y); got a list of {len(data)} texts. Pass (texts, y). If a network "
                "reads them, tokenize them: pass tokenizer(texts, return_tensors='pt', padding=True), alone or with y."
            )
        if len(data) > 2:
            raise InvalidInput(
                f"data must be a pair (x, y); got a {type(data).__name__} of {len(data)}: {kinds_of(data)}. "
                "To use several inputs pass ((x1, x2), y)."
            )
        _check_one_shape(data[0], len(data[1]) if hasattr(data[1], "__len__") else 0)
    collated = collate_batch(data)
    if collated.targets is not None:
        check_same_length("inputs", length_of(collated.inputs), "targets", len(collated.targets))
    return collated
