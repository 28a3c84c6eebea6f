"""Random generators that never touch the global random state."""

from __future__ import annotations

import torch

from gapscope.base.randomness import derive_seed


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
