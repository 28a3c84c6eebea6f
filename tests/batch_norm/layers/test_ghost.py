"""Ghost batch norm against torch's BatchNorm on every part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d, GhostBatchNorm2d


@settings(deadline=None, max_examples=25)
@given(n=st.integers(2, 23), ghost_size=st.integers(2, 9), channels=st.integers(1, 4), side=st.integers(1, 3))
def test_every_part_is_batch_normalized_by_itself(n: int, ghost_size: int, channels: int, side: int) -> None:
    h = torch.randn(n, channels, side, side, dtype=torch.float64)
    layer: Any = GhostBatchNorm2d(channels, ghost_size, momentum=1.0).double()
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    y = layer(h)
    parts = max(1, n // ghost_size)
    large, size = n % parts, n // parts
    block = torch.arange(large * (size + 1)), torch.arange(large * (size + 1), n)
    members = [block[0][i::large] for i in range(large)] + [block[1][i :: parts - large] for i in range(parts - large)]
    statistics = []
    for part in members:
        plain: Any = nn.BatchNorm2d(channels, momentum=1.0).double()
        plain.load_state_dict({**plain.state_dict(), "weight": layer.weight, "bias": layer.bias})
        torch.testing.assert_close(y[part], plain(h[part]))
        statistics.append(torch.stack([plain.running_mean, plain.running_var]))
        assert len(part) >= min(ghost_size, n)
    mean, variance = torch.stack(statistics).mean(0)
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, variance)
    assert layer.num_batches_tracked == 1


def test_one_part_is_batch_norm_itself() -> None:
    h = torch.randn(16, 3, dtype=torch.float64)
    ghost, plain = GhostBatchNorm1d(3, 16).double(), nn.BatchNorm1d(3).double()
    torch.testing.assert_close(ghost(h), plain(h))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ghost.state_dict()[name], value)
    plain.load_state_dict(ghost.state_dict())
    assert torch.equal(ghost.eval()(h), plain.eval()(h))


def test_parts_of_one_value_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 2 values per channel"):
        GhostBatchNorm1d(3, ghost_size=1)(torch.randn(8, 3))
    assert GhostBatchNorm2d(3, ghost_size=1)(torch.randn(8, 3, 2, 2)).isfinite().all()


@pytest.mark.parametrize(("n", "ghost_size"), [(1, 1), (1, 8), (4, 1), (4, 2), (5, 2), (7, 3)])
@pytest.mark.parametrize("of_inputs", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_gradient", [torch.contiguous_format, torch.channels_last])
def test_gradients_in_every_memory_format(
    n: int, ghost_size: int, of_inputs: torch.memory_format, of_gradient: torch.memory_format
) -> None:
    """Compare a single image in another memory format with the formula."""
    generator = torch.Generator().manual_seed(0)
    layer: Any = GhostBatchNorm2d(3, ghost_size, momentum=1.0).double()
    nn.init.uniform_(layer.weight)
    h, g = torch.randn(2, n, 3, 4, 4, dtype=torch.float64, generator=generator)
    h, g = h.contiguous(memory_format=of_inputs).requires_grad_(), g.contiguous(memory_format=of_gradient)
    found = torch.autograd.grad(layer(h), [h, layer.weight, layer.bias], g)

    parts = max(1, n // ghost_size)
    large = n % parts * (n // parts + 1)
    members = [list(range(large))[i :: n % parts] for i in range(n % parts)]
    members += [list(range(large, n))[i :: parts - n % parts] for i in range(parts - n % parts)]
    y = torch.zeros(n, 3, 4, 4, dtype=torch.float64)
    for part in members:
        values = h[part]
        centred = values - values.mean((0, 2, 3), keepdim=True)
        normalized = centred / (centred.square().mean((0, 2, 3), keepdim=True) + layer.eps).sqrt()
        y[part] = normalized * layer.weight[:, None, None] + layer.bias[:, None, None]
    expected = torch.autograd.grad(y, [h, layer.weight, layer.bias], g)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
