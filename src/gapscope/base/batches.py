"""One batch as tensors, and batches joined to one data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gapscope.base.columns import (
    check_row_order,
    column,
    column_names,
    input_column,
    is_column,
    label_array,
    label_column,
    library_of,
    naming_note,
    stack_columns,
    stack_label_tensors,
    stack_rows,
    stack_words,
)
from gapscope.base.errors import InvalidInput
from gapscope.base.file_paths import are_file_paths
from gapscope.base.foreign_data import (
    HASHED,
    LABEL_NAMES,
    TEXTS_READ,
    as_texts,
    hashed_words,
    text_keys_of,
)
from gapscope.base.label_copies import is_copy_of, note_on_copies
from gapscope.base.row_numbers import is_index_name
from gapscope.base.type_guards import has_length, is_list_or_tuple, is_mapping, single_values
from gapscope.base.user_data import PICTURES, batches_of

Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
MAX_STREAMED = 500_000
"""Samples after which a stream of unknown length counts as endless: more than one reads into memory by mistake."""
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
    names_are_own: bool = False  # labels are numbers, which the data set names
    columns: tuple[str, ...] = ()  # names of the columns of a frame
    target_columns: tuple[str, ...] = ()  # names of the columns of a frame of targets
    rows: Tensor | None = None  # row numbers in the data set, if not all rows are read
    n_rows: int = 0  # number of rows in the data set, if not all rows are read
    text_keys: Tensor | None = None  # hashes of texts: read as frequencies of words, or omitted
    has_order: bool = True  # False if the order changes from one reading to the next
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # inputs of a mapping
    further: list[Any] = field(default_factory=list[Any])  # third items, if they are single values


def _text_keys(value: Any) -> Tensor | None:
    """Return the hashes of the texts that were read as frequencies of words, or omitted (None without)."""
    keys = text_keys_of(value)
    if keys is None:
        return None
    return torch.tensor(keys, dtype=torch.int64)


def _inputs(value: Any) -> Inputs:
    if is_column(value):
        return input_column(value)
    if is_mapping(value):
        return {str(name): column(part) for name, part in value.items()}
    return tuple(column(part) for part in value)


def _are_inputs(value: Any) -> bool:
    if is_mapping(value):
        return bool(value) and all(is_column(part) for part in value.values())
    return is_column(value) or (
        is_list_or_tuple(value) and len(value) > 0 and all(is_column(part) for part in value)
    )


def _renumber_classes(parts: list[CollatedData]) -> tuple[str, ...]:
    """Renumber the classes of all batches by their sorted union, and return the names."""
    names = parts[0].class_names
    if any(part.class_names != names for part in parts):
        names = tuple(sorted({name for part in parts for name in part.class_names}))
    for part in parts if names else []:
        if part.targets is None or not part.class_names:
            raise InvalidInput(
                "All batches must have labels of one type; some are strings, some are not."
            )
        codes = torch.tensor([names.index(name) for name in part.class_names])
        part.targets = codes[part.targets]
    return names


def _numbers_rows(value: Any) -> bool:
    """Return whether a column holds a different integer for each sample."""
    if not is_column(value) or value.ndim != 1:
        return False
    numbers = column(value)
    is_repeated = numbers.sort().values.diff() == 0
    return not numbers.is_floating_point() and not bool(is_repeated.any())


def _label_name(data: Mapping[str, Any]) -> str | None:
    return next((name for name in LABEL_NAMES if name in data), None)


def _split_texts(
    data: Mapping[str, Any], label_name: str | None
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of texts that are the inputs, and the names of the others, which number or describe them.

    Texts are the inputs unless there are numbers besides those that number the rows.
    """
    inputs = {name: value for name, value in data.items() if name != label_name}
    texts = {
        name: found for name, value in inputs.items() if (found := as_texts(value)) is not None
    }
    others = [name for name in inputs if name not in texts]
    if any(is_column(inputs[name]) and not _numbers_rows(inputs[name]) for name in others):
        return {}, []
    paths = [name for name, values in texts.items() if are_file_paths(values)]
    if len(paths) < len(texts):
        texts = {name: values for name, values in texts.items() if name not in paths}
        others += paths
    return texts, others


def _of_texts(collated: CollatedData) -> CollatedData:
    """Read the texts of a mapping as the inputs, with a note."""
    joined = [" ".join(parts) for parts in zip(*collated.texts.values(), strict=True)]
    words = hashed_words(joined)
    note = _note_on_texts(collated.texts)
    return replace(
        collated,
        inputs=column(words),
        text_keys=_text_keys(words),
        notes=[*collated.notes, note],
    )


def _note_on_texts(names: Iterable[str]) -> str:
    return f"Texts ({', '.join(names)}) were read as {HASHED}"


