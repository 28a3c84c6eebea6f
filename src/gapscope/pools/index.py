"""Index of a pool: its records as columns in one file, for pools of 100,000 records.

The index is a convenience and never the truth: `index.json` can be deleted at any time. Every entry carries the size,
the times and the number (inode) of the two files that it was read from; where any of them is another, the files are
read again, and what is damaged is read, and named, every time. A file that is written again has another time of change
(ctime), which no program can set; so has a copy. What the index cannot see is a disk that forgets bits of a file that
nobody wrote; `Pool.records` reads the files themselves.

Columns rather than rows in SQLite: of 100,000 records they are read 20 times faster, from an eighth of the bytes.
"""

from __future__ import annotations

import json
import os
import time
import warnings
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.column_store import ColumnStore
from gapscope.base.errors import DamagedFile, DamagedFileWarning, GapscopeError, UnreadableFile
from gapscope.base.files import atomic_writer
from gapscope.results.records import RECORD, Record, read_with_warning, record_to_row

if TYPE_CHECKING:
    import pandas

INDEX = "index.json"
SCHEMA = 1
# columns beside those of `records_to_pandas`; no setting or reading has such a name
ID, MESSAGE, STOPPED = "id", "#message", "#stopped"
UNMEASURED, TRIED, READINGS = "#unmeasured", "#tried", "#readings"
OWN = (MESSAGE, STOPPED, UNMEASURED, TRIED, READINGS)
SCORES = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
# numbers of the stamp of a file, and of both files of a record
NUMBERS, BOTH = 4, 8
# a file as young as this may be written again without its times telling
SECONDS_UNTIL_SETTLED = 2.0
# the index is written again once more than these, and more than this share, had to be read
FEWEST_NEW, SHARE_NEW = 64, 0.02

Stamp = tuple[int, ...]
_NO_FILE = (-1,) * NUMBERS


@dataclass(frozen=True)
class IndexedRecords:
    """Records of a pool as columns, one row per record, sorted by id.

    Attributes:
        rows: The rows: columns of `records_to_pandas`, and messages, reasons and names of what was measured and tried.
        unreadable: Folder's name -> why its record was left out.
        notes: What else is wrong, one sentence each: epochs that are damaged.
        damaged: Names of the folders whose record is damaged, and would be recreated.
    """

    rows: ColumnStore
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Sequence[str] = ()
    damaged: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def status_of(self) -> dict[str, str]:
        """Id -> "finished", "diverged" or "failed"."""
        return dict(zip(self.rows.column(ID), self.rows.column("status"), strict=True))

    @cached_property
    def tried(self) -> dict[str, frozenset[str]]:
        """Id -> names of the measures that were taken or tried."""
        texts = self.rows.column(TRIED)
        read = {text: frozenset(json.loads(text)) for text in set(texts)}
        return {name: read[text] for name, text in zip(self.rows.column(ID), texts, strict=True)}

    def readings(self) -> list[str]:
        """Names of the readings of finished networks, in the order in which they were measured."""
        finished = zip(self.rows.column(READINGS), self.rows.column("status"), strict=True)
        lists = dict.fromkeys(text for text, status in finished if status == "finished")
        return list(dict.fromkeys(name for text in lists for name in json.loads(text)))

    def table(self) -> pandas.DataFrame:
        """One row per record, what `records_to_pandas` makes of them."""
        from gapscope.results.records import records_to_pandas

        if not len(self.rows):
            return records_to_pandas(())
        return self.rows.to_pandas([name for name in self.rows.names if name not in OWN], ID)

    def column(self, name: str) -> list[Any]:
        """One column, in the order of the ids."""
        return self.rows.column(name)

    def summaries(self) -> list[Record]:
        """Records without settings (but a name), readings and epochs, in the order of the ids."""
        names = (ID, "status", MESSAGE, STOPPED, UNMEASURED, "gap_kind", "epochs_trained", "seconds", "name", *SCORES)
        reasons = {text: json.loads(text) for text in set(self.rows.column(UNMEASURED))}
        return [
            Record(
                id=name, status=status, message=message, stopped=stopped, unmeasured=reasons[unmeasured],
                epochs_trained=epochs, seconds=seconds, spec={"name": called} if called else {},
                scores={
                    score: value
                    for score, value in zip(SCORES, scores, strict=True)
                    if isinstance(value, float) and (value == value if score.endswith("loss") else kind == "accuracy")
                },
            )
            for name, status, message, stopped, unmeasured, kind, epochs, seconds, called, *scores in zip(
                *map(self.rows.column, names), strict=True
            )
        ]  # fmt: skip

    def warn(self, folder: Path, stacklevel: int) -> None:
        """Say what was left out, and what of the rest is damaged."""
        for note in self.notes:
            warnings.warn(note, DamagedFileWarning, stacklevel=stacklevel + 1)
        if self.unreadable:
            warnings.warn(
                unreadable_warning(
                    len(self.unreadable), len(self) + len(self.unreadable), folder, next(iter(self.unreadable.values()))
                ),
                DamagedFileWarning,
                stacklevel=stacklevel + 1,
            )


