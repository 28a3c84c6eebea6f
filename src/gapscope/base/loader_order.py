"""Order of loaders: which rows of its data set a DataLoader yields, and a loader that reads them in order."""

# torch's samplers have no types
# pyright: basic

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from gapscope.base.user_data import RowNote, Rows

N_PASSES = 10
"""Passes over the data set after which a sampler of unknown type has shown its rows; it may go on for ever."""


@dataclass(frozen=True)
class ReadingPlan:
    """A loader that reads a data set in order.

    Attributes:
        loader: The loader.
        rows: Sorted row numbers that it reads; None for all rows.
        n_rows: Number of rows that it reads.
        has_rows: False if the items of the data set are batches, whose samples have no row numbers.
        notes: What is read, for the user.
    """

    loader: DataLoader[Any]
    rows: Tensor | None
    n_rows: int
    has_rows: bool
    notes: list[str]


def is_sequential(loader: DataLoader[Any]) -> bool:
    """Return whether a loader yields all rows of its data set once, in order."""
    batch_sampler: Any = loader.batch_sampler
    if batch_sampler is None:
        return isinstance(loader.sampler, SequentialSampler)
    is_plain = type(batch_sampler) is BatchSampler and not batch_sampler.drop_last
    return is_plain and isinstance(batch_sampler.sampler, SequentialSampler)


def _sampled_rows(loader: DataLoader[Any], n: int) -> Tensor | None:
    """Return the sorted row numbers that the sampler of a loader yields (None for all rows)."""
    batch_sampler: Any = loader.batch_sampler
    sampler: Any = getattr(batch_sampler, "sampler", loader.sampler)
    if type(batch_sampler) is not BatchSampler:
        batches = itertools.islice(iter(batch_sampler), N_PASSES * n)
        rows = [int(row) for batch in batches for row in batch]
    elif isinstance(sampler, SequentialSampler | RandomSampler):
        return None
    elif isinstance(sampler, WeightedRandomSampler):
        rows = torch.as_tensor(sampler.weights).nonzero()[:, 0].tolist()
    elif isinstance(sampler, SubsetRandomSampler):
        rows = [int(row) for row in sampler.indices]
    else:
        rows = [int(row) for row in itertools.islice(iter(sampler), N_PASSES * n)]
    distinct = torch.tensor(sorted(set(rows)), dtype=torch.int64)
    if len(distinct) == n:
        return None
    return distinct


def plan_reading(loader: DataLoader[Any], at_most: int | None) -> ReadingPlan:
    """Return a loader that reads the same data set in order.

    Args:
        loader: A loader of a data set with a length, which shuffles, weights or drops samples.
        at_most: Number of samples to read; None for all. They are a fixed random part of the rows, because the first
            rows may all be of one class.
    """
    dataset: Any = loader.dataset
    n = len(dataset)
    notes: list[str] = [
        RowNote(
            "The loader does not yield its data set in order: the data set was read in order instead."
        )
    ]
    if loader.batch_sampler is None:
        ordered = DataLoader(dataset, batch_size=None, collate_fn=loader.collate_fn)
        return ReadingPlan(ordered, None, n, has_rows=False, notes=notes)
    rows = _sampled_rows(loader, n)
    n_rows = n
    if rows is not None:
        n_rows = len(rows)
        notes.append(
            RowNote(
                f"{n_rows} of {n} samples were read: those that the sampler of the loader yields."
            )
        )
    if at_most is not None and at_most < n_rows:
        part = (
            torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))[:at_most]
            .sort()
            .values
        )
        if rows is None:
            rows = part
        else:
            rows = rows[part]
        n_rows = at_most
    ordered = DataLoader(
        dataset if rows is None else Rows(dataset, rows.tolist()),
        batch_size=loader.batch_size or 256,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
    )
    return ReadingPlan(ordered, rows, n_rows, has_rows=True, notes=notes)
