"""Standard streams whose reader may leave early, such as `head`: the command goes on in silence."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from gapscope.base.errors import NotWritten


class TolerantStream:
    """Stream that discards what is written after its reader has left.

    Work that is under way continues, and the exit status is that of the command.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, or discard it if nothing reads it (raises NotWritten if the disk is full)."""
        if text == "":
            return 0  # typer finds out by it whether the stream takes text, and would swallow the error
        try:
            return self._stream.write(text)
        except OSError as error:
            self._discard(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered, or discard it if nothing reads it (raises NotWritten if the disk is full)."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        # what is still buffered goes there as well, at the latest when the interpreter ends
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise NotWritten(
                f"The output could not be written ({error.strerror}). Send it elsewhere."
            ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def tolerate_closed_streams() -> None:
    """Replace standard output and standard error by a `TolerantStream`; a stream that is closed discards everything."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # closed by the shell: `>&-`
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        setattr(sys, name, TolerantStream(stream))
