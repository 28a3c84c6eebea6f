"""A headless Chromium driven through chromedriver's plain HTTP interface: only the standard library."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)


def missing() -> str:
    """Why no browser can be driven here, or an empty string."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


class Browser:
    """One browser session."""

    def __init__(self, address: str, profile: str) -> None:
        self.address = address
        options = {
            "args": [*FLAGS.split(), f"--user-data-dir={profile}"],
            "binary": shutil.which("chromium"),
        }
        expected = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        started = self._send("POST", "/session", {"capabilities": {"alwaysMatch": expected}})
        self.session = f"/session/{started['sessionId']}"

    def _send(self, method: str, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            self.address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run one DevTools command."""
        return self._send(
            "POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters}
        )

    def show(
        self, path: Path, *, width: int, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Open a file in a window of exactly this width."""
        phone = width < 600
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.devtools("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._send("POST", f"{self.session}/url", {"url": path.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """Run JavaScript in the page and return what it returns."""
        return self._send("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Return the console messages since the last call."""
        lines = self._send("POST", f"{self.session}/se/log", {"type": "browser"})
        return [f"{line['level']}: {line['message']}" for line in lines]

    def close(self) -> None:
        """End the session."""
        self._send("DELETE", self.session)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that is gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--log-level=OFF"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            session = Browser(f"http://127.0.0.1:{port}", profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            driver.terminate()
            driver.wait(20)


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("chromedriver did not start")
