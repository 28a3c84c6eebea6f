"""Threads: what gapscope locks, and what it leaves to the caller.

Measuring changes a network for the time: modes, hooks, gradients, forward methods. Everything is restored.

- **One network in several threads.** Whatever changes a network holds its lock (`network_lock`), so that measures and
  penalties of the same network run one after the other. Your own calls of a network that another thread measures are
  not locked: they may run in evaluation mode. Measure `copy.deepcopy(network)` instead.
- **Other networks in other threads** are not affected. While a forward pass is traced, torch.fx replaces
  `nn.Module.__call__` for the whole process; calls from other threads are passed through, and tracing holds a lock.
- **Settings of torch for the whole process** (kernels of attention and recurrent layers, deterministic convolutions,
  eager execution of compiled code) are changed when the first thread needs them and restored after the last
  (`SharedContext`). Other threads meanwhile compute the same numbers, possibly more slowly.
- **Global random streams.** Bodies that seed them (an epoch of `train`, drawing initial weights) hold one lock,
  `RANDOM_STREAMS`, and restore them: epochs of several threads run one after the other, so that a seed gives the same
  weights as ever. Use processes, as pools do, to train in parallel. A measure restores the streams only if it has
  used them itself, or if there is no other thread, so that random numbers of other threads do not repeat.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class FairLock:
    """Reentrant lock, granted in order of request."""

    def __init__(self) -> None:
        self._guard, self._owner, self._depth = threading.Lock(), 0, 0
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
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

    def __exit__(self, *error: object) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth == 0:
                self._pass_on()

    def _pass_on(self) -> None:
        # not 0 while a thread is on its way: no other may take its turn
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
    owned = getattr(network, "adapted_from", network)
    with _GUARD:
        lock = _NETWORK_LOCKS.get(owned)
        if lock is None:
            lock = _NETWORK_LOCKS[owned] = FairLock()
    with lock:
        yield


def is_only_thread() -> bool:
    """Return whether no other Python thread is alive that may use random numbers."""
    return threading.active_count() == 1


class SharedContext:
    """Context shared by threads: entered by the first and left by the last.

    `make` returns the context, which changes a setting of the whole process and restores it.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._count, self._stack = make, threading.Lock(), 0, ExitStack()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the body within the context."""
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
