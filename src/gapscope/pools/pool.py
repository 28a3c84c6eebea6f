"""Pool: a folder of records, filled by running grids and read as a table."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import (
    DamagedFile,
    DamagedFileWarning,
    GapscopeError,
    InvalidInput,
    NotWritten,
    UnreadableFile,
    WorkerDied,
    check_range,
)
from gapscope.base.files import make_folder, read_json, to_json, write_atomically
from gapscope.base.specs import RunSpec
from gapscope.pools.batches import Batch, dead_worker_record, group_specs, run_batch
from gapscope.pools.cleanup import is_unmarked_pool, remove_temporary_files, superseded_checkpoints
from gapscope.pools.engines import Engine, chosen_engine
from gapscope.pools.index import IndexedRecords, load_index, misnamed, unreadable_warning
from gapscope.pools.mirror import Mirror, run_and_copy
from gapscope.pools.status import PoolStatus, missing_specs, pool_status
from gapscope.results.readings import SCHEMA
from gapscope.results.records import RECORD, Record

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem
    from gapscope.pools.readings import RunOptions


def _absolute(path: str | Path | None) -> str | None:
    """Return an absolute path (None stays None)."""
    return None if path is None else str(Path(path).expanduser().absolute())


class Pool:
    """Folder of records `runs/<id>/record.json`, with histories and weights.

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
            content = read_json(marker)
            schema = content.get("schema") if isinstance(content, dict) else None
            if not isinstance(schema, int):
                raise DamagedFile(f"{marker} must name the schema of the pool; it is damaged. Delete it; the next run "
                                  "recreates it.")  # fmt: skip
            if schema > SCHEMA:
                raise UnreadableFile(
                    f"{self.folder} must be a pool of schema {SCHEMA} or older; got {schema}, written by a newer "
                    "gapscope. Upgrade gapscope, or use another folder."
                )
        elif self.folder.exists() and not is_unmarked_pool(self.folder):
            raise UnreadableFile(
                f"{self.folder} must be a pool, a new folder or an empty one; it contains other files. Choose another."
            )

    def run_folder(self, spec_id: str) -> Path:
        """Folder of one run."""
        return self.folder / "runs" / spec_id

    def get_record(self, spec_id: str) -> Record | None:
        """Record of one run, None while there is none."""
        folder = self.run_folder(spec_id)
        return Record.read(folder) if (folder / RECORD).exists() else None

    def records(self) -> list[Record]:
        """All records that can be read, sorted by id.

        Returns:
            The records. Of the others one warning (a `DamagedFileWarning`) says how many there are and what is wrong
            with the first.
        """
        records, wrong = [], []
        for path in sorted(self.folder.glob("runs/*/record.json")):
            try:
                record = Record.read(path.parent)
                if record.id == path.parent.name:
                    records.append(record)
                else:
                    wrong.append(misnamed(path.parent, record))
            except UnreadableFile as error:
                wrong.append(str(error))
        if wrong:
            first = unreadable_warning(len(wrong), len(records) + len(wrong), self.folder, wrong[0])
            warnings.warn(first, DamagedFileWarning, stacklevel=2)
        return records

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __len__(self) -> int:
        """Number of runs that have a record, or are under way."""
        try:
            return len(os.listdir(self.folder / "runs"))  # noqa: PTH208 - many times as fast as a Path's for many runs
        except OSError:
            return 0

    def __repr__(self) -> str:
        return f"Pool({str(self.folder)!r}, {len(self)} networks)"

    def index(self) -> IndexedRecords:
        """Return the records as columns from the index, reading only new and changed files.

        Returns:
            One row per record; warnings (`DamagedFileWarning`) say what was left out and why.
        """
        found = load_index(self.folder)
        found.warn(self.folder, stacklevel=2)
        return found

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per network (see `records_to_pandas`), for large pools from the index."""
        return self.index().table()

    def status(self, specs: Iterable[RunSpec]) -> PoolStatus:
        """Count the runs of `specs` by state."""
        return pool_status(self.folder, specs)

    def missing(
        self, specs: Iterable[RunSpec], *, measures: Sequence[str] | None = None, retry_failed: bool = False
    ) -> list[RunSpec]:
        """Return specs without a record, with missing measures, or (on request) with a failure.

        A damaged record is none; one that cannot be read for another reason (permissions, a newer gapscope) is left
        alone.

        Args:
            specs: The specs.
            measures: Names of measures.
            retry_failed: Whether failed networks count.

        Returns:
            Those of the specs that a run would work on.
        """
        return missing_specs(self.folder, specs, measures=measures or (), retry_failed=retry_failed)

    def run(
        self,
        grid: Iterable[RunSpec],
        *,
        workers: int = 2,
        stack: int = 1,
        engine: str = "local",
        address: str | None = None,
        gpus: float = 0.0,
        mirror: str | None = None,
        measures: Sequence[str] | None = None,
        measure_options: Mapping[str, Mapping[str, Any]] | None = None,
        measure_samples: int | None = None,
        data_root: str | Path | None = None,
        device: str = "cpu",
        retry_failed: bool = False,
        on_record: Callable[[Record], None] | None = None,
        on_epoch: Callable[[nn.Module, Problem, dict[str, Any]], None] | None = None,
    ) -> list[Record]:
        """Train, score and measure what is missing of `grid`, and return all its records.

        Args:
            grid: A Grid, or any specs.
            workers: Number of processes, one thread each.
            stack: Networks that a worker trains together, at most. Above 1 those of one architecture are trained in
                one stack (see `train_together`) where a short timing says that it is faster: small networks, small
                batches. Records have the same form; their numbers differ by rounding, which may depend on the timing.
            engine: "local" (processes on this machine) or "ray" (an extra), over all machines of a cluster.
            address: Of a running Ray cluster; None uses the one that RAY_ADDRESS names, that runs here, or one of its
                own.
            gpus: GPUs that each network has to itself on a Ray cluster, with `device="cuda"`; a fraction shares one
                among several networks.
            mirror: Address that every machine reaches and fsspec knows (`"s3://bucket/pool"`), where finished runs are
                copied to, and fetched from if they are not here: then the machines need not share the pool's folder,
                and whoever runs the pool next has all that is finished. None keeps them in the folder alone.
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
            GapscopeError: The pool is being run by another process, a record cannot be written, or (when all others
                are done) networks could not be run on this machine, because data or device are absent; nothing is
                recorded of those, and the same call tries them again.
        """
        from gapscope.base.environment import check_device
        from gapscope.pools.readings import RunOptions
        from gapscope.pools.run import check_specs

        check_range("workers", workers, 1)
        check_range("stack", stack, 1)
        run_jobs = chosen_engine(engine, address, gpus)
        copied = None if mirror is None else Mirror(mirror)
        measures = measures if measures is not None else getattr(grid, "measures", None)
        specs = list(grid)
        options = RunOptions(
            measures=None if measures is None else tuple(measures),
            measure_options=dict(measure_options or {}),
            measure_samples=measure_samples,
            data_root=_absolute(data_root if data_root is not None else os.environ.get("GAPSCOPE_DATA") or None),
            device=device,
            on_epoch=on_epoch,
        )
        check_specs(specs, options)
        if engine == "local":
            check_device(device)
        if copied is not None:
            self._fetch(copied, specs)
        if missing := self.missing(specs, measures=options.measures, retry_failed=retry_failed):
            self._make()
            with self._locked():
                self._run_missing(
                    missing, options, workers, stack, run_jobs, copied, on_record or (lambda record: None)
                )
            load_index(self.folder)  # so that whoever asks next need not open every file
        self._remove_superseded()
        return [record for spec in specs if (record := self._readable(spec.id)) is not None]

    def add(self, network: Record | nn.Module, data: Any = None, **about: Any) -> Record:
        """Add a network trained elsewhere, replacing one of the same name and settings.

        Args:
            network: A record (from `gapscope.record`), or the network itself.
            data: Training data of the network; not for a record.
            **about: What `gapscope.record` takes: test data, name, ...

        Returns:
            The record, as written.
        """
        if not isinstance(network, Record):
            from gapscope.pools.loading import record_network

            network = record_network(network, data, **about)
        self._make()
        folder = self.run_folder(network.id)
        make_folder(folder)
        network.write(folder)
        return network

    def _readable(self, spec_id: str) -> Record | None:
        try:
            return self.get_record(spec_id)
        except UnreadableFile as error:
            warnings.warn(f"{error} Its network is skipped.", DamagedFileWarning, stacklevel=3)
            return None

    def _make(self) -> None:
        make_folder(self.folder / "runs")
        marker = self.folder / "pool.json"
        if not marker.exists():
            write_atomically(marker, to_json({"schema": SCHEMA}) + "\n")
        remove_temporary_files(self.folder)

    def _fetch(self, copied: Mirror, specs: Sequence[RunSpec]) -> None:
        """Fetch what is finished there and not here."""
        there = copied.known()
        absent = [spec.id for spec in specs if spec.id in there and not (self.run_folder(spec.id) / RECORD).exists()]
        if absent:
            self._make()
        for spec_id in absent:
            copied.get(spec_id, self.run_folder(spec_id))

    def _run_missing(
        self,
        missing: Sequence[RunSpec],
        options: RunOptions,
        workers: int,
        stack: int,
        run_jobs: Engine,
        copied: Mirror | None,
        on_record: Callable[[Record], None],
    ) -> None:
        work = run_batch if copied is None else partial(run_and_copy, copied)
        not_run: list[GapscopeError] = []
        waiting = group_specs(missing, stack, workers)
        while waiting:
            jobs: list[Batch] = [
                (specs, [self.run_folder(spec.id).absolute() for spec in specs], options) for specs in waiting
            ]
            killed: list[RunSpec] = []
            for (specs, folders, _), outcomes, error in run_jobs(work, jobs, min(workers, len(jobs))):
                if isinstance(error, WorkerDied) and len(specs) > 1:
                    killed += specs  # each by itself, so that the one which kills its worker is found
                elif isinstance(error, WorkerDied):
                    on_record(dead_worker_record(specs[0], folders[0]))
                elif error is not None:
                    raise error
                else:
                    for spec, (outcome, notes) in zip(specs, outcomes, strict=True):
                        for note in notes:
                            warnings.warn(note, DamagedFileWarning, stacklevel=3)
                        self._announce(spec, outcome, copied, on_record, not_run)
            waiting = [[spec] for spec in self.missing(killed, measures=options.measures)]
        if not_run:
            raise type(not_run[0])(
                f"{not_run[0]} ({len(not_run)} of {len(missing)} networks were not run for such reasons. Nothing is "
                "recorded of them; the same command tries them again.)"
            )

    def _announce(
        self,
        spec: RunSpec,
        outcome: Record | Exception,
        copied: Mirror | None,
        on_record: Callable[[Record], None],
        not_run: list[GapscopeError],
    ) -> None:
        if isinstance(outcome, GapscopeError) and not isinstance(outcome, NotWritten):
            not_run.append(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        elif not (self.run_folder(spec.id) / RECORD).exists() and not (
            copied is not None and copied.get(spec.id, self.run_folder(spec.id))
        ):
            raise GapscopeError(
                f"{self.folder} must be one folder for all machines that run it; the record of {spec.id} was "
                "written, but it is not here. Use a folder that they share, or `copies` at an address that all reach."
            )
        else:
            on_record(outcome)

    def _remove_superseded(self) -> None:
        """Remove checkpoints of finished networks, unless the pool is read-only."""
        if next(superseded_checkpoints(self.folder), None) is not None:
            with suppress(GapscopeError, OSError), self._locked():
                for path in superseded_checkpoints(self.folder):
                    path.unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the pool's lock, which the system releases however the process ends."""
        import filelock

        lock, holder = filelock.FileLock(self.folder / "pool.lock", timeout=0), self.folder / "pool.pid"
        try:
            lock.acquire()
            holder.write_text(str(os.getpid()))
        except filelock.Timeout:
            number = holder.read_text().strip() if holder.exists() else ""
            raise GapscopeError(
                f"{self.folder} must be run by one process at a time; process {number or '?'} is running it. Wait for "
                "it, or use another folder."
            ) from None
        except OSError as error:
            lock.release()
            raise NotWritten(
                f"{self.folder} must be a folder that can be written to run a pool in it; locking it failed "
                f"({error.strerror or error}). Correct its permissions or free some space, then run the same command "
                "again."
            ) from None
        try:
            yield
        finally:
            lock.release()


def open_pool(folder: str | Path) -> Pool:
    """Open a pool that exists.

    Args:
        folder: Its folder.

    Returns:
        The pool.

    Raises:
        InvalidInput: There is no pool.
    """
    folder = Path(folder)
    if not (folder / "pool.json").exists() and not (is_unmarked_pool(folder) and (folder / "runs").is_dir()):
        raise InvalidInput(f"{folder} must be a pool folder; it holds no pool.json. Make one with: gapscope pool run.")
    return Pool(folder)
