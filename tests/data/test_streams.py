from __future__ import annotations

import torch

from gapscope.base.random_streams import given_or_fresh, stream


def test_streams_differ_by_seed_and_by_purpose() -> None:
    draws = [torch.rand(1, generator=stream(seed, purpose)).item() for seed in (0, 1) for purpose in ("a", "b")]
    assert len(set(draws)) == 4
    assert torch.rand(1, generator=stream(0, "a")).item() == draws[0]


def test_a_fresh_generator_leaves_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    first, second = (torch.rand(4, generator=given_or_fresh(None)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    mine = torch.Generator()
    assert given_or_fresh(mine) is mine
