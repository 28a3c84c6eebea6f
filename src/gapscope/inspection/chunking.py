"""Number of samples per pass that fit into the free memory (its maximum: `DEFAULT_CHUNK_SIZE` in `outputs`).

Results do not depend on the number beyond rounding. It is a power of two, and its upper bound unless memory is short,
so that the same call uses the same chunks, and gives the same last bits, on all machines with enough memory.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Maximum of bytes per pass: on CPUs more samples at once are no faster, and the allocator retains the memory of a pass.
_PASS_BYTES = {"cpu": 2**27}


class PeakBytes(TorchDispatchMode):
    """Peak bytes of the tensors computed in its context (views count nothing)."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._current = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            self._add(leaf, computed=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._add(leaf, computed=True)
        return result

    def _add(self, leaf: Any, *, computed: bool) -> None:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
            return
        storage = leaf.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages.add(key)
            size = storage.nbytes() if computed else 0
            self._current += size
            self.peak = max(self.peak, self._current)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self._current -= size


# The memory is read again after this time: reading takes as long as a small network's forward pass.
_READING_SECONDS = 0.1


def free_bytes() -> int:
    """Return the memory that is available to this process on the CPU, at most `_READING_SECONDS` old."""
    return _read_free_on_cpu(int(time.monotonic() / _READING_SECONDS))


@lru_cache(maxsize=1)
def _read_free_on_cpu(moment: int) -> int:
    """Return the memory that the system reports as available (2 GiB if unknown)."""
    free = 2**31
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) * 1024
    elif "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    usage = Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and usage.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, max(0, int(text) - int(usage.read_text())))
    return free


def memory_budget(device: torch.device, at_most: int = 2**30) -> int:
    """Return a quarter of the free bytes, at most `at_most` and at least 1 MiB."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = free_bytes()
    # a quarter of the free memory: allocators, workspaces and other processes also need memory.
    return max(2**20, min(at_most, free // 4))


def peak_bytes(work: Callable[[], Any]) -> int:
    """Run `work` and return the peak bytes of its tensors, at least 1."""
    with PeakBytes() as memory:
        work()
    return max(1, memory.peak)


def rows_per_pass(
    chunk_size: int | None,
    one_row: Callable[[], Any],
    device: torch.device,
    *,
    two_rows: Callable[[], Any] | None = None,
    at_most: int = 2**31,
    bytes_at_most: int | None = None,
) -> int:
    """Return `chunk_size`, or if None the largest power of two of rows that fits.

    `one_row` and `two_rows` do the work for one row and for two, to measure its memory. Two rows separate the fixed
    memory of a pass from that per row; they run only if few rows seem to fit. `bytes_at_most` is by default 128 MiB on
    CPUs and 1 GiB elsewhere.
    """
    if chunk_size is not None:
        return chunk_size
    if bytes_at_most is None:
        bytes_at_most = _PASS_BYTES.get(device.type, 2**30)
    one_row_bytes = peak_bytes(one_row)
    n_rows = memory_budget(device, bytes_at_most) // one_row_bytes
    # if fewer rows seem to fit, a second trial separates the fixed memory of a pass from that per row.
    if two_rows is not None and n_rows < min(at_most, 128):
        # the first trial needs fixed + row bytes, the second fixed + 2 row bytes
        row_bytes = max(1, peak_bytes(two_rows) - one_row_bytes)
        available = memory_budget(device, 2**62) - max(0, one_row_bytes - row_bytes)
        n_rows = max(n_rows, min(bytes_at_most, available) // row_bytes)
    if n_rows >= at_most:
        return at_most
    return 1 << max(0, n_rows.bit_length() - 1)
