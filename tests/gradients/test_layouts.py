from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gapscope.gradients.layouts import Layout, Tokens, Windows


def _check_adjoint(layout: Layout, inputs: Tensor) -> None:
    """<unfold(x), y> is affine in x with slope fold(y)."""
    columns = layout.unfold(inputs)
    other = torch.randn_like(columns)
    step = torch.randn_like(inputs)
    by_inputs = layout.fold(other, inputs)
    assert by_inputs.shape == inputs.shape
    expected = ((layout.unfold(inputs + step) - columns) * other).sum()
    torch.testing.assert_close((by_inputs * step).sum(), expected, rtol=1e-10, atol=1e-10)
    if layout.ones:
        assert bool((columns[:, -1] == 1).all())


settings_of_windows = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(settings_of_windows, min_size=1, max_size=3), st.booleans(), st.integers(0, 2))
def test_windows(dims: list[tuple[int, int, int]], ones: bool, extra: int) -> None:
    kernel, stride, dilation = zip(*dims, strict=True)
    space = [(k - 1) * d + 1 + extra for k, d in zip(kernel, dilation, strict=True)]
    inputs = torch.randn(2, 3, *space, dtype=torch.float64)
    layout = Windows(ones, kernel, stride, dilation)
    _check_adjoint(layout, inputs)
    if len(dims) == 2:
        expected = F.unfold(inputs, kernel, dilation, 0, stride)
        torch.testing.assert_close(layout.unfold(inputs)[:, : expected.shape[1]], expected, rtol=0, atol=0)


def test_windows_of_channels_last_memory() -> None:
    inputs = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    columns = Windows(False, (3, 3), (1, 1), (1, 1)).unfold(inputs)
    torch.testing.assert_close(columns, F.unfold(inputs, 3), rtol=0, atol=0)


def test_tokens() -> None:
    for ones in (False, True):
        _check_adjoint(Tokens(ones), torch.randn(3, 2, 2, 4, dtype=torch.float64))
        _check_adjoint(Tokens(ones), torch.randn(3, 4, dtype=torch.float64))


def test_columns_are_differentiable() -> None:
    inputs = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    layout = Windows(True, (2,), (2,), (1,))
    assert torch.autograd.gradcheck(layout.columns, (inputs,))
