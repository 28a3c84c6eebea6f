"""An engine of pools without processes: the same records, without seconds for the start of each worker."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any


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
