"""The task that a Hugging Face model states itself, in `config.problem_type`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples, with_task

# The third one, "single_label_classification", is what integers and one-hot labels are without it.
STATED = {"regression": "regression", "multi_label_classification": "multi-label"}


def with_stated_task(network: Any, samples: Samples) -> Samples:
    """Return samples with the task of `network.config.problem_type`, where targets alone tell another one.

    Targets 0.0 and 1.0 are classes without it, and rows that hold one 1 each are one-hot classes.

    Args:
        network: The network, or anything else.
        samples: The samples.
    """
    stated = getattr(getattr(network, "config", None), "problem_type", None)
    task = STATED.get(stated) if isinstance(stated, str) else None
    if task is None or samples.targets is None or samples.kind == task or samples.names_are_own:
        return samples
    try:
        changed = with_task(samples, task)
    except InvalidInput:
        return samples  # the targets cannot be what the model states
    note = f"The targets are read as {task}: the model states problem_type={stated!r}."
    return replace(changed, notes=(*changed.notes, note))
