"""Random generators that never touch the global random state."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from gapscope.base.randomness import derive_seed, kept_host_states


def make_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator for a seed and purpose, independent of other purposes.

    >>> blur, again, labels = (make_generator(0, name).initial_seed() for name in ("blur", "blur", "labels"))
    >>> blur == again != labels
    True
    """
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


def resolve_generator(
    generator: torch.Generator | None, purpose: str = "", device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return `generator`, or for None a new one with a fixed seed.

    The same call always gives the same numbers: gapscope uses neither the global random state nor the operating
    system's. For other numbers pass a generator, or a seed to a public function. Streams of different purposes are
    independent; an empty purpose is seed 0.

    >>> resolve_generator(None, "blur").initial_seed() == resolve_generator(None, "blur").initial_seed()
    True
    """
    if generator is not None:
        return generator
    return torch.Generator(device).manual_seed(derive_seed(0, purpose) if purpose else 0)


@contextmanager
def kept_random_states(*generators: torch.Generator | None) -> Generator[None]:
    """Restore the global random states of torch (CPU and CUDA), NumPy and Python, and those of generators, at the end.

    Networks and data sets of users draw from any of them.
    """
    cpu = torch.get_rng_state()
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
    else:
        cuda = []
    own = [(each, each.get_state()) for each in generators if each is not None]
    try:
        with kept_host_states():
            yield
    finally:
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for each, state in own:
            each.set_state(state)
