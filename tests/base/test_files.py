"""Files exist atomically; JSON stays standard; results and timings name their versions and machine."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import torch

from gapscope.base.environment import environment
from gapscope.base.errors import NotWritten, UnreadableFile
from gapscope.base.files import (
    check_output,
    read_json,
    read_json_lines,
    to_json,
    write_atomically,
    write_output,
)


def test_non_finite_numbers_survive_in_standard_json() -> None:
    text = to_json({"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": True})
    content = json.loads(
        text, parse_constant=lambda name: pytest.fail(f"{name} is no standard JSON")
    )
    assert math.isnan(float(content["a"])) and [float(b) for b in content["b"]] == [
        math.inf,
        -math.inf,
        1.5,
    ]
    assert content["c"] is True


def test_writing_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("one", b"two"):
        write_atomically(path, content)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, "old")
    script = f"""
import resource, signal
from pathlib import Path
from gapscope.base.errors import NotWritten
from gapscope.base.files import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path({str(path)!r}), "x" * 5000)
except NotWritten as error:
    print(error)
"""
    assert resource.RLIMIT_FSIZE is not None and signal.SIGXFSZ
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "could not be written" in done.stdout and "untouched" in done.stdout
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotWritten, match="could not be written"):
        write_atomically(tmp_path / "absent" / "file", "x")


def test_an_output_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for bad in ("absent/page.html", "file/page.html", "", "link", "loop", "pipe"):
        with pytest.raises(NotWritten):
            check_output(tmp_path / bad)
        with pytest.raises(NotWritten):
            write_output(tmp_path / bad, "other")
    with pytest.raises(NotWritten, match="device"):
        check_output("/dev/null")
    assert (tmp_path / "file").read_text() == "mine"
    assert check_output(str(tmp_path / "file")) == check_output(tmp_path / "file")


def test_a_missing_or_truncated_file_raises(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="such file"):
        read_json(tmp_path / "absent.json")
    (tmp_path / "a.json").write_text('{"a": 1')
    for is_recreated, advice in ((False, "Pass a file"), (True, "Delete it")):
        with pytest.raises(UnreadableFile, match=f"must hold JSON.*{advice}"):
            read_json(tmp_path / "a.json", is_recreated=is_recreated)


def test_a_json_line_cut_off_by_a_kill_is_excluded(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert list(read_json_lines(path)) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert list(read_json_lines(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\nnonsense\n')
    with pytest.raises(UnreadableFile, match="per line; got 'nonsense"):
        list(read_json_lines(path))


def test_a_timing_also_tells_processor_and_day() -> None:
    plain, timing = environment(), environment("cpu")
    assert timing.items() >= plain.items() and timing.keys() - plain.keys() == {"device", "date"}
    assert timing["device"] and date.fromisoformat(timing["date"]).year >= 2024
    assert plain["torch"] == torch.__version__ and plain["threads"] == torch.get_num_threads()
    assert json.loads(json.dumps(timing)) == timing
