"""Parts of layer-wise gradients against their definitions: contractions, windows, grouped convolutions."""

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
from gapscope.gradients.layouts import Windows
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
    torch.testing.assert_close(
        kernel_block(first, second, floats), expected, rtol=1e-12, atol=1e-12
    )


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 5), st.integers(1, 5), st.integers(1, 200))
def test_traced_block(size: tuple[int, int, int, int, int], m: int, s: int, floats: int) -> None:
    c, n, o, k, t = size
    first, second = _side(c, n, o, k, t, 0), _side(c, m, o, k, s, 1)
    expected = torch.einsum("ncok,mcok->nm", _jacobian(first), _jacobian(second))
    torch.testing.assert_close(
        traced_block(first, second, floats), expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("c", "n", "o", "k", "t", "order"),
    [
        (10, 32, 120, 401, 1, "gram"),  # a fully connected layer
        (
            10,
            32,
            6,
            26,
            784,
            "explicit",
        ),  # the first convolution of a small network: T^2 would be gigabytes
        (10, 2, 512, 4609, 4, "gram"),  # a late convolution of a large one
        (200, 8, 64, 577, 64, "mixed"),  # many outputs
    ],
)
def test_the_cheapest_order_is_used(c: int, n: int, o: int, k: int, t: int, order: str) -> None:
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
    by_columns, by_gradients = kernel_block_gradient(
        side, torch.ones(3, 2, 3, 2, dtype=torch.float64), by_columns=True
    )
    assert by_columns is not None
    assert by_columns.shape == side.columns.shape
    assert by_gradients.shape == side.gradients.shape


def test_windows_of_channels_last_memory() -> None:
    inputs = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    columns = Windows(False, (3, 3), (1, 1), (1, 1)).unfold(inputs)
    torch.testing.assert_close(columns, F.unfold(inputs, 3), rtol=0, atol=0)


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
    n_windows = math.prod(layout.n_windows((9,) * dims))
    g = torch.randn(2, 4, 3, n_windows, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr("gapscope.gradients.grouped_convolutions._MIN_WINDOWS", threshold)
    results = []
    for used in (True, False):
        monkeypatch.setattr(square_norms, "is_faster", lambda *_, used=used: used)
        norms = jacobian_square_norms(x, g, layout)
        results.append((norms, *torch.autograd.grad((norms * torch.arange(1, 5)).sum(), [x, g])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-9)
