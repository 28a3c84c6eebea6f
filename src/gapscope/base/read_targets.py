"""Targets as they were passed, read in the form of their task."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gapscope.base.batches import CollatedData
from gapscope.base.class_names import notes_on_class_names
from gapscope.base.columns import naming_note
from gapscope.base.label_marks import notes_on_marks
from gapscope.base.targets import (
    AMOUNTS_NOTE,
    SIGN_NAMES,
    are_amounts,
    are_signs,
    is_zero_one,
    parse_targets,
    refuse_names,
)


@dataclass(frozen=True)
class ReadTargets:
    """Targets of a data set.

    Attributes:
        raw: Targets as they were passed, -1 and 1 as 0 and 1; None without targets.
        targets: The targets in the form of their task; None without targets.
        class_names: Names of the classes; empty without.
        is_open: Whether only the outputs of a network decide the task.
    """

    raw: Tensor | None
    targets: Tensor | None
    class_names: tuple[str, ...]
    is_open: bool = False


def read_targets(collated: CollatedData, kind: str | None, notes: list[str]) -> ReadTargets:
    """Return the targets of a data set.

    Args:
        collated: Its inputs and raw targets.
        kind: Kind of task, if the caller named it; else None.
        notes: Sentences on how the data were read, added to.

    Raises:
        InvalidInput: The targets have no form of a task, or negative marks of missing labels among them.
    """
    raw = collated.targets
    names = collated.class_names
    if raw is None:
        return ReadTargets(None, None, names)
    if kind is None and not collated.names_are_own:
        notes += notes_on_marks(raw, names)
    if kind in (None, "classification") and are_signs(raw, kind):
        raw = (raw > 0).long()
        names = SIGN_NAMES
        notes += naming_note(SIGN_NAMES)
    refuse_names(names, kind)
    targets = parse_targets(raw, notes, kind)
    has_several = raw[:1].numel() > 1
    if targets.ndim < raw.ndim and has_several:
        names = ()  # they are those of 0 and 1 in one-hot rows
    if kind is None and not names and targets.shape == raw.shape[:1] and are_amounts(targets):
        notes.append(AMOUNTS_NOTE)
    if names and not targets.is_floating_point():
        notes += notes_on_class_names(names, targets, are_numbers=collated.names_are_own)
    if targets.ndim == 1 and len(collated.target_columns) == raw.shape[1:].numel() > 1:
        names = collated.target_columns  # one-hot
    are_numbers = raw.ndim == 2 and raw.is_floating_point() and not is_zero_one(raw)
    is_open = kind is None and raw.ndim > 1 and has_several and not are_numbers
    return ReadTargets(raw, targets, names, is_open)
