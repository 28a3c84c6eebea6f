"""Sources of randomness that never touch the global one."""

from __future__ import annotations

import torch

from gapscope.base.randomness import derive_seed


def make_generator(seed: int, purpose: str) -> torch.Generator:
    """Return a generator that depends on the seed and on what it is for, so that no draw moves another.

    >>> blur, again, labels = (make_generator(0, name).initial_seed() for name in ("blur", "blur", "labels"))
    >>> blur == again != labels
    True
    """
    return torch.Generator().manual_seed(derive_seed(seed, purpose))


def resolve_generator(
    generator: torch.Generator | None, purpose: str = "", device: torch.device | str = "cpu"
) -> torch.Generator:
    """Return `generator`, or where it is None a new one with a fixed seed: the one meaning of `generator=None`.

    The same call gives the same numbers, always: no function of gapscope draws from the global random state or from
    the operating system. Whoever wants other numbers passes a generator, or a seed to a front door (`measure`,
    `compare`, `rank_architectures`, `advise_batch_norm`, `train`, a monitor or a penalty); one that was seeded by
    `generator.seed()` gives fresh ones.

    Args:
        generator: What the caller passed.
        purpose: What is drawn, so that draws for one purpose never repeat those for another; seed 0 itself if empty.
        device: Where a new generator draws.

    Returns:
        The generator.

    >>> resolve_generator(None, "blur").initial_seed() == resolve_generator(None, "blur").initial_seed()
    True
    """
    if generator is not None:
        return generator
    return torch.Generator(device).manual_seed(derive_seed(0, purpose) if purpose else 0)
