"""An HTTP server on this machine that serves a folder, and misbehaves on request."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gapscope.data.catalogue import SOURCES


def stated_as_official(monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> None:
    """Let the data set `name` ask for the files of `folder` as they are, whatever they hold."""
    source = SOURCES[name]
    assert source.origin is not None
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    files = tuple(
        replace(file, checksum=f"sha256:{sums[file.name]}") for file in source.origin.files
    )
    monkeypatch.setitem(SOURCES, name, replace(source, origin=replace(source.origin, files=files)))


@dataclass
class Server:
    """What a running server does, and what it was asked.

    Attributes:
        folder: The folder it serves.
        url: Its address.
        break_after: Bytes after which each of the next responses breaks off, one number per response.
        spoil: Whether it changes the last byte of every file.
        refuse: Status code to answer instead of sending anything.
        requests: The requested file names.
    """

    folder: Path
    url: str = ""
    break_after: list[int] = field(default_factory=list)
    spoil: bool = False
    refuse: int | None = None
    requests: list[str] = field(default_factory=list)


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            name = self.path.removeprefix("/")
            server.requests.append(name)
            path = server.folder / name
            self.close_connection = True
            if server.refuse or not path.is_file():
                self.send_error(server.refuse or 404)
                return
            content = path.read_bytes()
            if server.spoil:
                content = content[:-1] + bytes([content[-1] ^ 1])
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: server.break_after.pop(0) if server.break_after else None])

    return Handler


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve a folder on a free port of this machine while the body runs."""
    state = Server(folder)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
