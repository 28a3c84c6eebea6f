from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapscope.base.errors import DataNotFound, InvalidInput, UnreadableFile
from gapscope.cli.data import app
from support.loopback import serving, stated_as_official

RUNNER = CliRunner(env={"COLUMNS": "200"})


def n_absent(output: str) -> int:
    return sum(line.rstrip().endswith("absent") for line in output.splitlines())


def test_list_shows_every_set_and_where_it_is(data_root: Path, tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["list", "--data-root", str(data_root)])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert (
        f"data root: {data_root};" in result.output and "gapscope data fetch NAME" in result.output
    )
    assert (
        lines["mnist"].split()[-1] == "mnist"
        and lines["fashion_mnist"].split()[-1] == "fashion-mnist"
    )
    assert "60,000 + 10,000" in lines["mnist"] and "CC BY-SA 3.0" in lines["mnist"]
    assert "built in" in lines["digits"]
    assert lines["facial_keypoints"].rstrip().endswith("absent")
    empty = RUNNER.invoke(app, ["list", "--data-root", str(tmp_path)]).output
    assert n_absent(empty) > n_absent(result.output) and str(tmp_path) in empty


def test_fetch_prints_a_line_per_tenth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for split in ("train", "t10k"):
        (there / f"{split}-images-idx3-ubyte.gz").write_bytes(bytes(9_912_422))
        (there / f"{split}-labels-idx1-ubyte.gz").write_bytes(bytes(28_881))
    stated_as_official(monkeypatch, "mnist", there)
    with serving(there) as server:
        result = RUNNER.invoke(
            app, ["fetch", "mnist", "--data-root", str(tmp_path), "--base-url", server.url]
        )
    assert result.exit_code == 0
    images = [line for line in result.stderr.splitlines() if line.startswith("train-images")]
    assert len(images) == 10
    assert images[-1] == "train-images-idx3-ubyte.gz: 9.9 of 9.9 MB"
    assert (
        f"{tmp_path}/mnist/train-images-idx3-ubyte.gz  9,912,422 bytes, checked"
        in result.stdout.splitlines()
    )


def test_fetch_of_a_built_in_data_set(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["fetch", "digits", "--data-root", str(tmp_path)])
    assert result.output == "digits is built in; there is nothing to fetch.\n"


def test_fetch_passes_errors_on(data_root: Path, tmp_path: Path) -> None:
    def error(*arguments: str) -> BaseException | None:
        return RUNNER.invoke(app, ["fetch", *arguments, "--data-root", str(tmp_path)]).exception

    assert isinstance(error("mnits"), InvalidInput)
    assert isinstance(error("facial_keypoints"), DataNotFound)
    with serving(data_root / "mnist") as server:
        server.spoil = True
        assert isinstance(error("mnist", "--base-url", server.url), UnreadableFile)
