"""Files that exist whole or not at all, and JSON that every reader understands."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gapscope.base.errors import NotWritten, UnreadableFile


def _standard_json(value: Any) -> Any:
    """Non-finite numbers become the strings that float() reads back: JSON has no NaN and no infinity."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): _standard_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_standard_json(item) for item in value]
    return value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return standard JSON; NaN and infinities are written as strings that `float` reads back.

    >>> to_json({"a": float("-inf"), "b": (1, 2.5)})
    '{"a": "-Infinity", "b": [1, 2.5]}'
    """
    return json.dumps(_standard_json(value), indent=indent, allow_nan=False)


@contextmanager
def written_whole(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary name beside `path` for writing; at the end of the block it becomes `path`.

    Whatever happens (a kill, a full disk), `path` holds its old content or the new one, never a part.

    Args:
        path: The file to write; its folder must exist.
        durable: Whether to flush to the disk first, so that even a power cut leaves a whole file (slower).

    Yields:
        The open file.

    Raises:
        NotWritten: The disk is full or the folder cannot be written; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise NotWritten(
            f"{path} could not be written ({error.strerror or error}); what was there before is untouched. "
            "Free some space or choose another folder, then run the same command again."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write all of a file at once, see `written_whole`.

    Args:
        path: The file to write; its folder must exist.
        content: Text (written as UTF-8) or bytes.
        durable: Whether to flush to the disk first.

    Raises:
        NotWritten: The disk is full or the folder cannot be written; the old content is untouched.
    """
    with written_whole(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: The file.

    Returns:
        What the file holds.

    Raises:
        UnreadableFile: It is missing, or not JSON, for example truncated.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableFile(f"{path} must be a JSON file; there is no such file. Check the path.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path} must hold JSON; reading it failed: {error}. Delete it to make it anew.") from None


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the objects of a JSON-lines file; a last line cut off by a kill is left out."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n"):
            return
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise UnreadableFile(f"{path} must hold one JSON object a line; got {line[:60]!r} ({error}).") from None
