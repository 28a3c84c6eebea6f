"""Locations of data sets and of the files of the 2020 competition (PGDL)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gapscope.base.errors import DataNotFound


@dataclass(frozen=True)
class FileLayout:
    """Names of a data set's files, and the folders that may contain them."""

    source: str
    folders: tuple[str, ...]  # below the data root; downloads use the first
    # content of a file -> its possible names, each with and without ".gz"
    required: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_folders: bool = False  # whether the names are those of folders


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder of the data sets (it need not exist).

    It is `given`, else the environment variable GAPSCOPE_DATA, else gapscope/data in the user's cache
    (on Linux $XDG_CACHE_HOME or ~/.cache).

    Args:
        given: Folder that the user named; None for the default.
    """
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get("GAPSCOPE_DATA"):
        return Path(os.environ["GAPSCOPE_DATA"]).expanduser()
    # the platform's folder for files that can be recreated; pooch.os_cache is similar, but imports requests
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    if sys.platform == "win32":
        cache = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    return cache / "gapscope" / "data"


def _first(layout: FileLayout, folder: Path, file_names: tuple[str, ...]) -> Path | None:
    if layout.of_folders:
        return next((folder / name for name in file_names if (folder / name).is_dir()), None)
    candidates = (folder / f"{name}{suffix}" for name in file_names for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def locate(layout: FileLayout, root: str | Path | None = None) -> dict[str, Path]:
    """Return the paths of a data set's files by content, from the first complete folder."""
    base = data_root(root)
    for folder in layout.folders:
        result = {
            role: _first(layout, base / folder, file_names)
            for role, file_names in layout.required.items()
        }
        if all(result.values()):
            result |= {
                role: _first(layout, base / folder, file_names)
                for role, file_names in layout.optional.items()
            }
            return {role: path for role, path in result.items() if path is not None}
    expected = ", ".join(file_names[0] for file_names in layout.required.values())
    fetch = f"Run `gapscope data fetch {layout.source}`"
    if layout.of_folders:
        files = f"folders {expected}"
        fetch = "Pass an absolute path as folder="
    else:
        files = f"files {expected} (plain or .gz)"
    raise DataNotFound(
        f"Data set '{layout.source}' needs the {files} together in one of the folders "
        f"{', '.join(layout.folders)} of {base}; they are missing. "
        f"{fetch}, or name another data root with --data-root or GAPSCOPE_DATA."
    )


def pgdl_networks(root: str | Path | None = None) -> Path:
    """Return the CSV file of VGG-like networks on CIFAR-10 with gaps and 13 measures."""
    path = data_root(root) / "pgdl" / "pgdl_task1_v4.csv"
    if not path.is_file():
        raise DataNotFound(
            f"The networks of the 2020 competition need the file {path}; it does not exist. Name another data root "
            "with --data-root or GAPSCOPE_DATA, or pass a table of your own."
        )
    return path
