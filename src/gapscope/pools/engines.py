"""Engines that run a pool: local processes or a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gapscope.base.errors import InvalidInput, check_choice, check_range

ENGINES = ("local", "ray")
# (function, jobs, workers) -> (job, what the function returned, what it raised) as they end
Engine = Callable[..., Iterator[tuple[Any, Any, BaseException | None]]]


def chosen_engine(engine: str, address: str | None = None, gpus: float = 0.0) -> Engine:
    """Engine that runs a function on many jobs (see `Pool.run` for the arguments).

    Args:
        engine: "local" or "ray".
        address: Of a running Ray cluster.
        gpus: GPUs of each job on a Ray cluster.

    Returns:
        `run_local` or `run_ray` with its settings.

    Raises:
        InvalidInput: There is no such engine, or the settings are not of this one.
    """
    check_choice("engine", engine, ENGINES)
    check_range("gpus", gpus, 0)
    if gpus > 1 and gpus != int(gpus):
        raise InvalidInput(
            f"gpus must be a fraction up to 1, or whole; got {gpus:g}. Use {int(gpus)} or {int(gpus) + 1}."
        )
    if engine == "ray":
        from gapscope.pools.ray_engine import run_ray

        return partial(run_ray, address=address, gpus=gpus)
    if address is not None or gpus:
        raise InvalidInput(
            "address and gpus must go with a Ray cluster; got them with engine 'local'. Add engine='ray'."
        )
    from gapscope.pools.processes import run_local

    return run_local
