"""Second data sets (test, validation): adapted to the first, with which they are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gapscope.base.columns import naming_note
from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.input_layout import pack_inputs
from gapscope.base.label_marks import MarkNote
from gapscope.base.position_labels import labels_as_on
from gapscope.base.row_numbers import RowNumberNote, row_number_note
from gapscope.base.samples import Samples, as_samples, with_parts, with_task
from gapscope.base.targets import IGNORED, SIGN_NAMES, TASK_NOTES


def as_second(
    data: Any, first: Samples, owner: str = "test", *, has_network: bool = False
) -> Samples:
    """Return a second data set (test, validation) as Samples that can be compared with the first.

    Both must have one task; the first decides it. Named classes get the numbers that they have in the first.

    Args:
        data: The second data set, in any form of `as_samples`.
        first: The first data set.
        owner: Name of the argument, for messages.
        has_network: Whether the outputs of a network, not the first labels, decide which class numbers there are.

    Raises:
        InvalidInput: The second has other inputs, another task, or classes that the first has not.
    """
    known = [*first.subset(torch.arange(1)).parts]
    if first.targets is not None:
        known.append(first.targets)
    is_exact = any(part.dtype == torch.float64 for part in known)
    is_named = first.class_names not in ((), SIGN_NAMES, first.target_columns)
    # a class of the first, such as "-1", is no mark of a missing label
    task = "classification" if is_named and first.is_classification else None
    try:
        second = as_samples(data, is_exact=is_exact, task=task)
    except InvalidInput as error:
        error.args = (f"{owner}: {error}",)
        raise
    second = _with_target_columns_of(second, first, owner)
    second = _numbered_as(second, first, owner)
    second = _with_task_of(second, first, owner)
    if not has_network:
        _check_numbers(second, first, owner)
    second = _with_positions_of(second, first, owner)
    second = _with_columns_of(second, first, owner)
    second = _with_named_inputs_of(second, first, owner)
    second = _in_types_of(second, first)
    shapes = [_input_shapes(samples) for samples in (second, first)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            f"{owner} must have the inputs of the first data set, {_described(shapes[1])}; got "
            f"{_described(shapes[0])}. Prepare both in the same way."
        )
    # the task is that of the first; notes of an own type are looked for
    notes = tuple(
        f"{owner}: {note}"
        if type(note) in (str, RowNumberNote) and note not in first.notes
        else note
        for note in second.notes
        if note not in TASK_NOTES
    )
    # its numbers are known classes of the first, unless they may be marks there as well
    is_marked = any(isinstance(note, MarkNote) for note in first.notes)
    if not (has_network or first.targets is None or is_marked):
        notes = tuple(note for note in notes if not isinstance(note, MarkNote))
    return replace(second, notes=notes)


def joined_notes(notes: Sequence[str], second: Samples | None) -> tuple[str, ...]:
    """Return notes and those of a second data set, each once.

    Args:
        notes: Notes on the first data set.
        second: The second, as `as_second` returns it; None without.
    """
    return tuple(dict.fromkeys((*notes, *(second.notes if second else ()))))


def join_samples(first: Samples, second: Samples) -> Samples:
    """Return both data sets as one on the CPU, those of the first before those of the second.

    Args:
        first: The first data set.
        second: The second, as `as_second` returns it.
    """
    targets = None
    if first.targets is not None and second.targets is not None:
        targets = _stacked(first.targets, second.targets, IGNORED)
    if first.form is None or second.form is None or not first.form.columns:
        inputs = _stacked(first.inputs, second.inputs)
        keys = None
        if first.text_keys is not None and second.text_keys is not None:
            keys = torch.cat([first.text_keys, second.text_keys])
        return Samples(
            inputs, targets, first.form, (), class_names=first.class_names, columns=first.columns, text_keys=keys,
        )  # fmt: skip
    columns = tuple(_stacked(a, b) for a, b in zip(first.parts, second.parts, strict=True))
    rows = -1 - torch.arange(len(first) + len(second))[:, None]
    return Samples(
        rows, targets, replace(first.form, columns=columns), class_names=first.class_names
    )


def _stacked(first: Tensor, second: Tensor, padding: int = 0) -> Tensor:
    """Concatenate samples; sequences of tokens, and their labels, are padded on the right."""
    first, second = first.detach().cpu(), second.detach().cpu().to(first.dtype)
    if first.ndim == 2 and not first.is_floating_point() and first.shape[1] != second.shape[1]:
        length = max(first.shape[1], second.shape[1])
        first, second = (
            F.pad(part, (0, length - part.shape[1]), value=padding) for part in (first, second)
        )
    return torch.cat([first, second])


def _in_types_of(second: Samples, first: Samples) -> Samples:
    """Return the second data set with numbers where the first has numbers, and token ids where it has token ids."""
    parts = second.parts
    known = first.subset(torch.arange(1)).parts
    if len(parts) != len(known) or all(
        a.dtype == b.dtype for a, b in zip(parts, known, strict=True)
    ):
        return second
    converted: list[Tensor] = []
    for part, like in zip(parts, known, strict=True):
        is_named = bool(second.columns) or second.form is not None
        are_ids = is_named and part.is_floating_point() and bool((part % 1 == 0).all())
        if not part.is_complex() and (like.is_floating_point() or are_ids):
            part = part.to(like.dtype)
        converted.append(part)
    return with_parts(second, converted)


def _input_shapes(samples: Samples) -> dict[str, tuple[int, ...]]:
    """Return the shape of one sample of each input, by name."""
    parts = samples.subset(torch.arange(1)).parts
    if samples.form is None:
        names = ("shape",)
    else:
        names = samples.form.names or tuple(f"input {i}" for i in range(len(parts)))
    # sequences of different lengths fit one network
    return {
        name: () if part.ndim == 2 and not part.is_floating_point() else tuple(part.shape[1:])
        for name, part in zip(names, parts, strict=True)
    }


def _described(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" if shape else name for name, shape in shapes.items())


def _note_on_names(
    names: Sequence[str], known: Sequence[str], owner: str, kind: str
) -> tuple[str, ...]:
    """Return the note about columns or inputs that the first data set lacks, or that were in another order.

    Raises:
        InvalidInput: Some of the first are missing.
    """
    lacking = [name for name in known if name not in names]
    others = [name for name in names if name not in known]
    if lacking:
        has = f" and has {join_names(others)}" if others else ""
        raise InvalidInput(
            f"{owner} must have the {kind}s of the first data set; it lacks {join_names(lacking)}{has}. Prepare both "
            "in the same way."
        )
    if others:
        return (f"{join_names(others)}: not used, since the first data set has no such {kind}.",)
    return (f"The {kind}s were brought into the order of the first data set.",)


def _with_columns_of(second: Samples, first: Samples, owner: str) -> Samples:
    """Take the columns of a frame in the order of the first."""
    if second.columns == first.columns or not second.columns or not first.columns:
        return second
    notes = _note_on_names(second.columns, first.columns, owner, "column")
    order = torch.tensor([second.columns.index(name) for name in first.columns])
    inputs = second.inputs[:, order]
    # those of columns that are not used are omitted
    others = [note for note in second.notes if not isinstance(note, RowNumberNote)]
    notes = (*others, *row_number_note(inputs, first.columns), *notes)
    return replace(second, inputs=inputs, columns=first.columns, notes=notes)


def _with_named_inputs_of(second: Samples, first: Samples, owner: str) -> Samples:
    """Take the inputs of a mapping in the order of the first; a mapping of one tensor is as the tensor."""
    names, known = (
        None if samples.form is None else samples.form.names for samples in (second, first)
    )
    if first.has_one_input and second.has_one_input and None in (names, known):
        return replace(second, form=first.form)
    if names is None or known is None or names == known:
        return second
    notes = _note_on_names(names, known, owner, "input")
    parts = dict(zip(names, second.parts, strict=True))
    inputs, form = pack_inputs({name: parts[name] for name in known})
    return replace(second, inputs=inputs, form=form, notes=(*second.notes, *notes))


def _with_target_columns_of(second: Samples, first: Samples, owner: str) -> Samples:
    """Bring the columns of a frame of targets into the order of the first."""
    names = second.target_columns
    known = first.target_columns
    if names == known or not names or not known or second.targets is None:
        return second
    are_classes = first.is_classification and second.is_classification
    if are_classes and set(names) < set(known) and second.passed_form is not None:
        # one-hot classes of which some do not occur; `_numbered_as` numbers them by their names
        form = (torch.Size([len(known)]), second.passed_form[1])
        return replace(second, target_columns=known, unsettled=None, passed_form=form)
    if sorted(names) != sorted(known):
        raise InvalidInput(
            f"{owner} must have the targets of the first data set, {join_names(known)}; got {join_names(names)}. Pass "
            "the same columns."
        )
    # one-hot targets are classes by now, which `_numbered_as` numbers by their names
    return with_order_of_targets(second, known)


def with_order_of_targets(samples: Samples, names: tuple[str, ...]) -> Samples:
    """Return samples with their columns of targets in the order of these names.

    Args:
        samples: Samples with columns of targets; those that are classes by now stay as they are.
        names: The names of the columns, in another order.
    """
    order = torch.tensor([samples.target_columns.index(name) for name in names])
    targets, unsettled = (
        values if values is None or values.ndim != 2 else values[:, order.to(values.device)]
        for values in (samples.targets, samples.unsettled)
    )
    return replace(samples, targets=targets, unsettled=unsettled, target_columns=names)


def _numbered_as(second: Samples, first: Samples, owner: str) -> Samples:
    """Number the named classes of the second data set as in the first."""
    names = second.class_names
    known = first.class_names
    if names == known or second.targets is None or first.targets is None:
        return second
    if known == SIGN_NAMES and not names and bool((second.y == 1).all()):
        return replace(second, class_names=known)
    if not names or not known:
        words, numbers = (owner, "the first") if names else ("the first", owner)
        if second.names_are_own or first.names_are_own:
            note = f"Of both data sets, {words} names its classes, {numbers} does not: their numbers are compared."
            return replace(second, class_names=known, notes=(*second.notes, note))
        if SIGN_NAMES in (names, known):
            numbered = first if names else second
            labels = {int(label) for label in numbered.y}
            values = join_names(sorted(labels)[:5])
            raise InvalidInput(
                f"Both data sets must have the same labels; {words} has -1 and 1, {numbers} has {values}. Turn labels "
                "0 and 1 into -1 and 1 by 2 * y - 1."
            )
        raise InvalidInput(
            f"Both data sets must name their classes in the same way; {words} has names, {numbers} has numbers. Pass "
            "labels of one type."
        )
    unknown = [
        name for name in names if name not in known and bool((second.y == names.index(name)).any())
    ]
    if unknown:
        raise InvalidInput(
            f"{owner} has classes that the first data set has not: {join_names(map(repr, unknown))}; known are "
            f"{join_names(map(repr, known))}. Correct or drop these labels."
        )
    codes = torch.tensor([known.index(name) if name in known else 0 for name in names])
    old = set(naming_note(names))
    new = naming_note(known)
    notes = tuple(note for note in second.notes if note not in old)
    targets = codes.to(second.y.device)[second.y]
    return replace(second, targets=targets, class_names=known, notes=(*notes, *new))


def _check_numbers(second: Samples, first: Samples, owner: str) -> None:
    """Raise InvalidInput for class numbers that the first data set lacks; named classes are compared by name."""
    pair = (second, first)
    if first.class_names or any(
        item.targets is None or not item.is_classification for item in pair
    ):
        return
    labels = second.y.cpu()
    known = first.y.cpu()
    unknown = labels[~torch.isin(labels, known) & (labels != IGNORED)]
    if len(unknown):
        numbers = sorted({int(label) for label in unknown})
        others = sorted({int(label) for label in known} - {IGNORED})
        raise InvalidInput(
            f"{owner} has classes that the first data set has not: {join_names(numbers)}; known are "
            f"{join_names(others)}. Number both data sets in the same way, or drop these labels. If they are amounts, "
            'pass floating-point numbers or gs.Samples(x, y, task="regression").'
        )


def _with_positions_of(second: Samples, first: Samples, owner: str) -> Samples:
    """Bring labels of positions into the shape of the first's."""
    if not (first.is_dense and second.is_dense):
        return second
    grid = first.y.shape[1:]
    if second.y.shape[1:] != grid:
        second = second.with_position_labels(labels_as_on(second.y, grid))
    # sequences of different lengths fit one network
    if second.y.shape[1:] != grid and (len(grid) > 1 or second.y.ndim > 2):
        raise InvalidInput(
            f"{owner} must have labels at the positions of the first data set, {list(grid)} per sample; got "
            f"{list(second.y.shape[1:])}. Prepare both in the same way."
        )
    return second


def _with_task_of(second: Samples, first: Samples, owner: str) -> Samples:
    """Read the targets of the second data set as those of the first's task."""
    if second.targets is None or first.targets is None or second.kind == first.kind:
        return second
    if second.unsettled is None:
        raw = second.targets
    else:
        raw = second.unsettled
    try:
        return with_task(second, first.kind)
    except InvalidInput:
        raise InvalidInput(
            f"Both data sets must have one task; the first is {first.task}, {owner} has targets {raw.dtype} of shape "
            f"{list(raw.shape)}. Pass targets of one kind."
        ) from None
