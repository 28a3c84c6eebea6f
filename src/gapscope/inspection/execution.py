"""Threads and processes: one lock, and division of samples among processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.inspection.interrupts import postponed_interrupts

_LOCK = threading.RLock()


@contextmanager
def exclusive() -> Iterator[None]:
    """Run the body while no other thread runs one (reentrant): what it changes in a network and the process is seen.

    Not protected from it are other calls in other threads: inference of the same network, and random numbers that are
    sampled from the global streams.
    """
    with postponed_interrupts(), _LOCK:
        yield


@dataclass(frozen=True)
class Processes:
    """Processes that divide samples: rank of this one, their number and group."""

    rank: int
    size: int
    group: Any = None

    def rows_of_rank(self, n: int) -> slice:
        """Return the slice of n rows for this process (sizes differ by at most one)."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def all_min(self, number: int) -> int:
        """Return the smallest value of all processes (for example of their chunk sizes)."""
        value = torch.tensor(number)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MIN, self.group)
        return int(value)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over processes, in place."""
        torch.distributed.all_reduce(values, group=self.group)
        return values


_PROCESSES: ContextVar[Processes | None] = ContextVar("processes", default=None)


def is_distributed() -> bool:
    """Return whether several processes measure together."""
    return _PROCESSES.get() is not None


def processes(n: int) -> Processes | None:
    """Return the processes that divide n rows (None if not distributed or too few rows)."""
    members = _PROCESSES.get()
    if members is None or n < members.size:
        return None
    return members


@contextmanager
def distribute_over(group: Any = None) -> Iterator[None]:
    """Divide the passes of measures in the body among the processes of a group (None for all).

    All processes must make the same calls.

    Raises:
        InvalidInput: There is no process group.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InvalidInput(
            "Got no process group; distribute_over needs torch.distributed.init_process_group(). Start the script with "
            "torchrun, or measure without distribute_over."
        )
    size = torch.distributed.get_world_size(group)
    if size > 1:
        members = Processes(torch.distributed.get_rank(group), size, group)
    else:
        members = None
    token = _PROCESSES.set(members)
    try:
        yield
    finally:
        _PROCESSES.reset(token)


def compute_distributed(
    n: int,
    compute: Callable[[slice], Tensor],
    *,
    dim: int = 0,
    length: Callable[[slice], int] | None = None,
) -> Tensor:
    """Return `compute` for samples 0 to n, each process computing one non-empty slice.

    The rows are in dimension `dim` of the result; `length` gives their number per slice, by default the samples.
    """
    among = processes(n)
    if among is None:
        return compute(slice(0, n))
    # nested calls are not distributed: the other processes compute other rows, and would not make the same calls
    token = _PROCESSES.set(None)
    try:
        local_rows = compute(among.rows_of_rank(n)).movedim(dim, 0).contiguous()
    finally:
        _PROCESSES.reset(token)
    ranges = [Processes(rank, among.size).rows_of_rank(n) for rank in range(among.size)]
    sizes = [rows.stop - rows.start if length is None else length(rows) for rows in ranges]
    # all_gather needs tensors of one shape
    longest = max(sizes)
    padded = torch.cat(
        [local_rows, local_rows.new_zeros(longest - len(local_rows), *local_rows.shape[1:])]
    )
    parts = [torch.empty_like(padded) for _ in range(among.size)]
    torch.distributed.all_gather(parts, padded, group=among.group)
    rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(rows).movedim(0, dim)
