"""Atomic files and standard JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shlex
import stat
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from gapscope.base.errors import DamagedFile, NotWritten, UnreadableFile
from gapscope.base.type_guards import is_dict, is_list_or_tuple


def standard_json(value: Any, *, null: bool = False) -> Any:
    """Return a value with None, or strings that `float` accepts, in place of NaN and infinities.

    Args:
        value: Numbers, texts, lists and dictionaries of these.
        null: Whether non-finite numbers become None; else they become strings.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if null:
            return None
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if is_dict(value):
        return {str(key): standard_json(item, null=null) for key, item in value.items()}
    if is_list_or_tuple(value):
        return [standard_json(item, null=null) for item in value]
    return value


def to_json(value: Any, *, indent: int | None = None, null: bool = False) -> str:
    """Return standard JSON (NaN and infinities are null, or strings that `float` accepts).

    >>> to_json({"a": float("-inf"), "b": (1, 2.5)})
    '{"a": "-Infinity", "b": [1, 2.5]}'
    """
    return json.dumps(standard_json(value, null=null), indent=indent, allow_nan=False)


@contextmanager
def atomic_writer(path: Path, *, durable: bool = True) -> Generator[BinaryIO]:
    """Open a temporary file for writing that replaces `path` at the end of the block.

    If interrupted (a kill, a full disk), `path` holds either its old content or the new one.

    Args:
        path: File to write; an existing one is replaced.
        durable: Whether to flush to the disk first, so that this also holds after a power failure (slower).

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
            f"{path} could not be written ({error.strerror or error}); its old content is untouched. "
            f"{_suggest_fix(error)}, then run the same command again."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # a folder without write access prevents this as well
            temporary.unlink(missing_ok=True)


def _suggest_fix(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make the folder writable or choose another one"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return "Create its folder, or correct the path"
    return "Free some space or choose another folder"


def make_folder(folder: Path) -> None:
    """Create a folder with its parents (raises NotWritten if impossible)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(
            f"Folder {folder} could not be created ({error.strerror or error}). Choose another folder."
        ) from None


def remove_file(path: Path) -> None:
    """Remove a file if it exists (raises NotWritten if impossible)."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NotWritten(
            f"{path} could not be removed ({error.strerror or error}). Remove it, then run the same command again."
        ) from None


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file (text as UTF-8, or bytes), see `atomic_writer`."""
    with atomic_writer(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_output(path: str | Path) -> Path:
    """Return the path of a file to write, or raise if it cannot be written there.

    Call this before the work whose result the file takes, so that no result is lost. Symbolic links, folders, pipes and
    devices are never replaced.

    Args:
        path: File to write; its folder must exist.

    Raises:
        NotWritten: The folder is missing or cannot be written, or the path is no regular file.
    """
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        state = "there is no such folder"
        if folder.exists():
            state = "it is a file"
        raise NotWritten(
            f"{path} needs the folder {folder}; {state}. Create the folder, or correct the path."
        )
    if path.is_symlink():
        raise NotWritten(
            f"{path} must be a regular file; it is a symbolic link. Pass the path of a file of its own."
        )
    if path.exists() and not path.is_file():
        kind = "a pipe or a device"
        if path.is_dir():
            kind = "a folder"
        raise NotWritten(f"{path} must be a regular file; it is {kind}. Pass the path of a file.")
    if not os.access(folder, os.W_OK):
        raise NotWritten(
            f"{path} cannot be written: its folder is read-only. Choose another folder."
        )
    return path


def write_output(path: str | Path, content: str | bytes) -> Path:
    """Write a file that the user named, atomically, and return its path (see `check_output`)."""
    path = check_output(path)
    write_atomically(path, content)
    return path


def check_file(path: Path) -> None:
    """Raise UnreadableFile for folders, pipes and devices."""
    if path.exists() and not path.is_file():
        raise UnreadableFile(
            f"{path} must be a file that can be read; it is a folder, a pipe or a device. Pass the path of a file."
        )


def _content(path: Path) -> bytes:
    """Read all bytes of a regular file (checked on the open file, so that pipes never block)."""
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            check_file(path)
        return file.read()


def _raise_unreadable(path: Path, error: OSError) -> NoReturn:
    check_file(path)
    raise UnreadableFile(
        f"{path} must be a file that can be read; reading it failed: {error.strerror or error}. Correct its "
        "permissions, or pass another path."
    ) from None


def as_word(text: str | Path) -> str:
    """Return a path or name as one word of a command that can be pasted into a shell."""
    return shlex.quote(str(text))


def read_json(path: Path, *, is_recreated: bool = False) -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        is_recreated: Whether gapscope writes the file again if it is missing, as in pools and caches.

    Raises:
        DamagedFile: It holds no JSON, for example because it is truncated.
        UnreadableFile: It is missing or cannot be read.
    """
    try:
        return json.loads(_content(path))
    except FileNotFoundError:
        raise UnreadableFile(
            f"{path} must be a JSON file; there is no such file. Check the path."
        ) from None
    except (ValueError, RecursionError) as error:
        advice = "Delete it to recreate it." if is_recreated else "Pass a file that gapscope wrote."
        raise DamagedFile(f"{path} must hold JSON; reading it failed: {error}. {advice}") from None
    except OSError as error:
        _raise_unreadable(path, error)


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the objects of a JSON-lines file, skipping an incomplete last line.

    Raises:
        DamagedFile: A line holds no JSON object.
        UnreadableFile: The file cannot be read.
    """
    try:
        content = _content(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _raise_unreadable(path, error)
    lines = content.split(b"\n")[:-1]
    with contextlib.suppress(ValueError, RecursionError):
        # all at once; the loop below names a wrong line
        items = json.loads(b"[" + b",".join(lines) + b"]")
        if len(items) == len(lines) and all(isinstance(item, dict) for item in items):
            yield from items
            return
    for line in lines:
        try:
            item = json.loads(line)
            reason = "no object"
        except (ValueError, RecursionError) as error:
            item = None
            reason = str(error)
        if not isinstance(item, dict):
            start = line[:60].decode("utf-8", errors="backslashreplace")
            raise DamagedFile(
                f"{path} must hold one JSON object per line; got {start!r} ({reason}). Delete the line."
            )
        yield item
