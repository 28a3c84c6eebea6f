"""Inputs that are the label or the target in other words, whatever their form, and several inputs as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gapscope.base.input_layout import InputLayout
from gapscope.base.label_copies import are_many
from gapscope.base.samples import Samples
from gapscope.labels.leaking_columns import (
    MAX_EXACT,
    ROUNDING,
    LeakingColumns,
    find_leaking_columns,
    name_columns,
    predict_from,
    reason_not_searched,
)
from gapscope.results.estimate import percent
from gapscope.statistics.baselines import sample_features

N_FIRST = 100
"""Rows that are compared first, by judgment for time: inputs that are no copy differ within a class there."""


def _has_one_value_per_class(part: Tensor, labels: Tensor) -> bool:
    """Return whether all samples of a class have one input, and those of different classes different ones."""
    rows = part.reshape(len(part), -1)
    classes, codes = labels.unique(return_inverse=True)
    order = torch.arange(len(rows))
    first = torch.full((len(classes),), len(rows)).scatter_reduce(0, codes, order, "amin")
    same = all(
        bool((rows[some] == rows[first[codes[some]]]).all()) for some in order.split(N_FIRST)
    )
    return same and bool(rows.numel()) and len(rows[first].unique(dim=0)) == len(classes)


def _is_copy(part: Tensor, targets: Tensor, *, is_only: bool) -> bool:
    """Return whether an input is the label, or as one of several the target of regression in other units."""
    if targets.is_floating_point():
        if is_only or part[0].numel() != 1:
            return False
        both = torch.stack([part.double().flatten(), targets.double().flatten()])
        return float(both.corrcoef()[0, 1].abs()) > 1 - ROUNDING
    sizes = targets.unique(return_counts=True)[1]
    return are_many(sizes.tolist()) and _has_one_value_per_class(part, targets)


def _copies(samples: Samples) -> list[int]:
    """Return the numbers of the inputs that are copies of the label or target."""
    targets = samples.y.cpu()
    if not samples.is_classification and (samples.kind != "regression" or targets[0].numel() != 1):
        return []
    few = samples.first(N_FIRST)
    is_only = len(few.parts) == 1
    found = [
        i
        for i, part in enumerate(few.parts)
        if not samples.is_classification or _has_one_value_per_class(part.cpu(), few.y.cpu())
    ]
    if not found:
        return []
    parts = samples.parts
    return [i for i in found if _is_copy(parts[i].cpu(), targets, is_only=is_only)]


def _named(samples: Samples, inputs: Sequence[int]) -> str:
    """Return some of several inputs by name, or by number."""
    names = samples.form.names if samples.form is not None else None
    listed = name_columns(names or (), inputs)
    return f"input {listed}" if len(inputs) == 1 else f"inputs {listed}"


def find_copied_inputs(samples: Samples) -> LeakingColumns | None:
    """Return which inputs are copies of the label or target, and what all others predict; None without such inputs.

    Pictures, token ids and tables are read alike. A single input is a copy of class labels alone.

    Args:
        samples: The samples, with targets.
    """
    copies = _copies(samples)
    if not copies:
        return None
    few = samples.subset(torch.linspace(0, len(samples) - 1, min(len(samples), MAX_EXACT)).long())
    targets = few.y.cpu() if samples.is_classification else few.y.cpu().double().flatten()
    noun = "label" if samples.is_classification else "target"
    rest = [part for i, part in enumerate(few.parts) if i not in copies]
    if not rest:
        others = predict_from(torch.zeros(len(few), 1), targets)
        known = samples.columns
        listed = f" ({name_columns(known, range(len(known)))})" if known else ""
        evidence = f"the inputs{listed} are a copy of the {noun}, one value per class"
        return LeakingColumns(evidence, 1.0, others, is_copy=True)
    features = sample_features(
        replace(few, inputs=_row_numbers(few), form=InputLayout(columns=tuple(rest)))
    )
    others = predict_from(features.double(), targets)
    is_one = len(copies) == 1
    evidence = (
        f"{_named(samples, copies)} {'is a copy' if is_one else 'are copies'} of the {noun} "
        f"(all others together predict {percent(others)})"
    )
    return LeakingColumns(evidence, 1.0, others, is_copy=True)


def _row_numbers(samples: Samples) -> Tensor:
    return -1 - torch.arange(len(samples))[:, None]


def _columns_of(samples: Samples) -> Iterator[tuple[str, Tensor]]:
    """Yield the columns [n] of several inputs with their names; nothing if one of them is no table."""
    names = samples.form.names if samples.form is not None else None
    parts = [part.cpu() for part in samples.parts]
    for part in parts:
        is_table = part.is_floating_point() or part.ndim == 1 or part.dtype == torch.bool
        if part.ndim > 2 or not (is_table or bool(((part == 0) | (part == 1)).all())):
            return
    for i, part in enumerate(parts):
        name = names[i] if names else f"input {i}"
        if part.ndim == 1:
            yield name, part
        else:
            for k, column in enumerate(part.T):
                yield name if part.shape[1] == 1 else f"{name}[{k}]", column


def as_table(samples: Samples) -> Samples | None:
    """Return samples whose inputs are one table; None for other data.

    Several inputs are joined if each is a number or a vector of numbers. Token ids are none.

    Args:
        samples: The samples.
    """
    if samples.has_one_input:
        x = samples.inputs
        return samples if x.is_floating_point() and x.ndim == 2 else None
    columns = list(_columns_of(samples))
    if not columns:
        return None
    names, values = zip(*columns, strict=True)
    table = torch.stack([value.double() for value in values], 1)
    return replace(samples, inputs=table, form=None, columns=names)


def leaking_column_note(samples: Samples) -> tuple[str, ...]:
    """Return the note on inputs, or columns of a table, that give the label away; none without such.

    Args:
        samples: The samples, with targets.
    """
    found = find_copied_inputs(samples)
    table = as_table(samples) if found is None else None
    if table is not None and not reason_not_searched(table, table.inputs.shape[1]):
        found = find_leaking_columns(table)
    if found is None or not found.is_leak:
        return ()
    text = found.evidence[0].upper() + found.evidence[1:]
    return (
        f"{text}: label errors are not found through it. If it is not known before the label is, drop it.",
    )
