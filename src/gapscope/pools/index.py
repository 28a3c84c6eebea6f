"""Index of a pool: its records as one table in one file, for pools of 100,000 records.

The index is a cache: `index.json` can be deleted at any time. Each row stores size, times and inode of record, history
and weights. If one of them differs, the files are read again; corrupted files are read every time, and reported.
Rewriting or copying a file changes its ctime, which no program can set. Bits that decay on the disk go unnoticed;
`Pool.records` reads the files themselves.

Numeric columns are stored as bytes, others as codes into the list of their values. For 100,000 records this is read 20
times faster than rows of SQLite, from an eighth of the bytes.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import DamagedFile, GapscopeError, UnreadableFile
from gapscope.base.files import atomic_writer
from gapscope.results.records import (
    RECORD,
    WEIGHTS,
    Record,
    read_run,
    record_to_row,
    records_to_pandas,
    warn_of_damage,
)

if TYPE_CHECKING:
    import numpy
    import pandas

INDEX = "index.json"
# of the index
SCHEMA = 3
# columns in addition to those of `records_to_pandas`; no setting or reading has such a name
MESSAGE, STOPPED, UNMEASURED, TRIED, READINGS = EXTRA_COLUMNS = (
    "#message",
    "#stopped",
    "#unmeasured",
    "#tried",
    "#readings",
)
SCORES = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
# a younger file may be rewritten within the resolution of its times, and is read again next time
MIN_AGE_SECONDS = 2.0
# the index is rewritten if more files than this number, and than this fraction, had to be read
MIN_NEW, MIN_NEW_FRACTION = 64, 0.02

# size, mtime, ctime and inode of record, history and weights
Stamp = tuple[int, ...]
# stamp of an absent file
_NO_FILE = (-1,) * 4


@dataclass(frozen=True)
class IndexedRecords:
    """Records of a pool as a table, one row per record, sorted by id.

    Attributes:
        rows: Columns of `records_to_pandas` and `EXTRA_COLUMNS`.
        unreadable: Name of the folder -> why its record was skipped.
        damaged: Names of folders with a corrupted file; the next run trains their networks again.
    """

    rows: pandas.DataFrame
    unreadable: Mapping[str, str]
    damaged: frozenset[str]

    @cached_property
    def status_of(self) -> dict[str, str]:
        """Id -> "finished", "diverged" or "failed"."""
        return dict(zip(self.rows.index, self.rows["status"], strict=True))

    @cached_property
    def attempted(self) -> dict[str, frozenset[str]]:
        """Id -> names of the measures that were run, with or without a value."""
        names = {text: frozenset(json.loads(text)) for text in self.rows[TRIED].unique()}
        return {
            name: names[text] for name, text in zip(self.rows.index, self.rows[TRIED], strict=True)
        }

    def readings(self) -> list[str]:
        """Return the names of the readings of finished networks, in the order of measurement."""
        lists = self.rows.loc[self.rows["status"] == "finished", READINGS].unique()
        return list(dict.fromkeys(name for text in lists for name in json.loads(text)))

    def table(self) -> pandas.DataFrame:
        """Return what `records_to_pandas` returns for the records."""
        if len(self.rows):
            return self.rows.drop(columns=list(EXTRA_COLUMNS))
        return records_to_pandas(())

    def summaries(self) -> list[Record]:
        """Return the records without settings (except the name), readings and epochs, by id."""
        names = [
            "status",
            MESSAGE,
            STOPPED,
            UNMEASURED,
            "epochs_trained",
            "seconds",
            "name",
            "gap_kind",
            *SCORES,
        ]
        rows = self.rows.reindex(columns=names)
        reasons = {text: json.loads(text) for text in rows[UNMEASURED].unique()}
        records: list[Record] = []
        for key, row in zip(rows.index, rows.itertuples(index=False, name=None), strict=True):
            status, message, stopped, unmeasured, epochs, seconds, name, kind, *values = row
            # a record may have an accuracy of NaN; a loss of NaN means that it has none
            scores = {
                score: value
                for score, value in zip(SCORES, values, strict=True)
                if isinstance(value, float)
                and (value == value if score.endswith("loss") else kind == "accuracy")
            }
            records.append(
                Record(
                    id=key,
                    status=status,
                    message=message,
                    stopped=stopped,
                    unmeasured=reasons[unmeasured],
                    epochs_trained=epochs,
                    seconds=seconds,
                    spec={"name": name} if isinstance(name, str) and name else {},
                    scores=scores,
                )
            )
        return records

    def warn(self, folder: Path) -> None:
        """Warn about skipped records.

        Args:
            folder: Folder of the pool, named in the warning.
        """
        warn_of_damage(folder, len(self.rows), list(self.unreadable.values()))


def _stamp(path: str) -> Stamp:
    try:
        result = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat
    except OSError:
        return _NO_FILE
    return result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Return the stamps of all runs with a record, sorted by name."""
    runs = str(folder / "runs")
    stamps = {}
    with suppress(OSError):
        for name in sorted(os.listdir(runs)):  # noqa: PTH208 - as above
            stamp = _stamp(f"{runs}/{name}/{RECORD}")
            if stamp != _NO_FILE:
                stamps[name] = (
                    stamp
                    + _stamp(f"{runs}/{name}/history.jsonl")
                    + _stamp(f"{runs}/{name}/{WEIGHTS}")
                )
    return stamps


