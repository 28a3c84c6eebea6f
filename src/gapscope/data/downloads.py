"""Download of official files by pooch, retried twice, verified by checksum."""

from __future__ import annotations

import http.client
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gapscope.base.errors import GapscopeError, InvalidInput, UnreadableFile
from gapscope.base.files import write_atomically
from gapscope.data.file_formats import MAX_BYTES

Progress = Callable[[str, int, int | None], None]

# of a read
_CHUNK_BYTES = 2**16
# without a byte
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class RemoteFile:
    """One file on a server."""

    name: str
    checksum: str  # "md5:..." or "sha256:..."
    members: tuple[str, ...] = ()  # files to extract from a tar.gz archive, which is then deleted


@dataclass(frozen=True)
class Origin:
    """Official files of a data set, each at `base_url`/`name`."""

    base_url: str
    files: tuple[RemoteFile, ...]


class _ProgressBar:
    """Progress bar for pooch that also limits the size of a file."""

    def __init__(self, name: str, progress: Progress | None) -> None:
        self.name = name
        self.progress = progress
        self.total = 0
        self.received = 0

    def update(self, size: int) -> None:
        self.received += size
        if self.received > MAX_BYTES + _CHUNK_BYTES:
            raise GapscopeError(
                f"Got more than {MAX_BYTES:,} bytes of {self.name}; the official file is smaller. "
                "Name another server with --base-url."
            )
        if self.progress:
            # pooch counts complete chunks, also for the last one
            self.progress(
                self.name, min(self.received, self.total or self.received), self.total or None
            )

    def reset(self) -> None:
        self.received = 0

    def close(self) -> None:
        pass


def _fetch_file(file: RemoteFile, folder: Path, base_url: str, progress: Progress | None) -> Path:
    """Return the path of one file, downloaded unless it exists with the right checksum."""
    import pooch

    def receive(url: str, path: str, downloads: Any) -> None:
        bar: Any = _ProgressBar(file.name, progress)
        http_downloader = pooch.HTTPDownloader(
            progressbar=bar,
            chunk_size=_CHUNK_BYTES,
            timeout=_TIMEOUT_SECONDS,
            headers={"Accept-Encoding": "identity"},
        )
        http_downloader(url, path, downloads)

    downloader: Any = receive
    pooch.get_logger().setLevel("WARNING")
    server = pooch.create(
        folder,
        f"{base_url.rstrip('/')}/",
        registry={file.name: file.checksum},
        retry_if_failed=2,  # after a dropped connection
    )
    try:
        return Path(server.fetch(file.name, downloader=downloader))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if "does not match the known hash" in str(error):
            raise UnreadableFile(
                f"{server.get_url(file.name)} must have the checksum {file.checksum}; the received file has another "
                "and was deleted. Run the same command again, or name another server with --base-url."
            ) from None
        raise GapscopeError(
            f"Downloading {server.get_url(file.name)} to {folder} failed ({error}). Check the connection and the "
            "folder, then run the same command again, or name another server with --base-url."
        ) from None


def _extract(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    """Extract only `members` of a tar.gz archive, which must be regular files."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for item in tar:
                if item.name in missing and item.isreg() and item.size <= MAX_BYTES:
                    content = tar.extractfile(item)
                    assert content is not None
                    write_atomically(folder / PurePosixPath(item.name).name, content.read())
                    missing.remove(item.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UnreadableFile(
            f"{archive} must be a tar.gz archive; unpacking it failed: {error}. Delete it."
        ) from None
    if missing:
        raise UnreadableFile(
            f"{archive} must hold the regular files {', '.join(sorted(missing))}; they are missing."
        )


def download(
    origin: Origin, folder: Path, *, base_url: str | None = None, progress: Progress | None = None
) -> list[Path]:
    """Return the paths of an origin's files, downloading and extracting missing ones."""
    if base_url is None:
        base_url = origin.base_url
    if not base_url.startswith(("http://", "https://")):
        raise InvalidInput(f"base_url must begin with http:// or https://; got {base_url!r}.")
    paths: list[Path] = []
    for file in origin.files:
        members = [folder / PurePosixPath(member).name for member in file.members]
        if members and all(member.is_file() for member in members):
            paths += members
            continue
        path = _fetch_file(file, folder, base_url, progress)
        if members:
            _extract(path, file.members, folder)
            path.unlink(missing_ok=True)
        paths += members or [path]
    return paths
