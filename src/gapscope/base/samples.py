"""Samples: inputs with targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gapscope.base.arrays import tensor_of
from gapscope.base.columns import with_canonical_strides
from gapscope.base.containers import collate_data
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.input_checks import check_inputs, check_values
from gapscope.base.input_layout import InputLayout, pack_inputs
from gapscope.base.label_marks import MarkNote, notes_beside
from gapscope.base.position_labels import labels_of_positions
from gapscope.base.precision import reading
from gapscope.base.read_targets import read_targets
from gapscope.base.row_numbers import row_number_note
from gapscope.base.targets import (
    DOUBTS_OF_REGRESSION,
    INTEGER_REGRESSION_NOTE,
    ONE_HOT_POSITIONS_NOTE,
    SIGN_NAMES,
    TASK_NOTES,
    check_none_missing,
    check_targets,
    is_zero_one,
    labelled_rows,
    note_on_signs,
    parse_targets,
    refuse_names,
    require_targets,
)
from gapscope.base.task import CLASS_AXES, Task, parse_kind, task_of

ADVICE = {
    "classification": "Pass y.float() if these are no labels.",
    "multi-label": "Pass one of the labels at a time: (x, y[:, k].long()).",
    "positions": "Pass one label per sample, or features of single positions with their labels.",
    "regression": "Pass y.long() if these are labels.",
}
"""What to do if a function has no answer for a task."""


@dataclass(frozen=True, init=False)
class Samples:
    """Checked inputs with their targets.

    Attributes:
        inputs: [n, ...], floating point or token ids (int64).
        targets: Class labels [n] (int64), several labels per sample [n, K] (bool), class labels of positions [n, ...]
            (int64, -100 where there is none), regression targets [n, K], or None.
        form: Layout of `inputs` if the network takes keywords or several tensors; None for `network(inputs)`.
        notes: Notes about omitted data and their interpretation.
        class_names: Names of the classes, if labels were strings or categories, or if their data set names them.
        rows: Row number of each sample in the data that were passed, int64 [n] and ascending, if some rows were
            omitted; else None. `original` converts indices of samples to row numbers, `position` the other way.
        n_rows: Number of rows of the data that were passed; 0 for as many as samples.
        unsettled: Targets as passed, if only the outputs of a network decide their task (`settled`); else None.
        has_order: False if the data come in another order each time they are read, or if a collate function drops or
            sorts samples, so that indices mean nothing.
        columns: Names of the columns, if the inputs were a frame; else empty.
        class_axis: Axis of the classes in outputs with positions, if the caller named it: 1 (task "pixels") or -1
            ("tokens"); else None.
        passed_form: Shape of a sample's targets as they were passed, and their type (`targets_as_passed`); None if the
            targets were passed in the form of their task.
        names_are_own: True if labels were numbers, and `class_names` are those of their data set.
        target_columns: Names of the columns of the targets, if they were a frame of several; else empty.
        text_keys: Hashes [n] of the texts of which `inputs` are frequencies of words, or of the columns of a frame that
            they omit, int64; None for other inputs. Samples with different hashes are no copies.
        task: What the targets are, see `gapscope.base.task`; None infers it from their type.
    """

    inputs: Tensor
    targets: Tensor | None
    form: InputLayout | None
    notes: tuple[str, ...]
    class_names: tuple[str, ...]
    rows: Tensor | None
    n_rows: int
    unsettled: Tensor | None
    has_order: bool
    class_axis: int | None
    columns: tuple[str, ...]
    passed_form: tuple[torch.Size, torch.dtype] | None
    names_are_own: bool
    target_columns: tuple[str, ...]
    text_keys: Tensor | None

    def __init__(
        self,
        inputs: Any,
        targets: Any = None,
        form: InputLayout | None = None,
        notes: tuple[str, ...] | None = None,
        class_names: tuple[str, ...] = (),
        rows: Tensor | None = None,
        n_rows: int = 0,
        unsettled: Tensor | None = None,
        has_order: bool = True,
        class_axis: int | None = None,
        columns: tuple[str, ...] = (),
        passed_form: tuple[torch.Size, torch.dtype] | None = None,
        names_are_own: bool = False,
        target_columns: tuple[str, ...] = (),
        text_keys: Tensor | None = None,
        *,
        task: str | None = None,
    ) -> None:
        """Check inputs and targets.

        Lists, arrays, frames and other forms of data are read by `as_samples`.

        Args:
            inputs: A tensor, or the x of `as_samples`. See the attributes of the class for all parameters.
            targets: Targets as passed, read as those of a pair (x, y); bool [n, K > 1] are several labels per sample.
            form: Layout of packed inputs.
            notes: Notes about the data. Targets with notes have the form of their task, unless `task` names it.
            class_names: Names of the classes.
            rows: Row numbers in the data that were passed.
            n_rows: Number of rows of the data that were passed.
            unsettled: Targets as passed.
            has_order: Whether the order is the same each time.
            class_axis: Axis of the classes in outputs with positions.
            columns: Names of the columns of a frame.
            passed_form: Shape and type of a sample's targets as they were passed.
            names_are_own: Whether labels were numbers that their data set names.
            target_columns: Names of the columns of a frame of targets.
            text_keys: Hashes of the texts.
            task: "classification", "binary", "multi-label", "positions" ("tokens", "pixels") or "regression"; None to
                infer it from the type of `targets`.

        Raises:
            InvalidInput: Inputs or targets are unusable, or `task` does not fit the targets.
        """
        is_read = not isinstance(inputs, Tensor) or not isinstance(targets, Tensor | None)
        if form is None and isinstance(targets, Tensor):
            are_several = targets.dtype == torch.bool and targets[:1].numel() > 1
            is_read |= task is not None or (notes is None and not are_several)
        notes = notes or ()
        if is_read:
            read = as_samples(inputs if targets is None else (inputs, targets), task=task)
            inputs, targets, form = read.inputs, read.targets, read.form
            rows, n_rows, unsettled = read.rows, read.n_rows, read.unsettled
            class_axis = read.class_axis
            passed_form, has_order = read.passed_form, has_order and read.has_order
            notes = (*read.notes, *notes)
            names_are_own = names_are_own or read.names_are_own
            class_names = class_names or read.class_names
            columns = columns or read.columns
            target_columns = target_columns or read.target_columns
            text_keys = read.text_keys if text_keys is None else text_keys
        values = (
            inputs, targets, form, notes, class_names, rows, n_rows, unsettled, has_order, class_axis, columns,
            passed_form, names_are_own, target_columns, text_keys,
        )  # fmt: skip
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)
        check_inputs(inputs)
        if targets is not None:
            check_same_length("inputs", len(inputs), "targets", len(targets))
            check_targets(targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        targets = "no targets"
        if self.targets is not None:
            targets = f"targets {list(self.targets.shape)} {self.targets.dtype}"
        return f"Samples({len(self)} samples, inputs {list(self.inputs.shape)} {self.inputs.dtype}, {targets})"

    def subset(self, indices: Tensor, *, keeps_rows: bool = False) -> Samples:
        """Return the samples at `indices`, in that order.

        Args:
            indices: Indices of samples, int64.
            keeps_rows: Whether `original` of the subset still returns row numbers of the data that were passed. By
                default the subset is a data set of its own.
        """
        # inputs and targets may be on different devices
        inputs, targets, unsettled, text_keys = (
            None if values is None else values[indices.to(values.device)]
            for values in (self.inputs, self.targets, self.unsettled, self.text_keys)
        )
        rows, n_rows = None, 0
        if keeps_rows:
            rows, n_rows = self.original(indices.cpu()), self.n_rows
        part = replace(self, inputs=inputs, targets=targets, text_keys=text_keys)
        return replace(part, unsettled=unsettled, rows=rows, n_rows=n_rows)

    def first(self, n: int | None) -> Samples:
        """Return the first `n` samples (None for all), with their row numbers.

        Args:
            n: Number of samples; None for all.
        """
        if n is None or n >= len(self):
            return self
        return self.subset(torch.arange(n), keeps_rows=self.rows is not None)

    def original(self, indices: Tensor | Sequence[int]) -> Tensor:
        """Return the row numbers, in the data that were passed, of the samples at `indices`.

        Args:
            indices: Indices of samples, [m], in [0, n).

        Raises:
            InvalidInput: The data come in another order each time they are read.
        """
        if not self.has_order:
            raise InvalidInput(
                "Indices need one row per sample in a fixed order; these data come in another order each time they are "
                "read, or their collate function drops or sorts samples. Pass the data set itself, or (x, y)."
            )
        indices = tensor_of(indices, dtype=torch.int64)
        return indices if self.rows is None else self.rows[indices]

    def position(self, row: int) -> int:
        """Return the index of the sample that has this row number in the data that were passed.

        Args:
            row: Row number in the data that were passed.

        Raises:
            InvalidInput: The data have no such row, or it was omitted.
        """
        n = self.n_rows or len(self)
        if not 0 <= row < n:
            raise InvalidInput(f"Got sample {row}; the data have the samples 0 to {n - 1}.")
        if self.rows is None:
            return row
        index = int(torch.searchsorted(self.rows, row))
        if index == len(self.rows) or int(self.rows[index]) != row:
            raise InvalidInput(
                f"Got sample {row}, which is not used (see the notes of the data). Pass another one."
            )
        return index

    def per_sample(self, values: Any) -> Any:
        """Return one value per sample, from one value per row of the data that were passed.

        Args:
            values: A sequence, array or pandas object (such as groups or names); None is returned.
        """
        if values is None or self.rows is None or len(values) != self.n_rows:
            return values
        if hasattr(values, "to_numpy"):
            values = values.to_numpy()
        return [values[int(row)] for row in self.rows]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The inputs as the network takes them, also if `inputs` holds row numbers of packed inputs."""
        if self.form is None:
            return (self.inputs,)
        return self.form.unpack(self.inputs)

    @property
    def has_one_input(self) -> bool:
        """True if the network takes one tensor, which is `inputs`, by position or by name."""
        return self.form is None or not (self.form.columns or self.form.shapes)

    @property
    def y(self) -> Tensor:
        """The targets, or InvalidInput if there are none."""
        return require_targets(self)

    def target_names(self, noun: str) -> tuple[str, ...]:
        """Return the names of several targets, those of their frame where it has one.

        Args:
            noun: What one of several targets without a name is, such as "label": "label 0", "label 1".
        """
        k = self.y.shape[1]
        if len(self.target_columns) == k:
            return self.target_columns
        return tuple(f"{noun} {i}" for i in range(k))

    @property
    def named_targets(self) -> tuple[str, ...]:
        """Names of several targets per sample; empty if they have none, or are named by their numbers."""
        names = self.target_columns
        if self.y.ndim != 2 or len(names) != self.y.shape[1]:
            return ()
        if names == tuple(map(str, range(len(names)))):
            return ()
        return names

    @property
    def targets_as_passed(self) -> Tensor:
        """The targets in the shape and type in which they were passed, for functions of the user.

        Numbers [n] of regression, floats of two classes, -1 and 1 of two classes, one-hot rows, and zeros and ones of
        several labels come back as such; integers are int64.
        """
        targets = self.y
        if self.passed_form is None:
            return targets
        shape, dtype = self.passed_form
        classes = shape.numel()
        if self.is_classification and classes > 1 and int(targets.max()) < classes:
            targets = torch.nn.functional.one_hot(targets, classes)
        if targets.numel() != len(targets) * classes:  # changed since they were passed
            return targets
        if dtype.is_floating_point or dtype == torch.bool:
            targets = targets.to(dtype)
        elif targets.dtype == torch.bool:
            targets = targets.long()
        elif self.class_names == SIGN_NAMES:
            targets = 2 * targets - 1
        return targets.reshape(len(targets), *shape)

    @cached_property
    def task(self) -> Task:
        """The kind of the targets, with its losses and scores; InvalidInput if there are none.

        Named classes count, also those without a sample.
        """
        task = task_of(self.y)
        if task.kind == "classification" and len(self.class_names) > task.n_outputs:
            return replace(task, n_outputs=len(self.class_names))
        return task

    @property
    def kind(self) -> str:
        """Kind of the task: "classification", "multi-label", "positions", "regression"; empty without targets."""
        if self.targets is None:
            return ""
        return task_of(self.targets, is_counted=False).kind

    def require_kind(self, owner: str, *kinds: str, advice: str = "") -> None:
        """Raise InvalidInput unless the task is of one of these kinds.

        Args:
            owner: What has an answer for these kinds alone, as the subject of a sentence.
            kinds: Kinds of tasks.
            advice: What to do for another task; empty for the advice of its kind.

        Raises:
            InvalidInput: The task is of another kind.
        """
        if self.kind in kinds:
            return
        task = self.task
        doubt = next((note for note in self.notes if note in DOUBTS_OF_REGRESSION), "")
        advice = doubt or advice or ADVICE[task.kind]
        if task.kind == "positions" and self.unsettled is not None and "regression" in kinds:
            advice = f'If these are no classes, pass gs.Samples(x, y, task="regression"). {advice}'
        raise InvalidInput(
            f"{owner} has no answer for this task ({task}); it has one for {', '.join(kinds)}. {advice}"
        )

    @property
    def is_classification(self) -> bool:
        """True for class labels, one per sample."""
        return self.kind == "classification"

    @property
    def is_dense(self) -> bool:
        """True for class labels of positions (pixels, tokens)."""
        return self.kind == "positions"

    def with_position_labels(self, labels: Tensor) -> Samples:
        """Return the samples with the same labels of positions in another shape, and a note if they were one-hot.

        Args:
            labels: Class labels [n, ...] of positions.
        """
        if labels is self.targets:
            return self
        notes = self.notes
        if labels.numel() < self.y.numel() and ONE_HOT_POSITIONS_NOTE not in notes:
            notes = (*notes, ONE_HOT_POSITIONS_NOTE)
        return replace(self, targets=labels, unsettled=None, notes=notes)

    def settled(self, output_shape: Sequence[int]) -> Samples:
        """Return the samples with the task that their targets have beside outputs of this shape [n, ...].

        A matrix of integers is one class per position beside outputs with one dimension more. Beside outputs [n, K] it
        is one-hot, several labels per sample, or regression targets. Labels of positions lose an axis of one class, or
        of one-hot classes.

        Args:
            output_shape: Shape of the network's outputs, [n, ...].

        Raises:
            InvalidInput: Some of several labels per sample are missing (-100).
        """
        left = notes_beside(self.notes, output_shape)
        if left != self.notes:
            return replace(self, notes=left).settled(output_shape)
        raw = self.unsettled
        if raw is None:
            return self
        notes = tuple(note for note in self.notes if note not in TASK_NOTES)
        if raw.ndim > 2:
            labels = labels_of_positions(self.y, output_shape)
            return replace(self.with_position_labels(labels), unsettled=None)
        if len(output_shape) > raw.ndim:
            if raw.is_floating_point():
                return replace(self, unsettled=None)
            return replace(self, targets=raw.long(), notes=notes, unsettled=None)
        check_none_missing(raw)
        is_named = bool(self.class_names) and not self.names_are_own  # names have no order
        if (
            not is_named
            and not is_zero_one(raw)
            and tuple(output_shape[1:]) == tuple(raw.shape[1:])
        ):
            targets = raw.to(torch.get_default_dtype())
            note = note_on_signs(raw) or INTEGER_REGRESSION_NOTE
            return replace(self, targets=targets, notes=(*notes, note), unsettled=None)
        return replace(self, unsettled=None)


