"""Standard output whose reader may leave early, such as `head`: the command goes on in silence."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO


class TolerantStream:
    """Stream that discards what is written after its reader has left.

    Work that is under way continues, and the exit status is that of the command.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, or discard it if nothing reads it."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Write what is buffered, or discard it if nothing reads it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._discard()

    def _discard(self) -> None:
        # what is still buffered goes there as well, at the latest when the interpreter ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerate_closed_output() -> None:
    """Replace standard output by a `TolerantStream`."""
    stream: Any = TolerantStream(sys.stdout)
    sys.stdout = stream
