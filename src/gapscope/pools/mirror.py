"""Mirror of finished runs at a remote address, for clusters without a shared folder."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from gapscope.base.errors import InvalidInput, NotWritten
from gapscope.base.files import atomic_writer, make_folder
from gapscope.results.records import RECORD


class Mirror:
    """Finished runs at an fsspec address such as `s3://bucket/pool`, or in a folder.

    Args:
        address: Of a folder, made if missing. Who may write there is settled as fsspec wants it (environment variables,
            files of the service); nothing secret belongs into the address.

    Raises:
        InvalidInput: No file system has such an address, or the package for it is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._there  # noqa: B018 - an address that cannot be used is refused here

    def __reduce__(self) -> Any:
        return Mirror, (self.address,)

    @cached_property
    def _there(self) -> tuple[Any, str]:
        import fsspec

        try:
            files, folder = fsspec.url_to_fs(self.address)
        except ImportError as error:
            raise InvalidInput(f"{self.address} needs a package that is not installed: {error}.") from None
        except ValueError as error:
            raise InvalidInput(
                f"mirror must be an address that fsspec supports, such as 's3://bucket/pool'; got {self.address!r} "
                f"({error})."
            ) from None
        return files, folder.rstrip("/")

    def put(self, folder: Path) -> None:
        """Copy a finished run, its record last: a run is there whole, or counts as not there."""
        files, root = self._there
        there = f"{root}/{folder.name}"
        try:
            files.makedirs(there, exist_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == RECORD):
                files.put_file(str(path), f"{there}/{path.name}.part")
                files.mv(f"{there}/{path.name}.part", f"{there}/{path.name}")
        except Exception as error:
            raise NotWritten(
                f"{self.address} must be an address that can be written to; copying {folder.name} failed "
                f"({type(error).__name__}: {error}). Trained networks are saved in {folder}; correct the address or "
                "its permissions, then run the same command again."
            ) from None

    def get(self, spec_id: str, folder: Path) -> bool:
        """Fetch a run into a folder, its record last, and return False if there is none."""
        files, root = self._there
        there = f"{root}/{spec_id}"
        if not files.exists(f"{there}/{RECORD}"):
            return False
        make_folder(folder)
        names = sorted((Path(path).name for path in files.ls(there, detail=False)), key=lambda name: name == RECORD)
        for name in names:
            if not name.endswith(".part"):
                with files.open(f"{there}/{name}", "rb") as source, atomic_writer(folder / name) as target:
                    shutil.copyfileobj(source, target)
        return True

    def known(self) -> set[str]:
        """Ids of the runs that are there, finished or not, in one listing."""
        files, root = self._there
        files.invalidate_cache()
        return {Path(path).name for path in files.ls(root, detail=False)} if files.exists(root) else set()