def without_copies(collated: CollatedData) -> CollatedData:
    """Return data without the texts of a mapping that are the class labels, if it has others.

    Args:
        collated: All samples: few rows of a part would agree with the labels by chance.
    """
    labels = collated.targets
    if len(collated.texts) < 2 or labels is None or labels.ndim != 1 or labels.is_floating_point():
        return collated
    classes = [int(label) for label in labels]
    copies = [name for name, values in collated.texts.items() if is_copy_of(values, classes)]
    if not copies or len(copies) == len(collated.texts):
        return collated
    read = _note_on_texts(collated.texts)
    notes = [note for note in collated.notes if note != read]
    texts = {name: values for name, values in collated.texts.items() if name not in copies}
    return _of_texts(replace(collated, texts=texts, notes=[*notes, note_on_copies(copies)]))


def collate_mapping(data: Mapping[str, Any], labels: Any = None) -> CollatedData:
    """Return the tensors of a mapping of inputs; its labels have one of `LABEL_NAMES`, or are passed beside it.

    Args:
        data: Columns by their names.
        labels: Labels, if they are no part of the mapping.

    Raises:
        InvalidInput: There are no inputs besides the labels, or the column of labels holds something else.
    """
    notes: list[str] = []
    label_name = _label_name(data)
    names = ()
    sizes = [len(value) for name, value in data.items() if name != label_name and is_column(value)]
    if label_name is not None and sizes:
        data = {**data, label_name: stack_words(data[label_name], sizes[0])}
    data = {str(name): stack_columns(value, str(name)) for name, value in data.items()}
    if labels is not None:
        label_name = next(
            name for name in (LABEL_NAMES[-1], "labels beside it") if name not in data
        )
        data[label_name] = labels
    if label_name is not None:
        for value in data.values():
            check_row_order(value, data[label_name], label_name)
        data[label_name] = label_array(data[label_name])
    others = [name for name in LABEL_NAMES if name in data and name != label_name]
    if label_name is not None and not is_column(data[label_name]) and others:
        raise InvalidInput(
            f"{label_name} must hold labels, one number or name per sample; got a {type(data[label_name]).__name__} of "
            f"{kinds_of(data[label_name][:1])}. Leave it out to use {others[0]}."
        )
    if label_name is not None and is_column(data[label_name]):
        data[label_name], names = label_column(data[label_name])
        notes += naming_note(names)
    texts, beside = _split_texts(data, label_name)
    if texts:
        if beside:
            notes.append(f"{', '.join(beside)}: omitted, since the texts are the inputs.")
        targets = data[label_name] if label_name is not None else None
        return _of_texts(CollatedData((), targets, notes, names, texts=texts))
    numbering = [
        name for name, value in data.items() if is_index_name(name) and _numbers_rows(value)
    ]
    if numbering and len(data) > len(numbering) + (label_name is not None):
        notes.append(f"{', '.join(numbering)}: omitted, since it numbers the rows.")
        data = {name: value for name, value in data.items() if name not in numbering}
    omitted = [name for name, value in data.items() if not is_column(value)]
    if omitted:
        notes.append(f"Omitted from the inputs, because they are no numbers: {', '.join(omitted)}.")
    columns = {name: column(value) for name, value in data.items() if is_column(value)}
    targets = None
    if label_name is not None:
        targets = columns.pop(label_name, None)
    if not columns:
        raise InvalidInput(
            f"A mapping must hold inputs, numbers or texts, besides the labels; got {', '.join(data) or 'nothing'}. "
            "Pass each input as a tensor or array [n, ...], or texts as a list."
        )
    return CollatedData(columns, targets, notes, names)


def _from_sequence(batch: Sequence[Any]) -> CollatedData:
    x, *rest = batch
    if rest:
        n_samples = len(x) if hasattr(x, "__len__") else 0
        labels = stack_words(stack_label_tensors(rest[0], n_samples), n_samples)
        rest = [label_array(labels), *rest[1:]]
    if rest and is_mapping(x) and not _are_inputs(x):
        return collate_mapping(x, rest[0])
    notes: list[str] = []
    further: list[Any] = []
    texts = as_texts(x)
    if texts is not None:
        x = hashed_words(texts)
        notes.append(TEXTS_READ)
    if rest and is_column(rest[0]) and rest[0].ndim:
        x = stack_rows(x, len(rest[0]))
    if is_list_or_tuple(x) and any(library_of(part) == "PIL" for part in x):
        raise InvalidInput(PICTURES)
    if not _are_inputs(x) or (rest and not is_column(rest[0])):
        raise InvalidInput(
            f"data must be {FORMS}; got {type(batch).__name__} of {kinds_of(batch)}."
        )
    if len(rest) > 1:
        notes.append(
            f"A sample holds {1 + len(rest)} items: the first is used as the input, the second as its target; "
            f"ignored: {kinds_of(rest[1:])}. To use several inputs pass ((x1, x2), y)."
        )
        further = single_values(rest[1])
    if rest:
        for part in x.values() if is_mapping(x) else [x] if is_column(x) else x:
            check_row_order(part, rest[0])
    labels, names = label_column(rest[0]) if rest else (None, ())
    collated = CollatedData(_inputs(x), labels, notes + naming_note(names), names, further=further)
    collated.text_keys = _text_keys(x)
    collated.columns = column_names(x)
    if labels is not None and labels.ndim == 2:
        collated.target_columns = column_names(rest[0])
    return collated