def as_samples(
    data: Any,
    *,
    at_most: int | None = None,
    task: str | None = None,
    is_exact: bool = False,
    with_targets: bool = True,
) -> Samples:
    """Return Samples from data in any common form (omitted data are noted).

    Accepted: a tensor x or a pair (x, y) whose x is a tensor, a numpy array, a DataFrame, a tuple of them or a mapping
    (such as a BatchEncoding) of them; a mapping of inputs with `labels`; a torch Dataset or DataLoader that yields any
    of these; a `datasets.Dataset`; Samples. Labels may be any integers, samples with the label -100 are omitted, and
    labels with a number per position (pixels, tokens) keep -100 for positions that do not count.

    The task follows from the targets:

    - integers, strings or categories [n], and float targets [n] that are all 0.0 or 1.0: one class per sample; the
      integers -1 and 1 alone are the names of two classes;
    - zeros and ones [n, K] with exactly one 1 in each row: one-hot, converted to one class per sample;
    - other zeros and ones [n, K]: several labels per sample (multi-label);
    - other integers [n, ...], strings [n, ...] and whole numbers with three dimensions or more: one class per position
      (one-hot classes, and an axis of size 1, are removed beside outputs that have this axis as well);
    - other real numbers [n] or [n, K]: regression.

    A matrix of integers is settled by the network's outputs, where there is a network (`Samples.settled`).

    The samples of a DataLoader are read from its data set in order, so that indices are those of the data set, also if
    the loader shuffles, weights or drops samples. Samples that its sampler never yields are omitted.

    Args:
        data: The data, in any of these forms.
        at_most: Number of samples to read; None for all. Of a loader that shuffles these are a fixed random subset.
        task: Kind of the targets, if it is not to be inferred: "classification", "binary", "multi-label", "positions"
            ("tokens", "pixels") or "regression".
        is_exact: Whether columns of arrays and frames in float64 whose digits float32 would lose stay in float64, for
            functions without a network; else they are rounded, and noted.
        with_targets: Whether targets are read; without them no sample is omitted for the lack of a label.

    Raises:
        InvalidInput: The data have another form, or hold nothing usable; a stream does not end.
    """
    if isinstance(data, Samples):
        return data if task is None else with_task(data, task)
    with reading(is_exact=is_exact) as found:
        collated = collate_data(data, at_most)
    if not with_targets:
        collated.targets = None
        collated.class_names = ()
    inputs = collated.inputs
    form = None
    notes = [*collated.notes, *found.notes]
    if isinstance(inputs, Tensor):
        inputs = with_canonical_strides(inputs)
    else:
        for part in inputs.values() if isinstance(inputs, dict) else inputs:
            check_values(part)
        inputs, form = pack_inputs(inputs)
    kind = None if task is None else parse_kind(task)
    found_targets = read_targets(collated, kind, notes)
    raw = found_targets.raw
    targets = found_targets.targets
    notes += row_number_note(inputs, collated.columns)
    rows = collated.rows
    n_rows = collated.n_rows
    text_keys = collated.text_keys
    if targets is not None and targets.ndim == 1 and targets.dtype == torch.int64:
        is_labelled = labelled_rows(targets, notes)
        if len(is_labelled) == len(inputs) and not bool(is_labelled.all()):
            inputs, targets = inputs[is_labelled], targets[is_labelled]
            n_rows = n_rows or len(is_labelled)
            if rows is None:
                rows = torch.arange(len(is_labelled))
            rows = rows[is_labelled.cpu()]
            text_keys = None if text_keys is None else text_keys[is_labelled.cpu()]
    return Samples(
        inputs,
        targets,
        form,
        tuple(notes),
        found_targets.class_names,
        rows=rows,
        n_rows=n_rows,
        unsettled=raw if found_targets.is_open else None,
        has_order=collated.has_order,
        class_axis=CLASS_AXES.get(task or ""),
        columns=collated.columns,
        passed_form=None if raw is None else (raw.shape[1:], raw.dtype),
        names_are_own=collated.names_are_own,
        target_columns=collated.target_columns,
        text_keys=text_keys,
    )


