"""A clock that only continues when it is told: tests of costs do not depend on how busy the machine is."""

from __future__ import annotations


class Clock:
    """Stands in for the module `time`.

    Attributes:
        now: The time, in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now
