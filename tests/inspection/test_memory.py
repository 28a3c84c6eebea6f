"""Memory that ends gives one message, from every verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError, OutOfMemory
from gapscope.inspection.memory import explained_memory, is_out_of_memory, requested_bytes

HUGE = 2**45  # bytes: more than any address space of the machines that run this


def _of_torch() -> None:
    torch.empty(HUGE, dtype=torch.uint8)


def _of_numpy() -> None:
    np.ones(2**55, dtype=np.uint8)


@pytest.mark.parametrize(("allocate", "size"), [(_of_torch, HUGE), (_of_numpy, 2**55)])
def test_real_allocations_that_fail_are_explained(allocate: Callable[[], None], size: int) -> None:
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        allocate()
    assert is_out_of_memory(raised.value) and requested_bytes(raised.value) == size
    with (
        pytest.raises(OutOfMemory, match=r"free\. Pass fewer rows\.") as explained,
        explained_memory("Pass fewer rows."),
    ):
        allocate()
    assert f"{size / 1e9:.1f} GB" in str(explained.value)
    assert isinstance(explained.value, MemoryError) and isinstance(explained.value, GapscopeError)


def test_sizes_in_the_words_of_torch_and_numpy() -> None:
    assert (
        requested_bytes(RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0"))
        == 20 * 2**30
    )
    assert requested_bytes(MemoryError("Unable to allocate 7.45 MiB for an array")) == int(
        7.45 * 2**20
    )
    assert requested_bytes(MemoryError()) is None


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes$") as raised, explained_memory():
        raise RuntimeError("shapes")
    assert not isinstance(raised.value, GapscopeError)


class _Exhausts(nn.Module):
    """A network whose forward pass of more samples than a limit needs more memory than there is."""

    def __init__(self, limit: int = 8) -> None:
        super().__init__()
        self.limit = limit
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.limit:
            torch.empty(HUGE, dtype=torch.uint8)
        return self.linear(x)


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def _train(x: Any, y: Any) -> nn.Module:
    _of_torch()
    return nn.Linear(3, 2)


VERBS: dict[str, Callable[[nn.Module], Any]] = {
    "forecast_accuracy": lambda network: gs.forecast_accuracy(network, _data()),
    "estimate_accuracy": lambda network: gs.estimate_accuracy(network, _data()),
    "find_label_issues": lambda network: gs.find_label_issues(network, _data()),
    "estimate_label_noise": lambda network: gs.estimate_label_noise(network, _data()),
    "out_of_sample": lambda network: gs.out_of_sample(network, _data()),
    "embed": lambda network: gs.embed(network, _data()),
}


@pytest.mark.parametrize("limit", [2, 8])  # the first pass runs 8 samples
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_memory_that_ends(verb: str, limit: int) -> None:
    with pytest.raises(OutOfMemory, match=r"GB was needed; .* GB are free\. Pass"):
        VERBS[verb](_Exhausts(limit))


def test_memory_that_ends_in_training_or_in_one_candidate_is_named() -> None:
    with pytest.raises(GapscopeError) as raised:
        gs.learning_curve(_train, _data())
    assert "memory" in f"{raised.value} {raised.value.__cause__}"
    ranking = gs.rank_networks({"large": _Exhausts(), "small": nn.Linear(3, 2)}, _data())
    assert "GB are free" in ranking.not_ranked["large"]


def test_checks_continue_without_those_that_need_too_much_memory() -> None:
    result = gs.check(_Exhausts(), _data())
    assert any("GB are free" in outcome.reason for outcome in result.not_checked)
