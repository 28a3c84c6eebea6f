"""Sinks for a monitor's numbers: training continues if a tracker fails."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping

from torch import nn

from gapscope.inspection.outputs import inspection_mode

Sink = Callable[[int, Mapping[str, float]], None]
# an unreachable tracker may block each call until its own time-out
MAX_FAILURES = 3


class GuardedSink:
    """Sink that warns once instead of raising, and stops after `MAX_FAILURES` failures in a row."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.failures = 0
        self.warned = False

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Pass the numbers to the sink."""
        if self.failures >= MAX_FAILURES:
            return
        try:
            # random states and modes that a tracker changes are restored
            with inspection_mode(nn.Identity()):
                self.sink(epoch, numbers)
            self.failures = 0
        except Exception as error:  # no error of a tracker may end training
            self.failures += 1
            if not self.warned:
                self.warned = True
                warn_or_print(
                    f"{type(self.sink).__name__} failed on the readings of epoch {epoch} ({type(error).__name__}: "
                    f"{error}). Training continues and the monitor keeps the readings; this warning appears once."
                )


def warn_or_print(text: str) -> None:
    """Warn, or write to standard error if warnings are errors."""
    try:
        warnings.warn(text, stacklevel=4)
    except Warning:
        print(text, file=sys.stderr)
