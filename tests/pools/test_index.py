"""The index of a pool: the contents of the files, with fewer files opened and no damage overlooked."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
import pytest

from gapscope.base.errors import DamagedFileWarning
from gapscope.base.files import to_json
from gapscope.pools import Grid, Pool
from gapscope.pools import index as index_module
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record, records_to_pandas

GRID = Grid.from_dict({"axes": {"seed": list(range(80))}})
_opened: list[str] | None = None


def _hook(event: str, args: Any) -> None:
    if event == "open" and _opened is not None and "/runs/" in str(args[0]):
        _opened.append(str(args[0]))


sys.addaudithook(_hook)


@contextmanager
def openings() -> Iterator[list[str]]:
    """Paths of the files below runs/ that are opened in the block."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def write(pool: Pool, number: int, value: float = 0.5) -> Path:
    spec = list(GRID)[number]
    folder = pool.run_folder(spec.id)
    folder.mkdir(parents=True, exist_ok=True)
    readings = Readings(
        [Reading(measure="loss", number="loss", value=value + number, standard_error=0.1)]
    )
    scores = {"train_loss": 0.1, "test_loss": 0.2, "train_accuracy": 0.9, "test_accuracy": 0.8}
    Record(
        id=spec.id, spec=spec.to_dict(), status="finished", readings=readings, scores=scores
    ).write(folder)
    (folder / "history.jsonl").write_text(to_json({"epoch": 1, "train_loss": 0.1}) + "\n")
    return folder


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(index_module, "MIN_AGE_SECONDS", 0.0)
    pool = Pool(tmp_path / "pool")
    for number in range(75):
        write(pool, number)
    (pool.folder / "pool.json").write_text(to_json({"schema": 1}))
    assert pool.status(GRID).finished == 75
    return pool


def test_what_is_indexed_is_not_opened_again(pool: Pool) -> None:
    with openings() as opened:
        assert pool.status(GRID).waiting == 5
        assert len(pool.missing(GRID, measures=["loss"])) == 5
        assert len(pool.missing(GRID, measures=["loss", "accuracy"])) == 80
        table = pool.to_pandas()
    assert not opened
    pandas.testing.assert_frame_equal(table, records_to_pandas(pool.records()), check_exact=True)
    with openings() as opened:
        pool.records()
    assert len(set(opened)) == 150  # the count can count


def test_only_what_is_new_or_written_again_is_opened(pool: Pool) -> None:
    changed, new = write(pool, 3, value=7.0), write(pool, 77)
    with openings() as opened:
        table = pool.to_pandas()
    assert {Path(path).parent for path in opened} == {changed, new}
    assert len(table) == 76
    assert table.at[changed.name, "loss"] == 10.0
    shutil.rmtree(changed)
    assert changed.name not in pool.to_pandas().index


def test_a_change_that_keeps_size_and_time_is_seen(pool: Pool) -> None:
    path = pool.run_folder(next(iter(GRID)).id) / "record.json"
    before = path.stat()
    path.write_text(path.read_text().replace('"value": 0.5', '"value": 0.7'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert pool.to_pandas().at[path.parent.name, "loss"] == 0.7


def test_damage_is_reported_every_time(pool: Pool) -> None:
    cut, epochs = (pool.run_folder(spec.id) for spec in list(GRID)[:2])
    (cut / "record.json").write_text('{"schema": 1, "id"')
    (epochs / "history.jsonl").write_text('{"epoch": "first"}\n')
    for _ in range(2):
        assert pool.status(GRID).unreadable == 2
        assert [spec.id for spec in pool.missing(GRID)[:2]] == [cut.name, epochs.name]
        with pytest.warns(DamagedFileWarning, match=f"2 of 75 records.*{min(cut, epochs)}"):
            assert len(pool.to_pandas()) == 73


@pytest.mark.parametrize("damage", ["cut", "flipped", "other version", "folder"])
def test_a_corrupted_index_is_recreated(pool: Pool, damage: str) -> None:
    path = pool.folder / "index.json"
    content = path.read_bytes()
    expected = pool.to_pandas()
    if damage == "cut":
        path.write_bytes(content[:-9])
    elif damage == "flipped":
        path.write_bytes(content.replace(b"bytes", b"byt3s", 1))
    elif damage == "other version":
        head = json.loads(content.split(b"\n")[0]) | {"schema": 99}
        path.write_bytes(json.dumps(head).encode() + b"\n" + content.split(b"\n", 1)[1])
    else:
        path.unlink()
        path.mkdir()
    pandas.testing.assert_frame_equal(pool.to_pandas(), expected, check_exact=True)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"ids": []},
        {"ids": 3, "stamps": {}},
        {"ids": ["a"], "columns": {}},
        "stamps",
        "columns",
    ],
)
def test_other_content_with_a_right_checksum_is_recreated(pool: Pool, content: Any) -> None:
    path, expected = pool.folder / "index.json", pool.to_pandas()
    stored = json.loads(path.read_bytes().split(b"\n", 1)[1])
    body = json.dumps(stored | {content: {}} if isinstance(content, str) else content).encode()
    head = json.dumps({"schema": index_module.SCHEMA, "crc32": zlib.crc32(body)}).encode()
    path.write_bytes(head + b"\n" + body)
    pandas.testing.assert_frame_equal(pool.to_pandas(), expected, check_exact=True)


VALUES: dict[str, list[Any]] = {
    "whole": [1, 2, None], "float": [1.5, 2.0], "text": ["x", None, "y"], "truth": [True, False],
    "mixed": [1, 2.5], "equal": [1, True], "not finite": [float("nan"), 1.0, float("-inf")], "none": [None],
    "anything": [1, "x"], "huge": [2**70, 1], "third": [0.1 + 0.2],
}  # fmt: skip


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_what_is_stored_is_the_table_of_pandas(tmp_path: Path, share: float) -> None:
    rng = random.Random(0)
    rows = [
        {
            "id": str(k),
            **{name: rng.choice(of) for name, of in VALUES.items() if rng.random() < share},
        }
        for k in range(60)
    ]
    expected, stamps = pandas.DataFrame(rows).set_index("id"), [(k, 2**60 + k) for k in range(60)]
    index_module._write(tmp_path / "index.json", expected, stamps)
    stored, known = index_module._read(tmp_path / "index.json")
    pandas.testing.assert_frame_equal(stored, expected, check_exact=True)
    assert known == dict(zip(expected.index, stamps, strict=True))


def test_a_file_just_written_is_not_trusted_by_its_times(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MIN_AGE_SECONDS", 60.0)
    (pool.folder / "index.json").unlink()
    pool.status(GRID)
    with openings() as opened:
        pool.status(GRID)
    assert len(set(opened)) == 150


def test_a_pool_that_may_only_be_read_is_read(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    (pool.folder / "index.json").unlink()

    def fail(*_: Any, **__: Any) -> Any:
        raise PermissionError("read-only")

    monkeypatch.setattr(index_module, "atomic_writer", fail)
    assert pool.status(GRID).finished == 75
    assert not (pool.folder / "index.json").exists()


def test_summaries_are_the_records_without_what_is_large(pool: Pool) -> None:
    for own, record in zip(pool.index().summaries(), pool.records(), strict=True):
        assert (own.id, own.status, own.scores, own.gap) == (
            record.id,
            record.status,
            record.scores,
            record.gap,
        )
        assert not own.readings and not own.history
