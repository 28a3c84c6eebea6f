"""Memory that ends: one message in place of the errors of torch, NumPy and Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gapscope.base.errors import GapscopeError, OutOfMemory
from gapscope.inspection.chunking import free_bytes

# Parts of the messages of torch on CPUs and on other devices, of C++ and of CUDA's libraries.
_TEXTS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "bad_alloc",
    "alloc_failed",
)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
# Advice of functions with these parameters.
FEWER_LANDMARKS = "Pass fewer samples or columns, or smaller landmarks= or chunk_size=."
_SIZE = re.compile(r"allocate ([\d.]+) ?(?:bytes|([KMGTP])i?B)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is that of memory that ended, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _TEXTS)


def requested_bytes(error: BaseException) -> int | None:
    """Return the bytes that could not be allocated, None if the error does not name them.

    >>> requested_bytes(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes."))
    8000
    """
    match = _SIZE.search(str(error))
    if match is None:
        return None
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def memory_message(error: BaseException, advice: str) -> str:
    """Return what was needed, what is free, and what to do."""
    size = requested_bytes(error)
    free = free_bytes() / 1e9
    if size is None:
        needed = "More"
    else:
        needed = f"A single array of {size / 1e9:.1f} GB"
    return (
        f"The memory of this machine is full. {needed} was needed; {free:.1f} GB are free. {advice}"
    )


@contextmanager
def explained_memory(advice: str = "Pass fewer samples or columns.") -> Iterator[None]:
    """Raise OutOfMemory in place of an error of memory that ended.

    Args:
        advice: What to do, in one sentence.

    Raises:
        OutOfMemory: Memory ended in the body.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, GapscopeError) or not is_out_of_memory(error):
            raise
        raise OutOfMemory(memory_message(error, advice)) from error
