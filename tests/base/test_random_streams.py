from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gapscope.base.random_streams import make_generator, resolve_generator
from gapscope.base.randomness import resolve_numpy_generator
from gapscope.base.samples import Samples
from gapscope.data.corruptions import (
    add_target_noise,
    balanced_subset,
    flip_shift_rotate,
    inject_label_noise,
    motion_blur,
    subset,
)
from gapscope.networks.factory import build_network
from gapscope.theory.teacher_students import draw_teacher_task


def test_streams_differ_by_seed_and_by_purpose() -> None:
    draws = [
        torch.rand(1, generator=make_generator(seed, purpose)).item()
        for seed in (0, 1)
        for purpose in ("a", "b")
    ]
    assert len(set(draws)) == 4
    assert torch.rand(1, generator=make_generator(0, "a")).item() == draws[0]


def test_none_is_repeatable_and_leaves_the_global_state_alone() -> None:
    before = torch.get_rng_state()
    first, second = (torch.rand(4, generator=resolve_generator(None, "a")) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.rand(4, generator=resolve_generator(None, "b")))
    assert resolve_generator(None).initial_seed() == 0
    assert torch.equal(torch.get_rng_state(), before)
    mine = torch.Generator()
    assert resolve_generator(mine, "a") is mine


def test_numpy_follows_the_same_rule() -> None:
    first, second = (resolve_numpy_generator(None).standard_normal(3) for _ in range(2))
    assert (first == second).all()
    mine = np.random.default_rng(1)
    assert resolve_numpy_generator(mine) is mine


def _calls() -> dict[str, Callable[[], Any]]:
    """What takes a generator (measures have their own battery), called without one."""
    samples = Samples(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    images = torch.rand(3, 1, 8, 8, generator=make_generator(0, "test"))
    return {
        "initial weights": lambda: next(
            build_network("fully_connected", input_shape=(3,), n_outputs=2).parameters()
        ),
        "label noise": lambda: inject_label_noise(samples.targets, 0.5, 2),  # type: ignore[arg-type]
        "target noise": lambda: add_target_noise(samples.inputs, 1.0),
        "subset": lambda: subset(samples, 9).inputs,
        "balanced subset": lambda: balanced_subset(samples, 8, 2).inputs,
        "motion blur": lambda: motion_blur(images, 5),
        "augmentation": lambda: flip_shift_rotate(images),
        "teachers": lambda: torch.as_tensor(draw_teacher_task(0.5, n_inputs=6, students=2).inputs),
    }


@pytest.mark.parametrize("case", sorted(_calls()))
def test_no_generator_means_the_same_numbers_whatever_the_global_state(case: str) -> None:
    call = _calls()[case]
    values = []
    for seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            state = torch.get_rng_state()
            values.append(torch.as_tensor(call()).detach().clone())
            assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*values)
