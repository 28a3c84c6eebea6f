"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def derive_seed(seed: int, purpose: str) -> int:
    """Return the 63-bit seed of the stream named `purpose`.

    >>> derive_seed(0, "order") == derive_seed(0, "order") != derive_seed(0, "dropout")
    True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def resolve_numpy_generator(generator: np.random.Generator | None) -> np.random.Generator:
    """Return `generator`, or for None a new one with seed 0."""
    import numpy as np

    if generator is None:
        return np.random.default_rng(0)
    return generator


@contextmanager
def kept_host_states() -> Generator[None]:
    """Restore the global random states of Python and NumPy after the body."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    state = None if numpy is None else numpy.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(state)
