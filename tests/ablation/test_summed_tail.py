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
    naive_predictions,
    noise,
)
from gapscope.ablation.class_curves import rank_units
from gapscope.ablation.split import SplitNetwork, split_at
from gapscope.ablation.tails import (
    MaskedTail,
    SeparableTail,
    choose_tail,
    linear_cut,
    separates_units,
)
from gradients.reference import Wrapped
from support.cases import CASES

SMALL = {"width_multiplier": 0.1}
IMAGES = (3, 32, 32)
# network, layer, shape of a sample, axis of units, whether sums do
TAILS = {
    "VGG, linear tail": (built("vgg11", **SMALL), "block5_conv2_relu", IMAGES, 1, True),
    "VGG, deep tail": (
        built("vgg16", head="paper", head_width=24, batch_norm=False, **SMALL),
        "block5_conv3_relu",
        IMAGES,
        1,
        True,
    ),
    "VGG, before the norm": (built("vgg11", **SMALL), "block5_conv2", IMAGES, 1, True),
    "VGG, convolutional tail": (built("vgg11", **SMALL), "block4_conv2_relu", IMAGES, 1, False),
    "ResNet-18": (built("resnet18", **SMALL), "stage4_block2.relu", IMAGES, 1, True),
    "ResNet-20, padded shortcut": (
        built("resnet20", width_multiplier=0.5),
        "stage3_block3",
        IMAGES,
        1,
        True,
    ),
    "ResNet, inside a block": (
        built("resnet18", **SMALL),
        "stage4_block2.branch.conv1_relu",
        IMAGES,
        1,
        False,
    ),
    "ResNet, branch": (built("resnet18", **SMALL), "stage4_block2.branch", IMAGES, 1, True),
    "ResNet, shortcut behind": (built("resnet18", **SMALL), "stage4_block1.relu", IMAGES, 1, False),
    "MobileNet": (built("mobilenet", **SMALL), "block13_pointwise_relu", IMAGES, 1, True),
    "MobileNet, depthwise": (
        built("mobilenet", **SMALL),
        "block13_depthwise_relu",
        IMAGES,
        1,
        False,
    ),
    "LeNet, flattened maps": (built("lenet5"), "conv2_relu", IMAGES, 1, True),
    "fully connected": (
        built("fully_connected", input_shape=(9,), width=20),
        "fc2_relu",
        (9,),
        1,
        True,
    ),
    "fully connected, first": (
        built("fully_connected", input_shape=(9,), width=20),
        "fc1_relu",
        (9,),
        1,
        True,
    ),
    "sigmoid": (
        built("fully_connected", input_shape=(9,), width=20, activation="sigmoid"),
        "fc2_sigmoid",
        (9,),
        1,
        True,
    ),
    "dropout": (
        built("fully_connected", input_shape=(9,), width=9, dropout=0.5),
        "fc1_relu",
        (9,),
        1,
        True,
    ),
    "functional": (initialized(Functional), "second", (1, 8, 8), 1, True),
    "functional, first": (initialized(Functional), "first", (1, 8, 8), 1, False),
    "gated block": (
        initialized(
            lambda: nn.Sequential(nn.Conv2d(1, 6, 3), Block(6), nn.Flatten(), nn.Linear(96, 4))
        ),
        "1.first",
        (1, 6, 6),
        1,
        False,
    ),
    "attention behind": (initialized(Attention), "relu", (1, 8, 8), 1, False),
    "tokens": (initialized(Attention), "gelu", (1, 8, 8), 2, False),
    "untraceable": (initialized(Untraceable), "body", (6,), 1, False),
    "logits": (built("fully_connected", input_shape=(9,), width=9), "output", (9,), 1, False),
}

# one of each way to sum in double precision too: maps, masked maps, a block, features, tokens; the others thoroughly
DOUBLE = (
    "VGG, linear tail",
    "LeNet, flattened maps",
    "functional, first",
    "gated block",
    "fully connected",
    "tokens",
)