def unreadable_warning(count: int, of: int, folder: Path, first: str) -> str:
    """The warning about records that cannot be read."""
    return f"{count} of {of} records of {folder} are damaged and skipped; the first: {first}"


def misnamed(folder: Path, record: Record) -> str:
    """Return the fault of a record in a folder of another name."""
    return f"{folder} is named otherwise than its network, {record.id}; is it a copy?"


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)  # noqa: PTH116 - twice as fast as a Path's
    except OSError:
        return _NO_FILE
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _stamps(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """Name and stamp of every run that has a record, sorted by name."""
    runs = str(folder / "runs")
    with suppress(OSError):
        for name in sorted(os.listdir(runs)):  # noqa: PTH208 - as above
            own = _stamp(f"{runs}/{name}/{RECORD}")
            if own != _NO_FILE:
                yield name, own + _stamp(f"{runs}/{name}/history.jsonl")


def _stored(path: Path) -> tuple[ColumnStore, dict[str, tuple[int, Stamp]]]:
    """Return the rows of the index with position and stamp per id (empty if invalid)."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        if json.loads(head) != {"schema": SCHEMA, "crc32": zlib.crc32(body)}:
            raise ValueError("it was not written by this version, or is damaged")
        content = json.loads(body)
        rows = ColumnStore.from_plain(content["rows"])
        numbers = array("q", bytes.fromhex(content["stamps"]))
        stamps = list(zip(*(numbers[k::BOTH] for k in range(BOTH)), strict=True))
        return rows, {name: (row, stamps[row]) for row, name in enumerate(rows.column(ID))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ColumnStore(), {}


def _write(path: Path, rows: ColumnStore, stamps: Sequence[Stamp]) -> None:
    numbers = array("q", (number for stamp in stamps for number in stamp))
    body = json.dumps({"stamps": numbers.tobytes().hex(), "rows": rows.to_plain()}).encode()
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


@dataclass
class _Reading:
    """Records that had to be read, and what was wrong with others."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    stamps: list[Stamp] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)

    def read(self, folder: Path, stamp: Stamp, settled: int) -> None:
        try:
            record, note = read_with_warning(folder)
        except UnreadableFile as error:
            self.unreadable[folder.name] = str(error)
            if isinstance(error, DamagedFile):
                self.damaged.add(folder.name)
            return
        if record.id != folder.name:
            self.unreadable[folder.name] = misnamed(folder, record)
            return
        if note:
            self.notes.append(note)
        young = bool(note) or max(stamp[1], stamp[2], stamp[NUMBERS + 1], stamp[NUMBERS + 2]) > settled
        self.rows.append(_row(record))
        self.stamps.append((0,) * BOTH if young else stamp)


def load_index(folder: Path) -> IndexedRecords:
    """Return the records of a pool, opening only files that are new or changed.

    Returns:
        One row a readable record, and what is wrong with the others.
    """
    path = folder / INDEX
    rows, known = _stored(path)
    settled = time.time_ns() - int(SECONDS_UNTIL_SETTLED * 1e9)
    kept: list[int] = []
    stamps: list[Stamp] = []
    new = _Reading()
    for name, stamp in _stamps(folder):
        position, old = known.get(name, (0, None))
        if old == stamp:
            kept.append(position)
            stamps.append(stamp)
        else:
            new.read(folder / "runs" / name, stamp, settled)
    gone = len(known) - len(kept)
    if new.rows or gone:
        rows = rows.select(kept)
        rows.extend(new.rows)
        stamps += new.stamps
        ids = rows.column(ID)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rows, stamps = rows.select(order), [stamps[row] for row in order]
        if max(len(new.rows), gone) > max(FEWEST_NEW, SHARE_NEW * len(rows)):
            with suppress(GapscopeError, OSError):  # a pool that may only be read is read without an index
                _write(path, rows, stamps)
    return IndexedRecords(rows, new.unreadable, new.notes, frozenset(new.damaged))
