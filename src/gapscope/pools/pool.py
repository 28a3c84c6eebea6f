"""A pool: a folder of records, filled by running grids and read as a table (torch is loaded only to run)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import GapscopeError, InvalidInput, UnreadableFile, WorkerDied, check_choice, check_range
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope.base.records import SCHEMA, Record, records_to_pandas
from gapscope.base.specs import Spec

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem
    from gapscope.pools.readings import RunOptions

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class PoolStatus:
    """How far the runs of a grid are: counts of specs by state."""

    finished: int
    diverged: int
    failed: int
    started: int
    waiting: int

    @property
    def total(self) -> int:
        """Number of specs."""
        return self.finished + self.diverged + self.failed + self.started + self.waiting


def _run_job(job: tuple[Spec, Path, RunOptions]) -> Record:
    from gapscope.pools.run import run

    return run(*job)


def _dead_worker_record(spec: Spec, folder: Path) -> Record:
    record = Record(
        id=spec.id,
        spec=spec.to_dict(),
        status="failed",
        message="the worker process died twice on this network alone (killed, perhaps for lack of memory)",
    )
    record.write(folder)
    return record


class Pool:
    """A folder of records, `runs/<id>/record.json` each with its history and weights beside it.

    Finished work is a record that exists: running the same grid again does only what is missing, whatever ended the
    run before. The folder can be copied, joined with another pool's and read without torch.

    Args:
        folder: The pool's folder; made on the first run.

    Raises:
        UnreadableFile: The folder was written by a newer gapscope, or holds something else.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        marker = self.folder / "pool.json"
        if marker.exists():
            schema = read_json(marker).get("schema")
            if not isinstance(schema, int) or schema > SCHEMA:
                raise UnreadableFile(
                    f"{self.folder} must be a pool of schema {SCHEMA} or older; got {schema}, written by a newer "
                    "gapscope. Upgrade gapscope, or use another folder."
                )
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise UnreadableFile(
                f"{self.folder} must be a pool, a new folder or an empty one; it holds other things. Choose another."
            )

    def run_folder(self, spec_id: str) -> Path:
        """Folder of one run."""
        return self.folder / "runs" / spec_id

    def record(self, spec_id: str) -> Record | None:
        """Record of one run, None while there is none."""
        folder = self.run_folder(spec_id)
        return Record.read(folder) if (folder / "record.json").exists() else None

    def records(self) -> list[Record]:
        """All records, sorted by id."""
        return [Record.read(path.parent) for path in sorted(self.folder.glob("runs/*/record.json"))]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def to_pandas(self) -> pandas.DataFrame:
        """One row a network, see `records_to_pandas`."""
        return records_to_pandas(self.records())

    def status(self, specs: Iterable[Spec]) -> PoolStatus:
        """How far the runs of `specs` are."""
        counts = dict.fromkeys(("finished", "diverged", "failed", "started", "waiting"), 0)
        for spec in specs:
            record = self.record(spec.id)
            if record is not None:
                counts[record.status] += 1
            else:
                started = (self.run_folder(spec.id) / "checkpoint.safetensors").exists()
                counts["started" if started else "waiting"] += 1
        return PoolStatus(**counts)

    def missing(
        self, specs: Iterable[Spec], *, measures: Sequence[str] | None = None, retry_failed: bool = False
    ) -> list[Spec]:
        """Specs without a record, with a record that lacks one of `measures`, and (on request) with a failed one."""
        missing = []
        for spec in specs:
            record = self.record(spec.id)
            if (
                record is None
                or (record.status == "failed" and retry_failed)
                or (record.status == "finished" and record.missing_measures(measures or ()))
            ):
                missing.append(spec)
        return missing

    def run(
        self,
        grid: Iterable[Spec],
        *,
        workers: int = 2,
        engine: str = "local",
        measures: Sequence[str] | None = None,
        measure_options: Mapping[str, Mapping[str, Any]] | None = None,
        measure_samples: int | None = None,
        data_root: str | Path | None = None,
        device: str = "cpu",
        retry_failed: bool = False,
        on_record: Callable[[Record], None] | None = None,
        on_epoch: Callable[[nn.Module, Problem, dict[str, Any]], None] | None = None,
    ) -> list[Record]:
        """Train, score and measure what is missing of `grid`, and return the records of all its specs.

        Args:
            grid: A Grid, or any specs.
            workers: Number of processes, one thread each.
            engine: "local" (processes on this machine) or "ray" (an extra).
            measures: Names of measures; None takes the grid's, or all that apply.
            measure_options: Measure name -> its keyword options.
            measure_samples: Number of training samples that are measured; None takes all.
            data_root: Where the data lie; None looks in the usual places.
            device: Torch device of every network.
            retry_failed: Whether to run failed networks again.
            on_record: Called in this process with each record as it is finished.
            on_epoch: Called in the worker after every epoch with the network, its problem and the row of the history,
                which it may extend with numbers; a picklable function of a module.

        Returns:
            One record a spec, in the order of the grid.

        Raises:
            InvalidInput: A setting of the grid is unknown, before anything is trained.
            GapscopeError: The pool is being run by another process, or a record cannot be written.
        """
        from gapscope.pools.readings import RunOptions
        from gapscope.pools.run import check_specs

        check_range("workers", workers, 1)
        check_choice("engine", engine, ENGINES)
        measures = measures if measures is not None else getattr(grid, "measures", None)
        specs = list(grid)
        options = RunOptions(
            measures=None if measures is None else tuple(measures),
            measure_options=dict(measure_options or {}),
            measure_samples=measure_samples,
            data_root=None if data_root is None else str(data_root),
            device=device,
            on_epoch=on_epoch,
        )
        check_specs(specs, options)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            write_atomically(self.folder / "pool.json", to_json({"schema": SCHEMA}) + "\n")
            self._run_missing(specs, options, workers, engine, retry_failed, on_record or (lambda record: None))
        return [record for record in map(self.record, (spec.id for spec in specs)) if record is not None]

    def _run_missing(
        self,
        specs: Sequence[Spec],
        options: RunOptions,
        workers: int,
        engine: str,
        retry_failed: bool,
        on_record: Callable[[Record], None],
    ) -> None:
        missing = self.missing(specs, measures=options.measures, retry_failed=retry_failed)
        jobs = [(spec, self.run_folder(spec.id), options) for spec in missing]
        if engine == "ray":
            from gapscope.pools.ray_engine import run_ray as run_jobs
        else:
            from gapscope.pools.processes import run_local as run_jobs
        for (spec, folder, _), record, error in run_jobs(_run_job, jobs, min(workers, len(jobs)) or 1):
            if error is not None and not isinstance(error, WorkerDied):
                raise error
            on_record(_dead_worker_record(spec, folder) if error is not None else record)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the pool's lock; the system releases it however this process ends."""
        try:
            import fcntl
        except ImportError:  # no such lock on this system: two runs of one pool are then the user's care
            yield
            return
        with (self.folder / "pool.lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                raise GapscopeError(
                    f"{self.folder} must be run by one process at a time; process {file.read().strip() or '?'} is "
                    "running it. Wait for it, or use another folder."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def open_pool(folder: str | Path) -> Pool:
    """Open a pool that exists.

    Args:
        folder: Its folder.

    Returns:
        The pool.

    Raises:
        InvalidInput: There is no pool.
    """
    if not (Path(folder) / "pool.json").exists():
        raise InvalidInput(f"{folder} must be a pool folder; it holds no pool.json. Make one with: gapscope pool run.")
    return Pool(folder)
