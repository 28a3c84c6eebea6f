"""Pool: a folder of records, filled by running grids and read as a table."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import (
    DamagedFile,
    DamagedFileWarning,
    GapscopeError,
    InvalidInput,
    NotWritten,
    UnreadableFile,
    WorkerDied,
    check_range,
    describe_value,
)
from gapscope.base.files import make_folder, read_json, to_json, write_atomically
from gapscope.base.specs import RunSpec
from gapscope.base.type_guards import is_dict
from gapscope.base.user_warnings import warn_user
from gapscope.pools.added import id_without_settings, is_same_network, merge_records
from gapscope.pools.engines import select_engine
from gapscope.pools.index import INDEX, IndexedRecords, load_index
from gapscope.pools.lock import lock_pool
from gapscope.pools.mirror import Mirror
from gapscope.pools.worker import run_missing
from gapscope.results.formatting import pluralize
from gapscope.results.readings import SCHEMA
from gapscope.results.records import RECORD, Record, check_record_id, read_records, read_run

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from gapscope.data import Problem
    from gapscope.pools.grid import Grid


MARKER = "pool.json"


def _is_temporary(name: str) -> bool:
    return re.fullmatch(r"\.(pool|index)\.json\..*\.tmp", name) is not None


def _is_unmarked_pool(folder: Path) -> bool:
    """Return True for an empty folder, or a pool whose run was killed before pool.json."""
    known = ("runs", "pool.lock", "pool.pid", INDEX, "report.html", "estimator.json")
    return folder.is_dir() and all(
        path.name in known or _is_temporary(path.name) for path in folder.iterdir()
    )


@dataclass(frozen=True)
class PoolStatus:
    """Number of specs of a grid by state.

    Attributes:
        finished: Runs that finished training.
        diverged: Runs that ended because a loss was not finite.
        failed: Runs that raised an error.
        started: Runs with a checkpoint and no record: in progress, or interrupted.
        waiting: Specs without a record and a checkpoint.
        unreadable: Runs with a file that is corrupted (the next run trains them again) or cannot be read.
    """

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


def _as_specs(specs: Any, parameter: str) -> list[RunSpec]:
    """Return specs of runs as a list, or raise InvalidInput."""
    wrong = specs
    if isinstance(specs, Iterable):
        listed = list(cast("Iterable[Any]", specs))
        others = [item for item in listed if not isinstance(item, RunSpec)]
        if not others:
            return listed
        wrong = others[0]
    raise InvalidInput(
        f"{parameter} must be a Grid or a list of RunSpecs; got {describe_value(wrong)}. Pass gapscope.Grid(...), or "
        "[spec] for one run."
    )


class Pool:
    """Folder of records `runs/<id>/record.json`, with histories and weights.

    A run is done once its record exists and no file of it is damaged, so running a grid again does only what is
    missing, even after a kill. Pool folders can be copied, merged and read without torch.

    Args:
        folder: Folder of the pool; the first run creates it.

    Raises:
        UnreadableFile: The folder was written by a newer gapscope, or contains other files.
    """

    @check_arguments
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        marker = self.folder / MARKER
        if marker.exists():
            content = read_json(marker, is_recreated=True)
            schema = content.get("schema") if is_dict(content) else None
            if not isinstance(schema, int):
                raise DamagedFile(
                    f"{marker} is corrupted; it must contain the pool's schema. Delete it: the next run recreates it."
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
        """Folder of one run (raises InvalidInput for an id that is no name of a folder).

        Args:
            spec_id: Id of a spec (`RunSpec.id`).
        """
        check_record_id(spec_id)
        return self.folder / "runs" / spec_id

    def get_record(self, spec_id: str) -> Record | None:
        """Return the record of one run, None if there is none.

        Args:
            spec_id: Id of a spec (`RunSpec.id`).
        """
        folder = self.run_folder(spec_id)
        if (folder / RECORD).exists():
            return read_run(folder)
        return None

    def records(self) -> list[Record]:
        """Return all readable records, sorted by id (one `DamagedFileWarning` for the others)."""
        return read_records(self.folder)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __len__(self) -> int:
        """Return the number of runs that are finished or have begun."""
        try:
            return len(os.listdir(self.folder / "runs"))  # noqa: PTH208 - many times as fast as Path.iterdir
        except OSError:
            return 0

    def __repr__(self) -> str:
        return f"Pool({str(self.folder)!r}, {pluralize(len(self), 'network')})"

    def index(self) -> IndexedRecords:
        """Return the records as a table, reading only files that are new or changed."""
        index = load_index(self.folder)
        index.warn(self.folder)
        return index

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per network (see `records_to_pandas`), from the index."""
        return self.index().table()

    def status(self, specs: Grid | Iterable[RunSpec]) -> PoolStatus:
        """Count the runs of `specs` by state.

        Args:
            specs: Specs of runs, such as a `Grid`.
        """
        specs = _as_specs(specs, "specs")
        index = load_index(self.folder)
        counts = Counter[str]()
        for spec in specs:
            if spec.id in index.unreadable:
                state = "unreadable"
            elif spec.id in index.status_of:
                state = index.status_of[spec.id]
            else:
                checkpoint = self.run_folder(spec.id) / "checkpoint.safetensors"
                state = "started" if checkpoint.exists() else "waiting"
            counts[state] += 1
        return PoolStatus(**counts)

    def missing(
        self,
        specs: Grid | Iterable[RunSpec],
        *,
        measures: Sequence[str] | None = None,
        retry_failed: bool = False,
    ) -> list[RunSpec]:
        """Return the specs that `run` would run: without a record, or with missing measures.

        A run with a corrupted record, history or weights, or with the record of another network, counts as missing;
        one that is unreadable for another reason (permissions, a newer gapscope) does not. Failed runs count as missing
        if `retry_failed`.

        Args:
            specs: Specs of runs, such as a `Grid`.
            measures: Names of the measures that each record must have; None asks for records alone.
            retry_failed: Whether failed runs count as missing.
        """
        specs = _as_specs(specs, "specs")
        index = load_index(self.folder)
        names = frozenset(measures or ())

        def is_missing(key: str) -> bool:
            if key in index.unreadable:
                return key in index.damaged
            status = index.status_of.get(key)
            if status is None or (status == "failed" and retry_failed):
                return True
            return status == "finished" and not names <= index.attempted[key]

        return [spec for spec in specs if is_missing(spec.id)]

    @check_arguments
    def run(
        self,
        grid: Grid | Iterable[RunSpec],
        *,
        workers: int = 2,
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
            workers: Number of processes on this machine that train at once.
            engine: "local" (processes on this machine) or "ray" (an extra), all machines of a cluster.
            address: Address of a running Ray cluster; None uses RAY_ADDRESS, a cluster on this machine, or a new one.
            gpus: GPUs per network on a Ray cluster, with `device="cuda"`; fractions share one.
            mirror: Address for fsspec (`"s3://bucket/pool"`) to which finished runs are copied, and from which absent
                ones are fetched, so that machines need not share the pool's folder.
            measures: Names of measures; None uses those of the grid, else the default measures.
            measure_options: Options of measures by name, such as `{"ntk_trace": {"draws": 8}}`.
            measure_samples: Number of training samples to measure on; None uses all.
            data_root: Folder of the data sets; None uses GAPSCOPE_DATA or its default.
            device: Device of torch on which networks are trained and measured, the CPU by default.
            retry_failed: Whether to run failed networks again.
            on_record: Called in this process with each finished record; None for no call.
            on_epoch: Called in the process of the run after every epoch with the network (evaluation mode), its problem
                and the row of the history, to which it may add numbers; a picklable function. None for no call.

        Returns:
            One record per spec, in the order of the grid.

        Raises:
            InvalidInput: A setting of the grid is unknown, before anything is trained.
            GapscopeError: Another process runs the pool, a record cannot be written, or (after all other runs) data or
                device of some networks are absent; the same call tries these again.
        """
        from gapscope.base.environment import check_device
        from gapscope.pools.readings import RunOptions
        from gapscope.pools.run import check_specs

        check_range("workers", workers, 1)
        run_jobs = select_engine(engine, address, gpus)
        remote = None if mirror is None else Mirror(mirror)
        if measures is None:
            measures = getattr(grid, "measures", None)
        specs = _as_specs(grid, "grid")
        if data_root is None:
            data_root = os.environ.get("GAPSCOPE_DATA") or None
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
        if remote is not None:
            self._fetch(remote, specs)
        if missing := self.missing(specs, measures=options.measures, retry_failed=retry_failed):
            self._make()
            folders = {spec.id: self.run_folder(spec.id).absolute() for spec in missing}
            with lock_pool(self.folder):
                outcomes = run_missing(missing, folders, options, run_jobs, workers, remote)
                self._collect(outcomes, remote, on_record or (lambda record: None))
            load_index(self.folder)  # updates the index, so that the next call opens no file
        self._remove_superseded()
        return [record for spec in specs if (record := self._readable(spec.id)) is not None]

    @check_arguments
    def add(
        self,
        network: Record | nn.Module,
        data: Any = None,
        *,
        replace: bool = False,
        **options: Any,
    ) -> Record:
        """Add a network trained elsewhere, and return its record.

        A network that the pool already has keeps the scores and readings that the new record lacks. A record of the
        same name and scores without settings is removed if the new one has settings.

        Args:
            network: The network, or its record (from `gapscope.record_network`).
            data: Training data of the network; not for a record, which needs none (None).
            replace: Whether to overwrite another network of the same name and settings.
            **options: Keyword arguments of `gapscope.record_network`, such as `name`, `test` and `settings`.

        Raises:
            InvalidInput: The pool has another network of the same name and settings, or the record's id is no name of
                a folder.
        """
        if not isinstance(network, Record):
            from gapscope.pools.loading import record_network

            network = record_network(network, data, **options)
        record = network
        superseded = None
        if not replace and (existing := self._readable(network.id)) is not None:
            record = merge_records(existing, network)
        bare_id = id_without_settings(network)
        bare = None if bare_id is None else self._readable(bare_id)
        if bare is not None and is_same_network(bare, network):
            record = merge_records(bare, record)
            superseded = self.run_folder(bare.id)
        self._write(record)
        if superseded is not None:
            shutil.rmtree(superseded, ignore_errors=True)
        return record

    def _write(self, record: Record) -> None:
        folder = self.run_folder(record.id)
        self._make()
        make_folder(folder)
        record.write(folder)

    def _readable(self, spec_id: str) -> Record | None:
        try:
            return self.get_record(spec_id)
        except UnreadableFile as error:
            warn_user(f"{error} Its network is skipped.", DamagedFileWarning)
            return None

    def _make(self) -> None:
        make_folder(self.folder / "runs")
        marker = self.folder / MARKER
        if not marker.exists():
            write_atomically(marker, to_json({"schema": SCHEMA}) + "\n")
        for path in self.folder.iterdir():
            # a temporary file older than a minute was left by a process that was killed
            if _is_temporary(path.name) and time.time() - path.stat().st_mtime > 60:
                path.unlink(missing_ok=True)

    def _fetch(self, remote: Mirror, specs: Sequence[RunSpec]) -> None:
        """Fetch runs that are finished in the mirror but not in this folder."""
        ids = remote.list_ids()
        absent = [
            spec.id
            for spec in specs
            if spec.id in ids and not (self.run_folder(spec.id) / RECORD).exists()
        ]
        if absent:
            self._make()
        for spec_id in absent:
            remote.get(spec_id, self.run_folder(spec_id))

    def _collect(
        self,
        outcomes: Iterator[tuple[RunSpec, Record | Exception]],
        remote: Mirror | None,
        on_record: Callable[[Record], None],
    ) -> None:
        """Pass each finished record to `on_record`, and raise machine faults at the end."""
        faults: list[GapscopeError] = []
        n_runs = 0
        for spec, outcome in outcomes:
            n_runs += 1
            if isinstance(outcome, WorkerDied):
                message = "the worker process died twice on this network alone (killed, perhaps for lack of memory)"
                failed = Record(id=spec.id, spec=spec.to_dict(), status="failed", message=message)
                self._write(failed)
                on_record(failed)
            elif isinstance(outcome, GapscopeError) and not isinstance(outcome, NotWritten):
                faults.append(outcome)
            elif isinstance(outcome, Exception):
                raise outcome
            else:
                self._check_arrived(spec.id, remote)
                on_record(outcome)
        if faults:
            raise type(faults[0])(
                f"{faults[0]} ({len(faults)} of {n_runs} networks were not run for such reasons, without a record. The "
                "same command tries them again.)"
            )

    def _check_arrived(self, spec_id: str, remote: Mirror | None) -> None:
        """Raise unless a worker's record is in this folder or in the mirror."""
        folder = self.run_folder(spec_id)
        if (folder / RECORD).exists() or (remote is not None and remote.get(spec_id, folder)):
            return
        raise GapscopeError(
            f"{self.folder} must be one folder for all machines that run it; the record of {spec_id} was written "
            "elsewhere. Use a folder that all machines share, or `mirror` at an address that all can reach."
        )

    def _remove_superseded(self) -> None:
        """Remove checkpoints of finished networks (if the pool is writable)."""
        superseded: list[Path] = []
        for path in sorted(self.folder.glob("runs/*/checkpoint.safetensors")):
            with suppress(UnreadableFile):
                record = self.get_record(path.parent.name)
                if record is not None and record.status != "failed":
                    superseded.append(path)
        if superseded:
            with suppress(GapscopeError, OSError), lock_pool(self.folder):
                for path in superseded:
                    path.unlink(missing_ok=True)


def open_pool(folder: str | Path) -> Pool:
    """Open an existing pool, or raise InvalidInput.

    Args:
        folder: Folder of the pool, which holds pool.json.

    Raises:
        InvalidInput: The folder is no pool.
    """
    folder = Path(folder)
    if not (folder / MARKER).exists() and not (
        _is_unmarked_pool(folder) and (folder / "runs").is_dir()
    ):
        raise InvalidInput(
            f"{folder} must be a pool folder; it holds no pool.json. Create one with: gapscope pool run."
        )
    return Pool(folder)
