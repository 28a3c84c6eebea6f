"""Common networks, ablated one unit at a time as in the definition, for every tail."""

from __future__ import annotations

import pytest
import torch

from ablation.naive import naive_predictions, ranking_of
from cases import CASES
from gapscope.ablation.split import split_at
from gapscope.ablation.tails import MaskedTail, choose_tail

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
    ranking = ranking_of(split, source)
    expected = naive_predictions(network, LAYERS[name], samples.inputs, ranking)
    assert torch.equal(choose_tail(split, samples.inputs, None).predictions(source, ranking), expected)
    assert torch.equal(MaskedTail(split, None).predictions(source, ranking), expected)
