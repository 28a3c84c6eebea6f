"""Number of samples per pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gapscope.inspection import chunking
from gapscope.inspection.chunking import memory_budget, peak_bytes, rows_per_pass
from gapscope.inspection.outputs import DEFAULT_CHUNK_SIZE, network_outputs, samples_per_pass
from gapscope.measures.output_sensitivity import output_sensitivity

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: torch.zeros(10), 40),
        (lambda: torch.zeros(10) + 1, 80),  # both are there while the sum is formed
        (lambda: [torch.zeros(10).add(1).sum() for _ in range(50)], 80 + 49 * 4),
        (lambda: torch.zeros(10).view(5, 2).T, 40),
        (lambda: None, 1),
    ],
    ids=["one", "two", "freed on the way", "views", "nothing"],
)
def test_bytes_held_are_those_at_one_time(work, expected) -> None:
    assert peak_bytes(work) == expected


@pytest.mark.parametrize("gradients", [False, True])
def test_a_pass_with_gradients_holds_every_activation(gradients: bool) -> None:
    network = nn.Sequential(*[nn.Linear(100, 100) for _ in range(8)])
    x = torch.ones(16, 100)
    with torch.set_grad_enabled(gradients):
        held = peak_bytes(lambda: network(x))
    # without them: the input of a layer (not counted for the first, which was there before) and its output
    assert held == 16 * 100 * 4 * (8 if gradients else 2)


def test_a_budget_is_a_share_of_free_memory_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**20 <= memory_budget(CPU) <= 2**31
    monkeypatch.setattr(chunking, "free_bytes", lambda: 2**24)
    assert memory_budget(CPU) == 2**22
    assert memory_budget(CPU, 2**21) == 2**21
    monkeypatch.setattr(chunking, "free_bytes", lambda: 0)
    assert memory_budget(CPU) == 2**20


def test_rows_are_a_power_of_two_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "free_bytes", lambda: 2**22)  # a budget of 1 MiB
    assert rows_per_pass(None, lambda: torch.zeros(2**14), CPU) == 16
    assert rows_per_pass(None, lambda: torch.zeros(2**14 + 1), CPU) == 8
    assert rows_per_pass(None, lambda: torch.zeros(2**14), CPU, at_most=5) == 5
    assert rows_per_pass(None, lambda: torch.zeros(2**20), CPU) == 1
    assert rows_per_pass(3, lambda: pytest.fail("no trial where the caller says"), CPU) == 3


def test_what_a_pass_holds_once_does_not_count_for_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunking, "free_bytes", lambda: 2**40)

    def rows(n: int) -> Callable[[], object]:
        # 128 MiB of its own, and 4 MiB a row
        return lambda: (
            torch.zeros(2**25),
            torch.zeros(n, 2**20),
        )

    assert rows_per_pass(None, rows(1), CPU) == 1
    assert rows_per_pass(None, rows(1), CPU, two_rows=rows(2)) == 32
    # 144 MiB: 16 left for rows
    monkeypatch.setattr(chunking, "free_bytes", lambda: 2**29 + 4 * 2**24)
    assert rows_per_pass(None, rows(1), CPU, two_rows=rows(2)) == 4
    small = lambda: torch.zeros(2**18)  # noqa: E731
    assert (
        rows_per_pass(
            None, small, CPU, two_rows=lambda: pytest.fail("no second trial of many rows")
        )
        == 128
    )


class Seen(list[int]):
    """Record that is no plain list, and so is not restored with a network's attributes."""


class Counting(nn.Module):
    """A wide layer that counts the samples of every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1000, 2000)
        self.seen = Seen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.layer(x)


def test_large_inputs_pay_one_sample_and_scarce_memory_makes_small_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, x = Counting(), torch.randn(600, 1000, generator=torch.Generator().manual_seed(0))
    plenty = network_outputs(network, x)
    assert network.seen == [1, 512, 88]
    monkeypatch.setattr(chunking, "free_bytes", lambda: 2**22)
    network.seen.clear()
    scarce = network_outputs(network, x)  # 8,000 bytes per sample: 131 of them, so 128
    assert network.seen == [1, 128, 128, 128, 128, 88]
    torch.testing.assert_close(plenty, scarce)
    network.seen.clear()
    output_sensitivity(network, x)
    network.seen.clear()
    first = output_sensitivity(network, x)
    # That samples are alone was looked at in the call before, and is remembered.
    assert network.seen == [1, *[128, 128, 128, 128, 88] * 2]
    assert float(first) == pytest.approx(
        float(output_sensitivity(network, x, chunk_size=600)), rel=1e-5
    )


def test_token_ids_are_few_only_where_they_are_very_few() -> None:
    network, seen = nn.Embedding(10, 4), []
    ids = torch.zeros(40, 16, dtype=torch.int64)
    assert samples_per_pass(network, ids[:16], None, one_pass=seen.append) == DEFAULT_CHUNK_SIZE
    assert not seen
    assert samples_per_pass(network, ids, None, one_pass=seen.append) == DEFAULT_CHUNK_SIZE
    assert [len(part) for part in seen] == [1]


def test_of_a_large_network_few_samples_pay_a_trial_too() -> None:
    network, seen = nn.Linear(1000, 2000), []
    samples_per_pass(network, torch.ones(20, 1000), None, one_pass=seen.append)
    assert [len(part) for part in seen] == [1]
    samples_per_pass(network, torch.ones(16, 1000), None, one_pass=seen.append)
    samples_per_pass(nn.Linear(1000, 20), torch.ones(20, 1000), None, one_pass=seen.append)
    assert len(seen) == 1


def test_the_trial_leaves_the_inputs_alone() -> None:
    x = -torch.ones(300, 1000)
    samples_per_pass(nn.ReLU(inplace=True), x, None)
    assert bool((x == -1).all())