def prepared(
    case: str, dtype: torch.dtype, samples: int = 6
) -> tuple[Any, SplitNetwork, Tensor, Tensor]:
    network, layer, shape, _, _ = TAILS[case]
    network, x = network.to(dtype), noise(samples, *shape, seed=5, dtype=dtype)
    split = split_at(network, x, layer, None)
    return network, split, x, rank_units(split, split.activations(x))


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, torch.float32) for case in TAILS),
        *(
            pytest.param(case, torch.float64, marks=() if case in DOUBLE else pytest.mark.thorough)
            for case in TAILS
        ),
    ],
    ids=str,
)
@torch.no_grad()
def test_predictions_are_those_of_the_naive_loop_at_every_step(
    case: str, dtype: torch.dtype
) -> None:
    network, split, x, ranking = prepared(case, dtype)
    _, layer, _, axis, sums = TAILS[case]
    expected = naive_predictions(network, layer, x, ranking, unit_axis=axis)
    source, tail = split.all_activations(x, 4), choose_tail(split, x, None)
    assert isinstance(tail, SeparableTail if sums else MaskedTail)
    assert torch.equal(tail.predictions(source, ranking), expected)
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), expected)
    assert len(expected.unique()) > 1, "the case shows nothing"


@pytest.mark.parametrize(
    "case", ["VGG, linear tail", "VGG, deep tail", "LeNet, flattened maps", "functional, first"]
)
@torch.no_grad()
def test_the_chunk_size_has_no_effect(case: str) -> None:
    _, split, x, ranking = prepared(case, torch.float64)
    source = split.activations(x)
    expected = choose_tail(split, x, None).predictions(source, ranking)
    for rows in (1, 2, 5, 40):
        assert torch.equal(choose_tail(split, x, rows).predictions(source, ranking), expected)
        assert torch.equal(split.all_activations(x, 1 + rows % 5).values, source.values)


@torch.no_grad()
def test_rows_that_tie_are_those_of_the_masked_forward_pass() -> None:
    # each row of the head has an equal row, so that every prediction is a tie, up to rounding that depends on the batch
    network = initialized(lambda: nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 6)))
    head: Any = network[2]
    head.weight[3:] = head.weight[:3]
    head.bias[3:] = head.bias[:3]
    x = noise(8, 4)
    split = split_at(network, x, "1", None)
    source = split.activations(x)
    ranking = rank_units(split, source)
    tail = choose_tail(split, x, None)
    assert isinstance(tail, SeparableTail)
    result = tail.predictions(source, ranking)
    assert torch.equal(result, naive_predictions(network, "1", x, ranking))
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), result)


@pytest.mark.thorough
@torch.no_grad()
def test_near_ties_are_settled_by_the_masked_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # the second class repeats the first but for 1e-6 of its size: sums in another order cannot be trusted with that
    network = initialized(lambda: nn.Sequential(nn.Linear(4, 300), nn.ReLU(), nn.Linear(300, 2)))
    head: Any = network[2]
    head.weight[1] = head.weight[0] * (1 + 1e-6 * noise(300))
    head.bias[1] = head.bias[0]
    x = noise(8, 4)
    split = split_at(network, x, "1", None)
    source = split.activations(x)
    ranking = rank_units(split, source)
    tail = choose_tail(split, x, None)
    assert isinstance(tail, SeparableTail)
    masked = MaskedTail(split, None).predictions(source, ranking)
    assert torch.equal(tail.predictions(source, ranking), masked)
    monkeypatch.setattr(
        "gapscope.ablation.tails.are_close", lambda outputs, tolerance: outputs[:, 0].isnan()
    )
    assert not torch.equal(tail.predictions(source, ranking), masked), "the case shows nothing"


