"""Streaming moments against moments of all values at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gapscope.base.errors import InvalidInput
from gapscope.inspection.moments import ChannelMoments


@settings(deadline=None, max_examples=30)
@given(cuts=st.lists(st.integers(1, 59), max_size=6), offset=st.sampled_from([0.0, 1e3]))
def test_any_cut_gives_the_moments_of_the_whole(cuts: list[int], offset: float) -> None:
    generator = torch.Generator().manual_seed(len(cuts))
    h = torch.randn(60, 3, 2, generator=generator, dtype=torch.float64).exp() + offset
    moments = ChannelMoments(order=4)
    for part in torch.tensor_split(h, sorted(set(cuts))):
        moments.update(part)
    values = h.transpose(0, 1).flatten(1).numpy()
    assert moments.count == 120
    torch.testing.assert_close(moments.mean, torch.tensor(values.mean(1)))
    torch.testing.assert_close(moments.variance, torch.tensor(values.var(1)))
    torch.testing.assert_close(
        moments.skewness, torch.tensor(stats.skew(values, axis=1)), rtol=1e-6, atol=1e-6
    )
    kurtosis = torch.tensor(stats.kurtosis(values, axis=1))
    torch.testing.assert_close(moments.excess_kurtosis, kurtosis, rtol=1e-6, atol=1e-6)


def test_float32_with_a_large_mean_keeps_its_variance() -> None:
    h = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0)) + 1000
    moments = ChannelMoments()
    for part in h.split(7):
        moments.update(part)
    torch.testing.assert_close(
        moments.variance, h.double().var(0, unbiased=False), rtol=1e-10, atol=0
    )


def test_constant_channels_have_the_lowest_kurtosis() -> None:
    moments = ChannelMoments(order=4)
    moments.update(torch.full((5, 1), 3.0))
    assert (
        moments.skewness.item() == 0
        and moments.excess_kurtosis.item() == -2
        and moments.variance.item() == 0
    )


def test_order_is_checked() -> None:
    with pytest.raises(InvalidInput, match="4; got 3"):
        ChannelMoments(order=3)