def _pack(numbers: numpy.ndarray[Any, Any]) -> dict[str, str]:
    return {"type": numbers.dtype.str, "bytes": base64.b64encode(numbers.tobytes()).decode()}


def _unpack(content: Mapping[str, str]) -> Any:
    import numpy

    return numpy.frombuffer(
        base64.b64decode(content["bytes"], validate=True), dtype=content["type"]
    )


def _pack_column(values: pandas.Series[Any]) -> dict[str, Any]:
    """Return numbers as bytes, and other values as codes into the list of their values."""
    import pandas

    if values.dtype.kind in "fib":
        return _pack(values.to_numpy())
    # Factorize JSON texts, because 1, 1.0 and True compare equal but are different settings.
    codes, texts = pandas.factorize(values.astype(object).map(json.dumps))
    return _pack(codes.astype("int32")) | {"values": [json.loads(text) for text in texts]}


def _unpack_column(content: Mapping[str, Any]) -> Any:
    import numpy
    import pandas

    numbers = _unpack(content)
    if "values" not in content:
        return numbers
    return (
        pandas.Series(numpy.array(content["values"], dtype=object)[numbers])
        .infer_objects()
        .to_numpy()
    )


def _decode(body: bytes) -> tuple[pandas.DataFrame, Mapping[str, Stamp]]:
    """Return the rows of an index with their stamps by id, or raise an error of Python if it is none."""
    import pandas

    content = json.loads(body)
    ids = content["ids"]
    stamps = _unpack(content["stamps"]).reshape(len(ids), -1).tolist()
    columns = {name: _unpack_column(column) for name, column in content["columns"].items()}
    rows = pandas.DataFrame(columns, index=pandas.Index(ids, name="id"), copy=False)
    return rows, dict(zip(ids, map(tuple, stamps), strict=True))


def _read(path: Path) -> tuple[pandas.DataFrame, Mapping[str, Stamp]]:
    """Return the rows of the index with their stamps by id (empty if it is missing or no index)."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if json.loads(head) != {"schema": SCHEMA, "crc32": zlib.crc32(body)}:
            raise ValueError("it was not written by this version, or is damaged")
        return _decode(body)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        # a cache: the records themselves are read instead
        return _empty()


def _empty() -> tuple[pandas.DataFrame, Mapping[str, Stamp]]:
    import pandas

    return pandas.DataFrame(columns=["status", *EXTRA_COLUMNS]), {}


def _write(path: Path, rows: pandas.DataFrame, stamps: Iterable[Stamp]) -> None:
    import numpy

    content = {
        "ids": list(rows.index),
        "stamps": _pack(numpy.array(list(stamps))),
        "columns": {str(name): _pack_column(rows[name]) for name in rows.columns},
    }
    body = json.dumps(content).encode()
    head = json.dumps({"schema": SCHEMA, "crc32": zlib.crc32(body)}).encode()
    with atomic_writer(path, durable=False) as file:
        file.write(head + b"\n" + body)


def _row(record: Record) -> dict[str, Any]:
    tried = sorted({reading.measure for reading in record.readings} | set(record.unmeasured))
    return record_to_row(record) | {
        MESSAGE: record.message,
        STOPPED: record.stopped,
        UNMEASURED: json.dumps(dict(record.unmeasured)),
        TRIED: json.dumps(tried),
        READINGS: json.dumps([reading.name for reading in record.readings]),
    }


def load_index(folder: Path) -> IndexedRecords:
    """Return the records of a pool, opening only files that are new or changed."""
    import pandas

    rows, old_stamps = _read(folder / INDEX)
    if not {"status", *EXTRA_COLUMNS} <= set(rows.columns):  # other content with a right checksum
        rows, old_stamps = _empty()
    newest_trusted = time.time_ns() - int(MIN_AGE_SECONDS * 1e9)
    stamps = _stamps(folder)
    changed = {name: stamp for name, stamp in stamps.items() if old_stamps.get(name) != stamp}
    unchanged = [name for name in stamps if name not in changed]
    new: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    damaged: set[str] = set()
    for name, stamp in changed.items():
        try:
            record = read_run(folder / "runs" / name)
        except UnreadableFile as error:
            unreadable[name] = str(error)
            if isinstance(error, DamagedFile):
                damaged.add(name)
            continue
        new.append(_row(record))
        if max(*stamp[1::4], *stamp[2::4]) > newest_trusted:
            stamps[name] = (0,) * len(stamp)  # no stamp matches zeros: read again next time
    n_gone = len(old_stamps) - len(unchanged)
    if new or n_gone:
        parts = [rows.loc[unchanged]] if unchanged else []
        if new:
            parts.append(pandas.DataFrame(new).set_index("id"))
        rows = pandas.concat(parts).sort_index().infer_objects() if parts else rows.loc[[]]
        if max(len(new), n_gone) > max(MIN_NEW, MIN_NEW_FRACTION * len(rows)):
            with suppress(GapscopeError, OSError):  # the index of a read-only pool is not written
                _write(folder / INDEX, rows, [stamps[name] for name in rows.index])
    return IndexedRecords(rows, unreadable, frozenset(damaged))