@torch.no_grad()
def test_zero_units_cost_nothing() -> None:
    network = initialized(
        lambda: nn.Sequential(
            nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 3)
        )
    )
    network.get_parameter("0.bias").sub_(1)
    x, rows = noise(5, 4), []
    network.get_submodule("4").register_forward_hook(
        lambda module, args, output: rows.append(len(output))
    )
    split = split_at(network, x, "1", None)
    source = split.activations(x)
    active = int((source.values != 0).sum())
    assert 0 < active < source.values.numel() / 2
    ranking = rank_units(split, source)
    for tail in (choose_tail(split, x, None), MaskedTail(split, None)):
        rows.clear()
        tail.predictions(source, ranking)
        assert sum(rows) <= 2 * active + len(x) + 10


@torch.no_grad()
def test_a_dead_layer_has_one_prediction() -> None:
    network, x = (
        initialized(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))),
        noise(6, 4),
    )
    network.get_parameter("0.bias").fill_(-100)
    split = split_at(network, x, "1", None)
    source, ranking = split.activations(x), torch.arange(5)
    expected = network(x).argmax(1)[None, :, None].expand(2, 6, 6)
    assert torch.equal(choose_tail(split, x, None).predictions(source, ranking), expected)
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), expected)


@torch.no_grad()
def test_a_map_that_mixes_units_is_not_summed() -> None:
    x, flip = noise(4, 5), Wrapped(lambda net, x: x.flip(1))
    for between, summed in (
        (nn.LayerNorm(8), False),
        (flip, False),
        (nn.Softmax(1), False),
        (nn.GELU(), True),
    ):
        network = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), between, nn.Linear(8, 3)).eval()
        split = split_at(network, x, "1", None)
        cut = linear_cut(split)  # type: ignore[arg-type]
        assert cut is not None and separates_units(split, cut, split.activations(x)) == summed


@torch.no_grad()
def test_a_linear_layer_that_something_passes_by_is_no_cut() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        hidden = net.inner(x).relu()
        return net.head(hidden + net.branch(hidden))

    layers = {"inner": nn.Linear(5, 4), "branch": nn.Linear(4, 4), "head": nn.Linear(4, 3)}
    network, x = Wrapped(forward, **layers), noise(6, 5)
    split = split_at(network, x, "inner", None)
    cut = linear_cut(split)  # type: ignore[arg-type]
    assert cut is not None and cut.linear is network.head
    assert isinstance(choose_tail(split, x, None), MaskedTail)


def test_one_class_is_predicted_always() -> None:
    network, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), noise(2, 2)
    with torch.no_grad():
        split = split_at(network, x, "1", None)
        assert (
            not choose_tail(split, x, None).predictions(split.activations(x), torch.arange(3)).any()
        )


def test_functional_activation_as_default_layer() -> None:
    network, x = initialized(BareRelu), noise(5, 1, 8, 8)
    with torch.no_grad():
        split = split_at(network, x, None, None)
        source = split.activations(x)
        ranking = rank_units(split, source)
        tail = choose_tail(split, x, None)
        assert isinstance(tail, SeparableTail)
        # zero before the ReLU is zero behind it
        assert torch.equal(
            tail.predictions(source, ranking), naive_predictions(network, "norm", x, ranking)
        )


LAYERS = {
    "fully connected": "3",
    "convolutional": "9",
    "ResNet-18, narrow": "stage4_block2.relu",
    "residual, group norm": "convolutions.1",
    "encoder": "pooler",
    "low-rank adapters": "3",
    "LSTM": "head",
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_predictions_are_those_of_the_naive_loop(name: str) -> None:
    network, samples = CASES[name].make(5, dtype=torch.float64)
    split = split_at(network, samples.inputs, LAYERS[name], None)
    source = split.all_activations(samples.inputs, 2)
    ranking = rank_units(split, source)
    expected = naive_predictions(network, LAYERS[name], samples.inputs, ranking)
    assert torch.equal(
        choose_tail(split, samples.inputs, None).predictions(source, ranking), expected
    )
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), expected)
