"""Where the samples are in a layer: shapes and values of two and three samples tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.sample_layout import (
    SampleLayout,
    certain_layouts,
    layout_of,
    sample_layouts,
)

TOKENS = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))[[0, 1, 1]]

ORDERS = {
    SampleLayout(): lambda x: x,
    SampleLayout(1): lambda x: x.transpose(0, 1),
    SampleLayout(2): lambda x: x.permute(2, 1, 0),
    SampleLayout(0, 2): lambda x: x.flatten(0, 1),
    SampleLayout(0, 2, False): lambda x: x.transpose(0, 1).flatten(0, 1),
    SampleLayout(1, 2): lambda x: x.flatten(0, 1).T,
    None: lambda x: x.flatten(0, 1).flip(0),
}


@pytest.mark.parametrize("layout", ORDERS)
def test_layouts_are_told_by_shapes_and_values(layout: SampleLayout | None) -> None:
    two, three = ORDERS[layout](TOKENS[:2]), ORDERS[layout](TOKENS)
    assert layout_of(two, three) == layout
    if layout is not None:
        by_sample = layout.by_sample(three, 3)
        # the numbers of a sample, whatever their order
        assert torch.equal(by_sample.flatten(1).sort(1).values, TOKENS.flatten(1).sort(1).values)
        assert torch.equal(layout.restored(by_sample), three)


@pytest.mark.parametrize(
    "order",
    [
        lambda x: x.flip(0),  # the samples in another order
        lambda x: x[:1],  # one row for all
        lambda x: torch.cat([x, x[:1]]),  # one row more
        lambda x: x.flatten(0, 1).mean(1) * 0,  # no order shows
        lambda x: (x,),
    ],
)
def test_what_is_not_certain_has_no_layout(order: Callable[[Tensor], Tensor]) -> None:
    assert layout_of(order(TOKENS[:2]), order(TOKENS)) is None


def test_errors_of_rounding_do_not_matter() -> None:
    x = TOKENS.bfloat16()
    noise = 1 + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    assert layout_of(x[:2].flatten(0, 1), (x * noise).flatten(0, 1)) == SampleLayout(0, 2)
    assert layout_of(x[:2] * torch.nan, x * torch.nan) == SampleLayout()


def test_samples_of_other_lengths_are_refused() -> None:
    network = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 1))
    layouts = sample_layouts(network, TOKENS, dict(network.named_children()), before=True)
    assert certain_layouts(layouts, ["0", "1"]) == {"0": SampleLayout(), "1": SampleLayout(0, 2)}
    with pytest.raises(NotMeasurable, match=r"\[5, 4\].* for 3 samples"):
        layouts["1"].by_sample(torch.zeros(5, 4), 3)  # type: ignore[union-attr]
    with pytest.raises(NotMeasurable, match="'1'"):
        certain_layouts({"1": None}, ["1"])


def test_the_second_sample_differs_from_the_first() -> None:
    repeated = TOKENS[[0, 0, 0, 1]]
    network = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 1))
    layouts = sample_layouts(network, repeated, {"0": network[0]})
    assert layouts == {"0": SampleLayout(0, 2)}
