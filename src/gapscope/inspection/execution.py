"""Threads and processes: locks, shared contexts, and division of samples among processes."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gapscope.base.errors import InvalidInput
from gapscope.inspection.interrupts import postponed_interrupts


class FairLock:
    """Reentrant lock, granted in order of request. Interrupts wait while it is taken or released."""

    def __init__(self) -> None:
        self._guard, self._owner, self._depth = threading.Lock(), 0, 0
        self._waiting: deque[threading.Event] = deque()
        self._postponed: list[AbstractContextManager[None]] = []  # one per depth, of the owner

    def __enter__(self) -> None:
        postponed = postponed_interrupts()
        postponed.__enter__()
        try:
            self._acquire()
        except BaseException as error:
            postponed.__exit__(type(error), error, error.__traceback__)
            raise
        self._postponed.append(postponed)

    def __exit__(self, *error: object) -> None:
        postponed = self._postponed.pop()
        with self._guard:
            self._depth -= 1
            if self._depth == 0:
                self._pass_on()
        postponed.__exit__(None, None, None)

    def _acquire(self) -> None:
        thread = threading.get_ident()
        with self._guard:
            if self._owner in (0, thread):
                self._owner, self._depth = thread, self._depth + 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:  # interrupted while it waited
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._pass_on()
            raise
        self._owner, self._depth = thread, 1

    def _pass_on(self) -> None:
        # -1 until the next thread runs, so that no third one overtakes it
        self._owner = -1 if self._waiting else 0
        if self._waiting:
            self._waiting.popleft().set()


_NETWORK_LOCKS: weakref.WeakKeyDictionary[nn.Module, FairLock] = weakref.WeakKeyDictionary()
_GUARD = threading.Lock()
RANDOM_STREAMS = FairLock()
"""Lock of bodies that seed the global random streams."""


@contextmanager
def network_lock(network: nn.Module) -> Iterator[None]:
    """Hold the lock of a network in the body (an adapter has that of its network)."""
    network = getattr(network, "adapted_from", network)
    with postponed_interrupts():
        with _GUARD:
            lock = _NETWORK_LOCKS.setdefault(network, FairLock())
        with lock:
            yield


def is_only_thread() -> bool:
    """Return whether no other Python thread is alive that may use random numbers."""
    return threading.active_count() == 1


class SharedContext:
    """Context shared by threads: entered by the first and exited by the last.

    `make` returns the context, which changes a setting of the process and restores it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._count, self._stack = make, threading.Lock(), 0, ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the body within the context."""
        with postponed_interrupts():
            with self._lock:
                if self._count == 0:
                    self._stack.enter_context(self._make())
                self._count += 1
            try:
                yield
            finally:
                with self._lock:
                    self._count -= 1
                    if self._count == 0:
                        self._stack.close()


_DRAWING = frozenset({
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli",
    "multinomial", "poisson", "binomial", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_",
    "cauchy_", "log_normal_", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d",
})  # fmt: skip
# position and default of the argument that makes a function random: training, or the probability
_SWITCHED = {
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
                     "feature_dropout", "dropout_"), ("training", 2, True)),
    "rrelu": ("training", 3, False),
    "scaled_dot_product_attention": ("dropout_p", 4, 0.0),
    "multi_head_attention_forward": ("training", 13, True),
}  # fmt: skip


def _draws(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call of a torch function uses the global random stream."""
    name = getattr(func, "__name__", "")
    if name in _DRAWING:
        return kwargs.get("generator") is None
    if name not in _SWITCHED:
        return False
    keyword, position, default = _SWITCHED[name]
    return bool(kwargs.get(keyword, args[position] if len(args) > position else default))


class DrawWatch(TorchFunctionMode):
    """Detector of torch functions of this thread that use the global random stream.

    It inspects the calls, not the stream, which other threads may use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_drawn = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        self.has_drawn = self.has_drawn or _draws(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


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
    return None if members is None or n < members.size else members


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
    members = Processes(torch.distributed.get_rank(group), size, group) if size > 1 else None
    token = _PROCESSES.set(members)
    try:
        yield
    finally:
        _PROCESSES.reset(token)


def compute_distributed(
    n: int, compute: Callable[[slice], Tensor], *, dim: int = 0, length: Callable[[slice], int] | None = None
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
    padded = torch.cat([local_rows, local_rows.new_zeros(longest - len(local_rows), *local_rows.shape[1:])])
    parts = [torch.empty_like(padded) for _ in range(among.size)]
    torch.distributed.all_gather(parts, padded, group=among.group)
    rows = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    return torch.cat(rows).movedim(0, dim)