def kinds_of(values: Iterable[Any]) -> str:
    """Return types and shapes for a message, of the first four."""
    kinds = [
        f"{type(value).__name__} {list(value.shape)}"
        if hasattr(value, "shape")
        else type(value).__name__
        for value in islice(values, 5)
    ]
    if len(kinds) > 4:
        kinds[4] = "..."
    return ", ".join(kinds)


def collate_batch(batch: Any) -> CollatedData:
    """Collate one batch, or data that are in memory as a whole."""
    if is_column(batch):
        return CollatedData(input_column(batch), columns=column_names(batch))
    if is_mapping(batch):
        return collate_mapping(batch)
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
        parts = [
            torch.nn.functional.pad(part, (0, longest - part.shape[1]), value=padding)
            for part in parts
        ]
    try:
        return torch.cat(parts)
    except RuntimeError:
        shapes = ", ".join(sorted({str(list(part.shape[1:])) for part in parts})[:4])
        raise InvalidInput(
            f"All samples must have the same shape; {name} has the shapes {shapes}. Pad or crop them to one."
        ) from None


def columns_of(inputs: Inputs) -> dict[str, Tensor]:
    """Return the inputs by name."""
    if isinstance(inputs, Tensor):
        return {"x": inputs}
    if isinstance(inputs, dict):
        return inputs
    return {f"input {i}": part for i, part in enumerate(inputs)}


def length_of(inputs: Inputs) -> int:
    """Return the number of samples; all inputs must have the same."""
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


def _read_batches(batches: Iterable[Any], at_most: int | None) -> list[CollatedData]:
    """Collate batches until there are `at_most` samples, or raise InvalidInput for a stream that does not end."""
    parts: list[CollatedData] = []
    n = 0
    for batch in batches_of(batches):
        parts.append(collate_batch(batch))
        if parts[-1].targets is not None and not parts[-1].targets.ndim:
            raise InvalidInput(
                "A loader must yield batches; this one yields single samples (batch_size=None). Pass its data set, "
                "or set its batch_size."
            )
        n += length_of(parts[-1].inputs)
        if at_most is not None and n >= at_most:
            break
        if n >= MAX_STREAMED and not has_length(batches):
            raise InvalidInput(
                f"A stream of unknown length must end; {n} samples were read. Pass the first n of it, for example "
                "list(itertools.islice(stream, n)), or a data set with a length."
            )
    return parts


def join_batches(batches: Iterable[Any], at_most: int | None = None) -> CollatedData:
    """Read batches, at most the first `at_most` samples, and return them as one; sequences are padded."""
    parts = _read_batches(batches, at_most)
    if not parts:
        raise InvalidInput("data must hold at least one sample; the loader is empty.")
    first = parts[0].inputs
    named = [columns_of(part.inputs) for part in parts]
    other = next((batch for batch in named if set(batch) != set(named[0])), None)
    if other is not None:
        raise InvalidInput(
            f"All batches must have the same inputs; one has {', '.join(named[0])}, another {', '.join(other)}. Change "
            "the loader."
        )
    if isinstance(first, dict) and "attention_mask" not in first:
        tokens = [
            name
            for name, part in named[0].items()
            if part.ndim == 2 and not part.is_floating_point()
        ]
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
    targets = None
    names = _renumber_classes(parts)
    notes = [
        note for note in parts[0].notes if note not in naming_note(parts[0].class_names)
    ] + naming_note(names)
    if parts[0].targets is not None:
        targets = _join_column(
            [part.targets for part in parts if part.targets is not None], "y", -100
        )
    keys = [part.text_keys for part in parts if part.text_keys is not None]
    text_keys = torch.cat(keys) if len(keys) == len(parts) else None
    texts = {
        name: [text for part in parts for text in part.texts.get(name, ())]
        for name in parts[0].texts
    }
    further = [value for part in parts for value in part.further]
    return CollatedData(
        inputs, targets, notes, names, text_keys=text_keys, texts=texts, further=further
    )
