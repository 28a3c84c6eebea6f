"""Samples divided over the processes of a job that measure one network together, and what they found put together.

Within `over_processes` the passes of the measures are divided: each process runs a stretch of the samples (or blocks of
a kernel), and all get everything. The network and the data are the same in every process; sums are taken over the
whole, as by one process, so that the numbers differ by the rounding of another batch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gapscope.base.errors import InvalidInput


@dataclass(frozen=True)
class Processes:
    """The processes among which samples are divided.

    Attributes:
        rank: Number of this one.
        size: How many there are.
        group: Their group; None for all.
    """

    rank: int
    size: int
    group: Any = None

    def own(self, n: int) -> slice:
        """The stretch of n rows that this process computes, as long as any other up to one; may be empty."""
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def all_min(self, number: int) -> int:
        """The smallest of a number that every process has: of chunk sizes by free memory, one that all can use."""
        value = torch.tensor(number)
        torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MIN, self.group)
        return int(value)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over processes, in place."""
        torch.distributed.all_reduce(values, group=self.group)
        return values


_PROCESSES: ContextVar[Processes | None] = ContextVar("processes", default=None)


def processes_joined() -> bool:
    """Whether several processes measure together."""
    return _PROCESSES.get() is not None


def processes(n: int) -> Processes | None:
    """The processes that divide n rows among them; None outside `over_processes`, and for fewer rows than processes."""
    found = _PROCESSES.get()
    return None if found is None or n < found.size else found


@contextmanager
def distribute_over(group: Any = None) -> Iterator[None]:
    """Within it measures divide their passes among the processes of the group, which all must make the same calls.

    Args:
        group: A process group of torch.distributed; None for all processes.

    Yields:
        Nothing.

    Raises:
        InvalidInput: There are no processes that could meet.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InvalidInput(
            "Processes must have met, torch.distributed.init_process_group(), to measure together; they have not. "
            "Start with torchrun, or measure without over_processes."
        )
    size = torch.distributed.get_world_size(group)
    found = Processes(torch.distributed.get_rank(group), size, group) if size > 1 else None
    token = _PROCESSES.set(found)
    try:
        yield
    finally:
        _PROCESSES.reset(token)


def _as_many(stretch: slice) -> int:
    return stretch.stop - stretch.start


def compute_distributed(
    n: int, compute: Callable[[slice], Tensor], *, dim: int = 0, length: Callable[[slice], int] = _as_many
) -> Tensor:
    """Return what `compute` gives for samples 0 to n, each process computing a stretch of them.

    Args:
        n: Number of samples.
        compute: Rows of a stretch, which is not empty.
        dim: Dimension of the result in which the rows lie.
        length: Number of rows of a stretch; as many as it has samples.

    Returns:
        All rows, the same in every process.
    """
    among = processes(n)
    if among is None:
        return compute(slice(0, n))
    # what a process is alone with may ask for no others: they are in another place of the same call
    token = _PROCESSES.set(None)
    try:
        own = compute(among.own(n)).movedim(dim, 0).contiguous()
    finally:
        _PROCESSES.reset(token)
    sizes = [length(Processes(rank, among.size).own(n)) for rank in range(among.size)]
    longest = max(sizes)
    padded = torch.cat([own, own.new_zeros(longest - len(own), *own.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(among.size)]
    torch.distributed.all_gather(parts, padded, group=among.group)
    rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(rows).movedim(0, dim)
