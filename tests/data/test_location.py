from __future__ import annotations

from pathlib import Path

import pytest

from gapscope.base.errors import DataNotFound
from gapscope.data.location import FileLayout, data_root, locate, pgdl_networks

LAYOUT = FileLayout(
    "toy", ("toy", "toys/raw"), {"a": ("a.bin", "A.bin"), "b": ("b.bin",)}, {"c": ("c.txt",)}
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("GAPSCOPE_DATA", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/user")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    return monkeypatch


def test_the_root_is_argument_then_environment_then_cache(environment: pytest.MonkeyPatch) -> None:
    assert data_root() == Path("/cache/gapscope/data")
    environment.setenv("GAPSCOPE_DATA", "~/sets")
    assert data_root() == Path("/home/user/sets")
    assert data_root("/here") == Path("/here")
    environment.delenv("GAPSCOPE_DATA")
    environment.setenv("XDG_CACHE_HOME", "relative/folder")
    assert data_root() == Path("/home/user/.cache/gapscope/data")
    environment.delenv("LOCALAPPDATA", raising=False)
    for platform, cache in (("darwin", "Library/Caches"), ("win32", "AppData/Local")):
        environment.setattr("sys.platform", platform)
        assert data_root() == Path("/home/user", cache, "gapscope/data")


def test_files_are_located_plain_or_gzipped_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "toys" / "raw"
    folder.mkdir(parents=True)
    for name in ("A.bin", "b.bin.gz"):
        (folder / name).touch()
    assert locate(LAYOUT, tmp_path) == {"a": folder / "A.bin", "b": folder / "b.bin.gz"}
    (folder / "c.txt").touch()
    assert locate(LAYOUT, tmp_path)["c"] == folder / "c.txt"


def test_files_of_two_folders_are_not_mixed_and_the_message_names_the_command(
    tmp_path: Path,
) -> None:
    for folder, name in (("toy", "a.bin"), ("toys/raw", "b.bin")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).touch()
    with pytest.raises(
        DataNotFound, match=rf"a.bin, b.bin .* toy, toys/raw of {tmp_path}.*gapscope data fetch toy"
    ):
        locate(LAYOUT, tmp_path)
    with pytest.raises(DataNotFound, match=r"file .*pgdl/pgdl_task1_v4.csv"):
        pgdl_networks(tmp_path)


def test_layouts_of_folders_need_folders(tmp_path: Path) -> None:
    layout = FileLayout(
        "own", ("own",), {"train": ("train",), "test": ("val", "test")}, of_folders=True
    )
    (tmp_path / "own" / "train").mkdir(parents=True)
    (tmp_path / "own" / "val").touch()
    with pytest.raises(DataNotFound, match="folders train, val together"):
        locate(layout, tmp_path)
    (tmp_path / "own" / "test").mkdir()
    assert locate(layout, tmp_path) == {
        "train": tmp_path / "own" / "train",
        "test": tmp_path / "own" / "test",
    }
