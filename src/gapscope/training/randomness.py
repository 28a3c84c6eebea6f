"""Random state of a training run, saved in checkpoints and restored for the caller."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import numpy
import torch
from torch import Tensor

from gapscope.inspection.execution import exclusive
from gapscope.inspection.restoring import preserve_rng_state


@contextmanager
def _deterministic_kernels() -> Iterator[None]:
    deterministic = torch.backends.cudnn.deterministic
    benchmark = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        yield
    finally:
        torch.backends.cudnn.deterministic = deterministic
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def reproducible(device: torch.device, seed: int) -> Iterator[None]:
    """Seed all global random streams and use deterministic kernels in the body."""
    with (
        exclusive(),
        _deterministic_kernels(),
        preserve_rng_state(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        # torch.manual_seed would take a millisecond: it records the stack for devices that have not started
        (torch.default_generator if device.type == "cpu" else torch).manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        yield


def host_random_states() -> dict[str, Tensor]:
    """Return the states of the global random streams on the CPU, as tensors."""
    version, python, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast(
        "tuple[str, numpy.ndarray, int, int, float]", numpy.random.get_state()
    )
    assert version == 3 and kind == "MT19937"
    return {
        "random.cpu": torch.get_rng_state(),
        "random.python": torch.tensor(python, dtype=torch.int64),
        "random.python.gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "random.numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        "random.numpy.gauss": torch.tensor([cached], dtype=torch.float64),
    }


def set_host_random_states(states: Mapping[str, Tensor]) -> None:
    """Set what `host_random_states` returned."""
    torch.set_rng_state(states["random.cpu"])
    gauss = states["random.python.gauss"].tolist()
    random.setstate((3, tuple(states["random.python"].tolist()), gauss[0] if gauss else None))
    *keys, position, has_gauss = states["random.numpy"].tolist()
    cached = float(states["random.numpy.gauss"])
    numpy.random.set_state(
        ("MT19937", numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached)
    )


class RngState:
    """Random state of one run, which the global streams have in the body of `active`."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        with reproducible(device, seed):
            self._states = self._read()

    def _read(self) -> dict[str, Tensor]:
        cuda = {}
        if self.device.type == "cuda":
            cuda = {"random.cuda": torch.cuda.get_rng_state(self.device)}
        return host_random_states() | cuda

    @contextmanager
    def active(self) -> Iterator[None]:
        """Give the global streams this state, and store how far the body advances it."""
        with reproducible(self.device, 0):
            set_host_random_states(self._states)
            if "random.cuda" in self._states:
                torch.cuda.set_rng_state(self._states["random.cuda"], self.device)
            try:
                yield
            finally:
                self._states = self._read()
