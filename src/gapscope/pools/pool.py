"""Pool: a folder of records, filled by running grids and read as a table."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
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
from gapscope.pools.batches import run_batches
from gapscope.pools.engines import chosen_engine
from gapscope.pools.index import INDEX, IndexedRecords, load_index, misnamed, unreadable_warning
from gapscope.pools.mirror import Mirror
from gapscope.results.readings import SCHEMA
from gapscope.results.records import RECORD, Record

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem


MARKER = "pool.json"
SECONDS_TO_WRITE = 60


def _is_temporary(name: str) -> bool:
    return re.fullmatch(r"\.(pool|index)\.json\..*\.tmp", name) is not None


def _is_unmarked_pool(folder: Path) -> bool:
    """Return True for an empty folder, or a pool whose run was killed before pool.json."""
    known = ("runs", "pool.lock", "pool.pid", INDEX, "report.html", "estimator.json")
    return folder.is_dir() and all(path.name in known or _is_temporary(path.name) for path in folder.iterdir())


@dataclass(frozen=True)
class PoolStatus:
    """Number of specs of a grid by state."""

    finished: int = 0
    diverged: int = 0
    failed: int = 0
    started: int = 0
    waiting: int = 0
    unreadable: int = 0

    @property
    def total(self) -> int:
        """Number of specs."""
        return sum(astuple(self))


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
        marker = self.folder / MARKER
        if marker.exists():
            content = read_json(marker)
            schema = content.get("schema") if isinstance(content, dict) else None
            if not isinstance(schema, int):
                raise DamagedFile(
                    f"{marker} must name the schema of the pool; it is damaged. Delete it; the next run recreates it."
                )
            if schema > SCHEMA:
                raise UnreadableFile(
                    f"{self.folder} must be a pool of schema {SCHEMA} or older; got {schema}, written by a newer "
                    "gapscope. Upgrade gapscope, or use another folder."
                )
        elif self.folder.exists() and not _is_unmarked_pool(self.folder):
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
        """All records that can be read, sorted by id (one `DamagedFileWarning` about the others)."""
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
        """Return the records as a table from the index, reading only new and changed files."""
        index = load_index(self.folder)
        index.warn(self.folder, stacklevel=2)
        return index

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per network (see `records_to_pandas`), for large pools from the index."""
        return self.index().table()

    def status(self, specs: Iterable[RunSpec]) -> PoolStatus:
        """Count the runs of `specs` by state."""
        index, counts = load_index(self.folder), Counter[str]()
        for spec in specs:
            state = "unreadable" if spec.id in index.unreadable else index.status_of.get(spec.id)
            if state is None:
                state = "started" if (self.run_folder(spec.id) / "checkpoint.safetensors").exists() else "waiting"
            counts[state] += 1
        return PoolStatus(**counts)

    def missing(
        self, specs: Iterable[RunSpec], *, measures: Sequence[str] | None = None, retry_failed: bool = False
    ) -> list[RunSpec]:
        """Return specs without a record, with missing measures, or (on request) with a failure.

        A damaged record is none; one that cannot be read for another reason (permissions, a newer gapscope) is left
        alone.
        """
        index, names = load_index(self.folder), frozenset(measures or ())

        def is_missing(key: str) -> bool:
            if key in index.unreadable:
                return key in index.damaged
            status = index.status_of.get(key)
            if status is None or (status == "failed" and retry_failed):
                return True
            return status == "finished" and not names <= index.tried[key]

        return [spec for spec in specs if is_missing(spec.id)]

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
                copied to, and fetched from if they are not here: then machines need not share the pool's folder.
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
            One record per spec, in the order of the grid.

        Raises:
            InvalidInput: A setting of the grid is unknown, before anything is trained.
            GapscopeError: Another process runs the pool, a record cannot be written, or (when all others are done)
                networks could not be run because data or device are absent; the same call tries them again.
        """
        from gapscope.base.environment import check_device
        from gapscope.pools.readings import RunOptions
        from gapscope.pools.run import check_specs

        check_range("workers", workers, 1)
        check_range("stack", stack, 1)
        run_jobs = chosen_engine(engine, address, gpus)
        copies = None if mirror is None else Mirror(mirror)
        measures = measures if measures is not None else getattr(grid, "measures", None)
        specs = list(grid)
        data_root = data_root if data_root is not None else os.environ.get("GAPSCOPE_DATA") or None
        options = RunOptions(
            measures=None if measures is None else tuple(measures),
            measure_options=dict(measure_options or {}),
            measure_samples=measure_samples,
            # workers may have another working folder
            data_root=None if data_root is None else str(Path(data_root).expanduser().absolute()),
            device=device,
            on_epoch=on_epoch,
        )
        check_specs(specs, options)
        if engine == "local":
            check_device(device)
        if copies is not None:
            self._fetch(copies, specs)
        if missing := self.missing(specs, measures=options.measures, retry_failed=retry_failed):
            self._make()
            folders = {spec.id: self.run_folder(spec.id).absolute() for spec in missing}
            with self._locked():
                outcomes = run_batches(missing, folders, options, run_jobs, workers, stack, copies)
                self._announce(outcomes, copies, on_record or (lambda record: None))
            load_index(self.folder)  # so that whoever asks next need not open every file
        self._remove_superseded()
        return [record for spec in specs if (record := self._readable(spec.id)) is not None]

    def add(self, network: Record | nn.Module, data: Any = None, **about: Any) -> Record:
        """Add a network trained elsewhere, and return its record.

        Args:
            network: A record (from `gapscope.record`), or the network itself.
            data: Training data of the network; not for a record.
            **about: What `gapscope.record` takes: test data, name, ...
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
        marker = self.folder / MARKER
        if not marker.exists():
            write_atomically(marker, to_json({"schema": SCHEMA}) + "\n")
        for path in self.folder.iterdir():  # of processes that were killed, not those being written
            if _is_temporary(path.name) and time.time() - path.stat().st_mtime > SECONDS_TO_WRITE:
                path.unlink(missing_ok=True)

    def _fetch(self, copies: Mirror, specs: Sequence[RunSpec]) -> None:
        """Fetch what is finished there and not here."""
        there = copies.known()
        absent = [spec.id for spec in specs if spec.id in there and not (self.run_folder(spec.id) / RECORD).exists()]
        if absent:
            self._make()
        for spec_id in absent:
            copies.get(spec_id, self.run_folder(spec_id))

    def _announce(
        self,
        outcomes: Iterator[tuple[RunSpec, Record | Exception]],
        copies: Mirror | None,
        on_record: Callable[[Record], None],
    ) -> None:
        """Yield each record as it is finished, and raise machine faults at the end."""
        not_run: list[GapscopeError] = []
        n_missing = 0
        for spec, outcome in outcomes:
            n_missing += 1
            if isinstance(outcome, WorkerDied):
                message = "the worker process died twice on this network alone (killed, perhaps for lack of memory)"
                on_record(self.add(Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message)))
            elif isinstance(outcome, GapscopeError) and not isinstance(outcome, NotWritten):
                not_run.append(outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self._check_arrived(spec.id, copies)
                on_record(outcome)
        if not_run:
            raise type(not_run[0])(
                f"{not_run[0]} ({len(not_run)} of {n_missing} networks were not run for such reasons. Nothing is "
                "recorded of them; the same command tries them again.)"
            )

    def _check_arrived(self, spec_id: str, copies: Mirror | None) -> None:
        """Raise unless the record that a worker wrote is in this folder, or in the mirror."""
        folder = self.run_folder(spec_id)
        if (folder / RECORD).exists() or (copies is not None and copies.get(spec_id, folder)):
            return
        raise GapscopeError(
            f"{self.folder} must be one folder for all machines that run it; the record of {spec_id} was "
            "written, but it is not here. Use a folder that they share, or `mirror` at an address that all reach."
        )

    def _remove_superseded(self) -> None:
        """Remove checkpoints of finished networks, unless the pool is read-only."""
        superseded: list[Path] = []
        for path in sorted(self.folder.glob("runs/*/checkpoint.safetensors")):
            with suppress(UnreadableFile):
                if (path.parent / RECORD).exists() and Record.read(path.parent).status != "failed":
                    superseded.append(path)
        if superseded:
            with suppress(GapscopeError, OSError), self._locked():
                for path in superseded:
                    path.unlink(missing_ok=True)

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
    """Open a pool that exists (else InvalidInput)."""
    folder = Path(folder)
    if not (folder / MARKER).exists() and not (_is_unmarked_pool(folder) and (folder / "runs").is_dir()):
        raise InvalidInput(f"{folder} must be a pool folder; it holds no pool.json. Make one with: gapscope pool run.")
    return Pool(folder)
