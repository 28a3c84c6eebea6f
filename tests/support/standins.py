"""Stand-ins: a clock that tests set, and an engine of pools without processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Clock:
    """Stands in for the module `time`, so that tests of costs do not depend on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += seconds

    def perf_counter(self) -> float:
        """Return the time."""
        return self.now

    def process_time(self) -> float:
        """Return the time, all of it used by this process."""
        return self.now


def in_this_process(
    function: Callable[[Any], Any], jobs: Iterable[Any], workers: int
) -> Iterator[tuple[Any, Any, BaseException | None]]:
    """What `run_local` does, one job after the other; each is sent as to a worker, so that what cannot be is seen."""
    for job in jobs:
        sent, arrived = pickle.loads(pickle.dumps((function, job)))
        try:
            yield job, sent(arrived), None
        except Exception as error:
            yield job, None, error
