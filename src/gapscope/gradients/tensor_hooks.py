"""Notice of hooks that code in a pass registers at tensors: they may change derivatives, and no graph shows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


class _Watch:
    """`Tensor.register_hook`, replaced while any thread watches; each thread is told of its own hooks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._register = Tensor.register_hook
        self._watching = 0
        self._local = threading.local()

    @property
    def _callbacks(self) -> list[Callable[[], None]]:
        return self._local.__dict__.setdefault("callbacks", [])

    def start(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        with self._lock:
            self._watching += 1
            if self._watching == 1:
                self._register = Tensor.register_hook
                Tensor.register_hook = self._noted()  # type: ignore[method-assign]

    def stop(self, callback: Callable[[], None]) -> None:
        self._callbacks.remove(callback)
        with self._lock:
            self._watching -= 1
            if not self._watching:
                Tensor.register_hook = self._register  # type: ignore[method-assign]

    def _noted(self) -> Callable[[Tensor, Callable[..., Any]], Any]:
        register = self._register

        def noted(tensor: Tensor, hook: Callable[..., Any]) -> Any:
            for callback in self._callbacks:
                callback()
            return register(tensor, hook)

        return noted


_WATCH = _Watch()


@contextmanager
def on_tensor_hook(callback: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever this thread registers a hook of a tensor in the body.

    Args:
        callback: Function without arguments.
    """
    _WATCH.start(callback)
    try:
        yield
    finally:
        _WATCH.stop(callback)
