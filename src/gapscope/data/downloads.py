"""Download of official files: verified by checksum, resumed after an interruption.

Checksums are pooch's; its downloader begins again after every break, and leaves temporary files where it is killed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gapscope.base.errors import GapscopeError, InvalidInput, UnreadableFile
from gapscope.base.files import write_atomically

Progress = Callable[[str, int, int | None], None]

_MOST_BYTES = 2**30
_CHUNK_BYTES = 2**16
_FRUITLESS_ATTEMPTS = 3
_TIMEOUT_SECONDS = (10.0, 60.0)
_ANSWER_SECONDS = 60.0
_SLOW_SECONDS = 60.0
_LEAST_BYTES = 2**14


@dataclass(frozen=True)
class RemoteFile:
    """One file on a server.

    Attributes:
        name: Its name there, and here.
        checksum: "md5:..." or "sha256:...".
        members: For a tar.gz archive the files to take out of it, by their names inside; the archive is not kept.
    """

    name: str
    checksum: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class Origin:
    """Where the official files of a data set are: each at `base_url`/`name`."""

    base_url: str
    files: tuple[RemoteFile, ...]


class _ConnectionLost(Exception):
    """The connection failed or ended early; another attempt may continue."""


class _Download:
    """One file on its way, kept as `<name>.part` from one attempt to the next (pooch would begin again)."""

    def __init__(self, url: str, part: Path, progress: Progress | None, pause: float) -> None:
        self.url, self.part, self.progress, self.pause = url, part, progress, pause

    def run(self) -> None:
        """Ask for the file until all of it is here, or three attempts in a row brought next to nothing.

        Raises:
            GapscopeError: The server refuses, is silent, or breaks off again and again.
        """
        if self.part.is_symlink():  # what it points to is not ours to write
            self.part.unlink()
        fruitless, most = 0, self._arrived()
        while True:
            try:
                self._receive()
                return
            except _ConnectionLost as error:
                # an attempt counts by what it adds to the best one: a server that cannot resume may break off for ever
                fruitless = 0 if self._arrived() >= most + _LEAST_BYTES else fruitless + 1
                most = max(most, self._arrived())
                if fruitless == _FRUITLESS_ATTEMPTS:
                    raise GapscopeError(
                        f"The download of {self.url} broke off after {self._arrived():,} bytes ({error}); what arrived "
                        "is kept. Run the same command again to continue, or name another server with --base-url."
                    ) from None
                time.sleep(self.pause)

    def _arrived(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _answer(self, headers: dict[str, str]) -> Any:
        """The server's answer; time-outs of sockets start again with every byte of a header, so that a thread waits."""
        import requests

        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(requests.get(self.url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS))
            except Exception as error:
                answers.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        if not answers:
            raise _ConnectionLost(f"no answer in {_ANSWER_SECONDS:g} seconds")
        if type(answers[0]) is ValueError:  # a redirect to what is no address at all
            raise _ConnectionLost(str(answers[0]))
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _receive(self) -> None:
        """Ask once for what is still missing and append it."""
        import requests
        import urllib3

        offset = self._arrived()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        try:
            with self._answer(headers) as response:
                # 416: the server has nothing beyond what is here. Whether that is the whole file the checksum tells.
                if offset and response.status_code == 416:
                    return
                if not response.ok:
                    raise GapscopeError(
                        f"{self.url} must send a file; it answered {response.status_code} {response.reason}. "
                        "Name another server with --base-url."
                    )
                self._append(response, offset)
        except (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
            raise _ConnectionLost(type(error).__name__) from None

    def _append(self, response: Any, offset: int) -> None:
        if response.status_code != 206:
            offset = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
            self.part.unlink(missing_ok=True)
            raise _ConnectionLost("the server sent another range than was asked for")
        length = response.headers.get("Content-Length", "")
        total = offset + int(length) if length.isdecimal() else None
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | (os.O_APPEND if offset else os.O_TRUNC)
        with os.fdopen(os.open(self.part, flags, 0o666), "ab" if offset else "wb") as file:
            for chunk in _read_with_timeout(response.raw):
                offset += file.write(chunk)
                if offset > _MOST_BYTES:
                    break
                if self.progress:
                    self.progress(self.part.name.removesuffix(".part"), offset, total)
        if offset > _MOST_BYTES:
            self.part.unlink()
            raise GapscopeError(
                f"{response.url} must send at most {_MOST_BYTES:,} bytes; it sends more. "
                "Name another server with --base-url."
            )


def _read_with_timeout(stream: Any) -> Iterator[bytes]:
    """Bytes as they arrive; a server that sends next to nothing for a while is given up."""
    since, arrived = time.monotonic(), 0
    while chunk := stream.read1(_CHUNK_BYTES, decode_content=False):
        yield chunk
        arrived += len(chunk)
        if time.monotonic() - since > _SLOW_SECONDS:
            if arrived < _LEAST_BYTES:
                raise _ConnectionLost(f"fewer than {_LEAST_BYTES:,} bytes in {_SLOW_SECONDS:g} seconds")
            since, arrived = time.monotonic(), 0


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Let one process at a time work on a file; others wait."""
    import filelock

    name = path.with_name(f".{path.name}.lock")
    with filelock.FileLock(name):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                name.unlink()


def _extract(archive: Path, members: tuple[str, ...], folder: Path) -> None:
    """Take the named regular files out of a tar.gz archive, whatever else is in it."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for item in tar:
                if item.name in missing and item.isreg() and item.size <= _MOST_BYTES:
                    content = tar.extractfile(item)
                    assert content is not None
                    write_atomically(folder / PurePosixPath(item.name).name, content.read())
                    missing.remove(item.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise UnreadableFile(f"{archive} must be a tar.gz archive; unpacking it failed: {error}. Delete it.") from None
    if missing:
        raise UnreadableFile(f"{archive} must hold {', '.join(sorted(missing))} as regular files; it does not.")


def _is_official(path: Path, file: RemoteFile) -> bool:
    import pooch

    return path.is_file() and bool(pooch.hashes.hash_matches(path, file.checksum))


def _fetch_file(file: RemoteFile, folder: Path, base_url: str, progress: Progress | None, pause: float) -> list[Path]:
    members = [folder / PurePosixPath(member).name for member in file.members]
    path, url = folder / file.name, f"{base_url.rstrip('/')}/{file.name}"
    with _file_lock(path):
        if members and all(member.is_file() for member in members):
            return members
        if not _is_official(path, file):
            part = path.with_name(f"{file.name}.part")
            goes_on = part.exists()
            _Download(url, part, progress, pause).run()
            if goes_on and not _is_official(part, file):  # what was there may have been another server's garbage
                part.unlink()
                _Download(url, part, progress, pause).run()
            if not _is_official(part, file):
                part.unlink()
                raise UnreadableFile(
                    f"{url} must have the checksum {file.checksum}; what it sent has another, and was deleted. "
                    "Run the same command again, or name another server with --base-url."
                )
            part.replace(path)
        if not members:
            return [path]
        _extract(path, file.members, folder)
        path.unlink()
        return members


def download(
    origin: Origin,
    folder: Path,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
    pause: float = 1.0,
) -> list[Path]:
    """Return the paths of the files of an origin, fetching those that are not there or fail their checksum.

    A file appears under its name only after its checksum held. What arrived of a broken download is kept beside it as
    `<name>.part`; after a pause the download continues from there, and so does a later call. It is given up when three
    attempts in a row brought next to nothing, or hardly anything arrives for a minute. Of two calls at once one waits.

    Args:
        origin: What to fetch from where.
        folder: Where to put it; made if it does not exist.
        base_url: Another server that holds the same files.
        progress: Called with the file's name, the bytes that have arrived, and all bytes (None where unknown).
        pause: Seconds before another attempt.

    Returns:
        The files, for an archive those taken out of it.

    Raises:
        UnreadableFile: The bytes that arrived have another checksum; they are deleted.
        InvalidInput: base_url is no address of a server.
        GapscopeError: The server cannot be reached or refuses, or the folder cannot be written.
    """
    base_url = origin.base_url if base_url is None else base_url
    if not base_url.startswith(("http://", "https://")):
        raise InvalidInput(f"base_url must begin with http:// or https://; got {base_url!r}.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths: list[Path] = []
        for file in origin.files:
            paths += _fetch_file(file, folder, base_url, progress, pause)
    except GapscopeError:
        raise
    except OSError as error:
        raise GapscopeError(
            f"{folder} must be a folder that can be written; writing failed ({error.strerror or error}). "
            "Free some space or name another data root, then run the same command again."
        ) from None
    return paths
