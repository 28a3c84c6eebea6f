from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablation.some_networks import (
    Attention,
    BareRelu,
    Block,
    Functional,
    Untraceable,
    built,
    initialized,
    noise,
)
from gapscope.ablation.layers import trace
from gapscope.ablation.split import HookedSplit, TracedSplit, split_at
from gapscope.ablation.tails import SeparableTail, choose_tail
from gapscope.base.errors import InvalidInput, NotMeasurable
from gradients.reference import Wrapped


@pytest.mark.parametrize(
    ("network", "layer", "shape"),
    [
        (
            built("vgg11", width_multiplier=0.03, head="paper", head_width=8),
            "block3_conv2_relu",
            (3, 32, 32),
        ),
        (built("resnet18", width_multiplier=0.03), "stage2_block1.branch.conv1_relu", (3, 32, 32)),
        (built("resnet20", width_multiplier=0.3), "stage2_block1", (3, 32, 32)),
        (built("mobilenet", width_multiplier=0.03), "block5_depthwise_norm", (3, 32, 32)),
        (initialized(Functional), "first", (1, 8, 8)),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), Block(4), nn.Flatten(), nn.LazyLinear(3)).eval(),
            "1.first",
            (1, 6, 6),
        ),
        (initialized(Attention), "gelu", (1, 8, 8)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@torch.no_grad()
def test_the_cut_network_gives_what_replacing_the_output_gives(
    network: Any, layer: str, shape: Any
) -> None:
    x = noise(3, *shape)
    network(x)
    split = split_at(network, x, layer, None)
    assert isinstance(split, TracedSplit) and split.label == layer
    source, samples = split.all_activations(x, 2), torch.tensor([2, 0, 0, 1, 2])
    changed = source.values[samples] * noise(*source.values[samples].shape, seed=1)
    hooked = HookedSplit(network, layer, split.unit_axis)
    expected = hooked.outputs(changed, hooked.activations(x), samples)
    assert torch.allclose(split.outputs(changed, source, samples), expected, atol=1e-6)
    assert not torch.allclose(expected, network(x)[samples], atol=1e-3)


@torch.no_grad()
def test_activations_in_place_behind_the_cut() -> None:
    network = initialized(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.SiLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)
        )
    )
    x = noise(3, 1, 6, 6)
    split = split_at(network, x, "0", None)
    assert isinstance(split, TracedSplit)
    source = split.activations(x)
    kept = source.values.clone()
    assert isinstance(choose_tail(split, x, None), SeparableTail)
    choose_tail(split, x, None).predictions(source, torch.arange(4))
    assert torch.equal(source.values, kept)


@torch.no_grad()
def test_functional_layers_can_be_cut() -> None:
    network, x = initialized(BareRelu), noise(3, 1, 8, 8)
    split = split_at(network, x, None, None)
    assert split.label == "relu" and torch.equal(
        split.activations(x).values, network.norm(network.convolution(x)).relu()
    )
    assert split_at(network, x, "relu", None).label == "relu"


@torch.no_grad()
def test_a_network_that_cannot_be_traced_runs_whole() -> None:
    network, x = initialized(Untraceable), noise(3, 6)
    split = split_at(network, x, "body", None)
    assert isinstance(split, HookedSplit)
    source = split.all_activations(x, 2)
    assert torch.allclose(source.values, network.body(x))
    assert torch.allclose(
        split.outputs(source.values[[1, 1]], source, torch.tensor([1, 1])), network(x)[[1, 1]]
    )


@torch.no_grad()
def test_a_trace_that_computes_something_else_is_not_used() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        hidden = net.inner(x)
        return net.head(2 * hidden if isinstance(x, Tensor) else hidden)

    network, x = Wrapped(forward, inner=nn.Linear(3, 4), head=nn.Linear(4, 2)), noise(3, 3)
    assert trace(network) is not None and isinstance(
        split_at(network, x, "inner", None), HookedSplit
    )


def test_layers_that_cannot_be_cut() -> None:
    network, x = initialized(Functional), noise(2, 1, 8, 8)
    with torch.no_grad():
        with pytest.raises(InvalidInput, match=r"'secund'. Did you mean"):
            split_at(network, x, "secund", None)
        with pytest.raises(NotMeasurable, match="Layer 'relu'"):
            split_at(network, x, "relu", None)
        with pytest.raises(InvalidInput, match=r"\[2, 4, 8, 8\]"):
            split_at(network, x, "first", 4)
        attention, images = initialized(Attention), noise(2, 1, 8, 8)
        with pytest.raises(NotMeasurable, match="tensor; got tuple"):
            split_at(attention, images, "attention", None)
        with pytest.raises(NotMeasurable, match=r"\[2, 4, 8\], .*unit_axis=-1"):
            split_at(attention, images, "norm", None)
        assert split_at(attention, images, "norm", -1).unit_axis == -1

        unused = Wrapped(
            lambda net, x: (net.side(net.inner(x)), net.head(net.inner(x)))[1],
            inner=nn.Linear(3, 4), side=nn.Linear(4, 4), head=nn.Linear(4, 2),
        )  # fmt: skip
        with pytest.raises(NotMeasurable, match="layer 'side'"):
            split_at(unused, noise(2, 3), "side", None)
        with pytest.raises(NotMeasurable, match="in the forward pass"):
            split_at(attention, images, "attention.out_proj", None)


def test_masks_follow_the_axis_of_units() -> None:
    network, images = initialized(Attention), noise(2, 1, 8, 8)
    with torch.no_grad():
        split = split_at(network, images, "gelu", None)
        values = split.activations(images).values
        kept = torch.zeros(2, 12, dtype=torch.bool)
        kept[:, 3] = True
        masked = split.masked(values, kept)
    assert split.unit_axis == -1 and split.flatten_positions(values).shape == (2, 12, 4)
    assert (
        torch.equal(masked[..., 3], values[..., 3])
        and masked.count_nonzero() == values[..., 3].count_nonzero()
    )
