from __future__ import annotations

from typing import Any

import pytest
import torch

from ablation.some_networks import built, naive_predictions, noise
from gapscope.ablation.class_curves import rank_units
from gapscope.ablation.split import split_at
from gapscope.ablation.tails import MaskedTail, choose_tail
from gapscope.measures.margin_signature import margin_signature
from gapscope.measures.unit_sparsity import unit_sparsity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "linear tail": ("vgg11", {"width_multiplier": 0.1}, "block5_conv2_relu"),
    "deep tail": (
        "vgg11",
        {"width_multiplier": 0.1, "head": "paper", "head_width": 24},
        "block5_conv2_relu",
    ),
    "convolutional tail": ("resnet18", {"width_multiplier": 0.1}, "stage4_block1.relu"),
}


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_predictions_are_those_of_the_naive_loop(case: str) -> None:
    name, options, layer = CASES[case]
    network, x = (
        built(name, **options).double().cuda(),
        noise(6, 3, 32, 32, dtype=torch.float64).cuda(),
    )
    split = split_at(network, x, layer, None)
    source = split.activations(x)
    ranking = rank_units(split, source)
    expected = naive_predictions(network, layer, x, ranking)
    assert torch.equal(choose_tail(split, x, None).predictions(source, ranking), expected)
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), expected)


def test_numbers_are_those_of_the_cpu() -> None:
    network, x = (
        built("small_cnn", input_shape=(1, 8, 8)).double(),
        noise(60, 1, 8, 8, dtype=torch.float64),
    )
    y = network(x).argmax(1)
    sparsity, margins = unit_sparsity(network, x, y), margin_signature(network, x, y)
    network.cuda()
    assert torch.equal(unit_sparsity(network, x, y).curves, sparsity.curves)
    assert torch.allclose(margin_signature(network, x, y).signature, margins.signature, rtol=1e-9)
