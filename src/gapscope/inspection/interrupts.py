"""Interrupts (Ctrl-C, timeouts by a signal) that wait until contexts have been entered or left.

Python runs the handler of a signal between any two instructions, also between those that restore a network. Within
`postponed_interrupts` an interrupt takes effect as usual, but not while a context is being entered or left, nor in a
callback in which Python would drop the exception: there it is sent again a moment later.
"""

from __future__ import annotations

import signal
import threading
import time
import weakref
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

# Python drops exceptions in "cb", with which `importlib` drops the lock of a module, and in `copyreg._slotnames`.
_UNINTERRUPTED = frozenset(
    {"__enter__", "__exit__", "enter_context", "__del__", "cb", "_slotnames"}
)
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)
]
# An interrupt is sent again after this time, and postponed for at most the second: a context may wait for a lock.
_RETRY_SECONDS, _MOST_SECONDS = 0.002, 5.0

Handler = Callable[[int, FrameType | None], Any]


def _must_wait(frame: FrameType | None) -> bool:
    """Return whether the code of a frame, or of a caller, must not be interrupted."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in _UNINTERRUPTED or code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def _send(number: int) -> None:
    if hasattr(signal, "pthread_kill"):
        # unlike `interrupt_main` this wakes a main thread that waits for a lock
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        interrupt_main(signal.Signals(number))


class _Interrupts:
    """Handlers of one outermost body, and the interrupt that waits.

    A waiting interrupt is sent again until it may take effect, but never twice at a time: `_is_sent` is True from the
    sending of a signal until its handler runs. A signal that arrives when none waits any more is ignored.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # handlers run in the thread that may hold it
        self._handlers: dict[int, Handler] = {}
        self._waiting: int | None = None  # the number of a signal
        self._is_sent = False
        self._since = 0.0

    def install(self) -> None:
        """Take the place of all handlers that are Python functions."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restore the handlers, and call that of an interrupt which still waits."""
        number = None
        try:
            number = self._take()  # nothing is sent from here on
            self._await_sent()
            self._restore()
            number = self._take() or number
        finally:
            # again, where a handler that was restored first has raised
            self._restore()
            self._waiting = None
        if number is not None:
            self._handlers[number](number, None)

    def _await_sent(self) -> None:
        """Wait for the handler of a signal that was sent: the restored handler would take it for a new interrupt."""
        deadline = time.monotonic() + _MOST_SECONDS
        while self._is_sent and time.monotonic() < deadline:
            time.sleep(_RETRY_SECONDS / 10)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)

    def _take(self) -> int | None:
        """Return the signal that waits, which then does not wait any more."""
        with self._lock:
            number = self._waiting
            self._waiting = None
        return number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        with self._lock:
            was_sent = self._is_sent
            self._is_sent = False
            if was_sent and self._waiting is None:
                return
            self._since = self._since or now
            if _must_wait(frame) and now - self._since <= _MOST_SECONDS:
                if self._waiting is None:
                    self._waiting = number
                    start_new_thread(self._send_again, ())
                return
            self._waiting = None
            self._since = 0.0
        self._handlers[number](number, frame)

    def _send_again(self) -> None:
        while True:
            time.sleep(_RETRY_SECONDS)
            with self._lock:
                if self._waiting is None:
                    return
                if not self._is_sent:
                    self._is_sent = True
                    _send(self._waiting)


_MAY_BE_PARTIAL: ContextVar[bool] = ContextVar("results may be partial", default=True)


@contextmanager
def whole_results() -> Iterator[None]:
    """Let functions in the body raise interrupts, instead of returning what is finished (see `may_be_partial`)."""
    token = _MAY_BE_PARTIAL.set(False)
    try:
        yield
    finally:
        _MAY_BE_PARTIAL.reset(token)


def may_be_partial() -> bool:
    """Return whether an interrupted function may return what is finished: its caller is the user."""
    return _MAY_BE_PARTIAL.get()


_is_postponing = False


@contextmanager
def postponed_interrupts() -> Iterator[None]:
    """Let interrupts in the body wait while contexts are entered and left.

    This concerns signals with a Python handler, and the main thread alone: Python runs handlers there. A nested body
    belongs to the outermost one.
    """
    global _is_postponing
    if _is_postponing or threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = _Interrupts()
    try:
        interrupts.install()
        _is_postponing = True
        yield
    finally:
        _is_postponing = False
        interrupts.remove()
