"""Progress of a grid and its missing runs, from the pool's index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gapscope.base.specs import RunSpec
from gapscope.pools.index import load_index


@dataclass(frozen=True)
class PoolStatus:
    """Number of specs of a grid by state."""

    finished: int
    diverged: int
    failed: int
    started: int
    waiting: int
    unreadable: int = 0

    @property
    def total(self) -> int:
        """Number of specs."""
        return self.finished + self.diverged + self.failed + self.started + self.waiting + self.unreadable


def pool_status(folder: Path, specs: Iterable[RunSpec]) -> PoolStatus:
    """Count the runs of `specs` in a pool's folder by state."""
    found = load_index(folder)
    counts: dict[str, int] = dict.fromkeys(("finished", "diverged", "failed", "started", "waiting", "unreadable"), 0)
    for spec in specs:
        state = "unreadable" if spec.id in found.unreadable else found.status_of.get(spec.id)
        if state is None:
            started = (folder / "runs" / spec.id / "checkpoint.safetensors").exists()
            state = "started" if started else "waiting"
        counts[state] += 1
    return PoolStatus(**counts)


def missing_specs(
    folder: Path, specs: Iterable[RunSpec], *, measures: Sequence[str], retry_failed: bool
) -> list[RunSpec]:
    """Those of the specs that a run would work on, see `Pool.missing`."""
    found, wanted = load_index(folder), frozenset(measures)

    def needed(spec_id: str) -> bool:
        if spec_id in found.unreadable:
            return spec_id in found.damaged
        status = found.status_of.get(spec_id)
        if status is None or (status == "failed" and retry_failed):
            return True
        return status == "finished" and not wanted <= found.tried[spec_id]

    return [spec for spec in specs if needed(spec.id)]