def with_task(samples: Samples, task: str) -> Samples:
    """Return samples whose targets are read as those of another task.

    Raises:
        InvalidInput: The targets do not have the form of this task, or are names that are to be numbers.
    """
    raw = samples.y if samples.unsettled is None else samples.unsettled
    if not samples.names_are_own and samples.class_names not in (
        SIGN_NAMES,
        samples.target_columns,
    ):
        refuse_names(samples.class_names, parse_kind(task))
    notes = tuple(
        note for note in samples.notes if note not in TASK_NOTES and not isinstance(note, MarkNote)
    )
    targets = parse_targets(raw, [], parse_kind(task))
    return replace(
        samples, targets=targets, notes=notes, unsettled=None, class_axis=CLASS_AXES.get(task)
    )


def with_parts(samples: Samples, parts: Sequence[Tensor]) -> Samples:
    """Return samples with other inputs, in the order of `Samples.parts`, that keep their names.

    Args:
        samples: The samples.
        parts: One tensor [n, ...] per input.
    """
    if samples.form is None:
        return replace(samples, inputs=parts[0])
    names = samples.form.names
    inputs, form = pack_inputs(
        tuple(parts) if names is None else dict(zip(names, parts, strict=True))
    )
    return replace(samples, inputs=inputs, form=form)


def slices(n: int, chunk_size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `chunk_size` that cover range(n)."""
    if chunk_size < 1:
        raise InvalidInput(f"chunk_size must be at least 1; got {chunk_size}.")
    for start in range(0, n, chunk_size):
        yield slice(start, min(start + chunk_size, n))


def slices_of(stretch: slice, chunk_size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `chunk_size` that cover a range of rows."""
    for part in slices(stretch.stop - stretch.start, chunk_size):
        yield slice(stretch.start + part.start, stretch.start + part.stop)
