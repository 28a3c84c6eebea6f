"""Mirror of finished runs at a remote address, for clusters without a shared folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from gapscope.base.errors import InvalidInput, NotWritten
from gapscope.base.files import atomic_writer, make_folder
from gapscope.results.records import RECORD


class Mirror:
    """Finished runs at an fsspec address such as `s3://bucket/pool`, or in a folder.

    Args:
        address: Address of the folder, created if missing. Credentials come from where fsspec reads them (environment
            variables, files of the service), never from the address.

    Raises:
        InvalidInput: No file system has such an address, or the package for it is not installed.
    """

    def __init__(self, address: str) -> None:
        import fsspec

        self.address = address
        try:
            self._files, folder = fsspec.url_to_fs(address)
        except ImportError as error:
            raise InvalidInput(
                f"{address} needs a package that is not installed: {error}."
            ) from None
        except ValueError as error:
            raise InvalidInput(
                f"mirror must be an address for fsspec, such as 's3://bucket/pool'; got {address!r} ({error})."
            ) from None
        self._root = folder.rstrip("/")

    def put(self, folder: Path) -> None:
        """Copy a finished run, the record last, so that a partial copy has no record."""
        target = f"{self._root}/{folder.name}"
        files = self._files
        try:
            files.makedirs(target, exist_ok=True)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == RECORD):
                files.put_file(str(path), f"{target}/{path.name}.part")
                files.mv(f"{target}/{path.name}.part", f"{target}/{path.name}")
        except Exception as error:
            raise NotWritten(
                f"{self.address} must be writable; copying {folder.name} failed ({type(error).__name__}: {error}). "
                f"The network is saved in {folder}. Correct address or permissions, then run the same command again."
            ) from None

    def get(self, spec_id: str, folder: Path) -> bool:
        """Fetch a run into a folder, the record last, and return False if the mirror has none."""
        run = f"{self._root}/{spec_id}"
        files = self._files
        if not files.exists(f"{run}/{RECORD}"):
            return False
        make_folder(folder)
        names = sorted(
            (Path(path).name for path in files.ls(run, detail=False)),
            key=lambda name: name == RECORD,
        )
        for name in names:
            if not name.endswith(".part"):
                with (
                    files.open(f"{run}/{name}", "rb") as source,
                    atomic_writer(folder / name) as target,
                ):
                    shutil.copyfileobj(source, target)
        return True

    def list_ids(self) -> set[str]:
        """Return the ids of the runs in the mirror, including partial copies."""
        self._files.invalidate_cache()
        paths = ()
        if self._files.exists(self._root):
            paths = self._files.ls(self._root, detail=False)
        return {Path(path).name for path in paths}
