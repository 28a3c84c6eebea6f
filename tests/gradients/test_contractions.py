"""Parts of layer-wise gradients against their definitions: contractions, layouts, grouped convolutions, statistics."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gapscope.gradients import square_norms
from gapscope.gradients.contractions import (
    ORDERS,
    KernelSide,
    cheapest_order,
    gram_matrix,
    kernel_block,
    kernel_block_gradient,
    traced_block,
)
from gapscope.gradients.frozen_batch_stats import statistics_of
from gapscope.gradients.layouts import Layout, Tokens, Windows
from gapscope.gradients.square_norms import jacobian_square_norms


def _side(c: int, n: int, o: int, k: int, t: int, seed: int) -> KernelSide:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(n, k, t, generator=generator, dtype=torch.float64)
    return KernelSide(columns, torch.randn(c, n, o, t, generator=generator, dtype=torch.float64))


def _jacobian(side: KernelSide) -> Tensor:
    return torch.einsum("cnot,nkt->ncok", side.gradients, side.columns)


sizes = st.tuples(*(st.integers(1, 5) for _ in range(5)))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 30))
def test_every_order_gives_the_kernel(
    size: tuple[int, int, int, int, int], d: int, m: int, s: int, floats: int
) -> None:
    c, n, o, k, t = size
    first, second = _side(c, n, o, k, t, 0), _side(d, m, o, k, s, 1)
    expected = torch.einsum("ncok,mdok->ncmd", _jacobian(first), _jacobian(second))
    for order in ORDERS.values():
        torch.testing.assert_close(order(first, second, floats), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kernel_block(first, second, floats), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 5), st.integers(1, 5), st.integers(1, 200))
def test_traced_block(size: tuple[int, int, int, int, int], m: int, s: int, floats: int) -> None:
    c, n, o, k, t = size
    first, second = _side(c, n, o, k, t, 0), _side(c, m, o, k, s, 1)
    expected = torch.einsum("ncok,mcok->nm", _jacobian(first), _jacobian(second))
    torch.testing.assert_close(traced_block(first, second, floats), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(sizes)
def test_gradient_of_a_weighted_kernel(size: tuple[int, int, int, int, int]) -> None:
    c, n, *_ = size
    side = _side(*size, 0)
    weights = torch.randn(n * c, n * c, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights = (weights + weights.T).view(n, c, n, c)
    leaves = side.columns.clone().requires_grad_(), side.gradients.clone().requires_grad_()
    jacobian = _jacobian(KernelSide(*leaves))
    expected = torch.autograd.grad((torch.einsum("ncok,mdok->ncmd", jacobian, jacobian) * weights).sum(), leaves)
    for given_, right in zip(kernel_block_gradient(side, weights, by_columns=True), expected, strict=True):
        torch.testing.assert_close(given_, right, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("c", "n", "o", "k", "t", "order"),
    [
        (10, 32, 120, 401, 1, "gram"),  # a fully connected layer
        (10, 32, 6, 26, 784, "explicit"),  # the first convolution of a small network: T^2 would be gigabytes
        (10, 2, 512, 4609, 4, "gram"),  # a late convolution of a large one
        (200, 8, 64, 577, 64, "mixed"),  # many outputs
    ],
)
def test_the_cheapest_order_is_taken(c: int, n: int, o: int, k: int, t: int, order: str) -> None:
    side = KernelSide(torch.empty(n, k, t, device="meta"), torch.empty(c, n, o, t, device="meta"))
    assert cheapest_order(side, side) == order


def test_temporaries_bound_the_order() -> None:
    side = _side(2, 2, 6, 40, 3, 0)
    assert cheapest_order(side, side, 10**6) == "gram"
    assert cheapest_order(side, side, 10) == "explicit"


def test_gram_matrix_of_many_rows() -> None:
    rows = torch.randn(1001, 513, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gram_matrix(rows), rows @ rows.T, rtol=1e-12, atol=1e-11)


def test_a_layer_that_saw_no_row_has_an_empty_gradient() -> None:
    """Such as an expert to which no sample was sent."""
    side = _side(2, 3, 4, 5, 0, 0)
    by_columns, by_gradients = kernel_block_gradient(side, torch.ones(3, 2, 3, 2, dtype=torch.float64), by_columns=True)
    assert by_columns is not None
    assert by_columns.shape == side.columns.shape
    assert by_gradients.shape == side.gradients.shape


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


@pytest.mark.parametrize(
    ("dims", "kernel", "stride", "dilation", "ones"),
    [
        (1, (3,), (2,), (1,), False),
        (2, (3, 2), (2, 1), (1, 2), True),
        (2, (3, 3), (1, 1), (1, 1), False),
        (3, (2, 2, 3), (1, 2, 1), (1, 1, 2), True),
    ],
)
@pytest.mark.parametrize("threshold", [1, 10_000])
def test_the_same_as_by_unfolding(
    dims: int, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], ones: bool, threshold: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    layout = Windows(ones, kernel, stride, dilation)
    x = torch.randn(4, 2, *[9] * dims, dtype=torch.float64, requires_grad=True)
    places = math.prod(layout.places((9,) * dims))
    g = torch.randn(2, 4, 3, places, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr("gapscope.gradients.grouped_convolutions._WINDOWS", threshold)
    results = []
    for used in (True, False):
        monkeypatch.setattr(square_norms, "is_faster", lambda *_, used=used: used)
        norms = jacobian_square_norms(x, g, layout)
        results.append((norms, *torch.autograd.grad((norms * torch.arange(1, 5)).sum(), [x, g])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)


def _by_var_mean(h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(h, [dim for dim in range(h.ndim) if dim != 1], correction=0)
    return mean, (variance + eps).rsqrt()


@pytest.mark.parametrize("shape", [(7, 3), (4, 3, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (0.7, -2.0)])
def test_statistics_and_their_derivatives_are_those_of_var_mean(
    shape: tuple[int, ...], weights: tuple[float, float]
) -> None:
    h = (3 + 2 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    results = []
    for statistics in (statistics_of, _by_var_mean):
        mean, inverse = statistics(h, 1e-3)
        # a term whose weight is zero is left out: then no derivative by it arrives at all
        terms = [w * part.cos().sum() for w, part in zip(weights, (mean, inverse), strict=True) if w]
        (first,) = torch.autograd.grad(torch.stack(terms).sum(), h, create_graph=True)
        (second,) = torch.autograd.grad(first.sin().sum(), h)
        results.append((mean, inverse, first, second))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
