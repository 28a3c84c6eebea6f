"""Sources of randomness that never touch the global one."""

from __future__ import annotations

import torch

from gapscope.base.randomness import stream_seed


def stream(seed: int, purpose: str) -> torch.Generator:
    """Return a generator that depends on the seed and on what it is for, so that no draw moves another.

    >>> stream(0, "blur").initial_seed() == stream(0, "blur").initial_seed() != stream(0, "labels").initial_seed()
    True
    """
    return torch.Generator().manual_seed(stream_seed(seed, purpose))


def given_or_fresh(generator: torch.Generator | None) -> torch.Generator:
    """Return `generator`, or a new one with a seed from the operating system where it is None."""
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return generator
