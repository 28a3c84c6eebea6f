"""Layers with units, and the graph of what follows them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
from gapscope.ablation.class_curves import below_chance
from gapscope.ablation.layers import default_module, default_site, trace
from gapscope.base.errors import NotMeasurable
from gradients.reference import Wrapped


def default_label(network: nn.Module) -> str:
    traced = trace(network)
    assert traced is not None
    return traced.label(default_site(traced))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vgg16", {"width_multiplier": 0.03}, "block5_conv3_relu"),
        (
            "vgg11",
            {"width_multiplier": 0.03, "head": "paper", "head_width": 8, "dropout": 0.5},
            "block5_conv2_relu",
        ),
        ("resnet18", {"width_multiplier": 0.03}, "stage4_block2.relu"),
        ("resnet20", {"normalization": "none"}, "stage3_block3.relu"),
        ("mobilenet", {"width_multiplier": 0.03}, "block13_pointwise_relu"),
        ("lenet5", {"batch_norm": True}, "conv2_relu"),
    ],
)
def test_the_activation_behind_the_last_convolution(
    name: str, options: dict[str, object], expected: str
) -> None:
    network = built(name, **options)
    assert default_label(network) == expected
    # where each activation is a module, the order of calls tells the same
    assert default_module(network, noise(1, 3, 32, 32)) == expected


def test_without_convolutions_it_is_the_last_hidden_layer() -> None:
    network = built("fully_connected", input_shape=(5,), n_hidden=3, width=6, activation="tanh")
    assert default_label(network) == default_module(network, noise(2, 5)) == "fc3_tanh"


def test_functional_activations_are_found() -> None:
    assert default_label(initialized(Functional)) == "relu_1"
    assert default_label(initialized(BareRelu)) == "relu"


def test_behind_a_residual_sum_past_a_gate() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), Block(4), Block(4), nn.Flatten(), nn.Linear(4, 3))
    assert default_label(network) == "2"


def test_a_sigmoid_is_an_activation_unless_it_gates() -> None:
    assert default_label(nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2))) == "1"


def test_a_last_convolution_is_the_head() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert default_label(network) == "1"


def test_it_must_be_plain_which_activation_is_meant() -> None:
    for network in (initialized(BareRelu), nn.Sequential(nn.Flatten(), nn.Linear(64, 2))):
        with pytest.raises(NotMeasurable, match=r"is ambiguous.*Pass layers="):
            default_module(network, noise(2, 1, 8, 8))
    with pytest.raises(NotMeasurable, match="needs a hidden layer"):
        default_label(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))
    with pytest.raises(NotMeasurable, match="needs a hidden layer"):
        default_label(nn.Sequential(nn.Flatten()))
    with pytest.raises(NotMeasurable, match=r"last hidden layer .0..*layers=.0."):
        default_label(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    assert default_label(initialized(Attention)) == "relu"


def test_what_cannot_be_traced_gives_none_and_has_a_default() -> None:
    assert (
        trace(initialized(Untraceable)) is None and trace(Wrapped(lambda net, x: {"a": x})) is None
    )
    assert default_module(initialized(Untraceable), noise(2, 6)) == "body.1"


def test_tracing_leaves_nothing_behind() -> None:
    network = initialized(Functional)
    network(noise(2, 1, 8, 8))
    seen, keys = network.seen, list(vars(network))
    assert trace(network) is not None
    assert network.seen is seen and list(vars(network)) == keys


def test_chance_is_reached_at_equality_whatever_its_rounding() -> None:
    for classes in (3, 7, 10, 49, 100):
        hits = torch.ones(classes, dtype=torch.float64) / classes
        assert bool(below_chance(hits[:1, None], classes).all())
        assert not bool(below_chance(hits[:1, None] + 1e-6, classes).any())
