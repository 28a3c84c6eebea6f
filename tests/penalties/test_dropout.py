from __future__ import annotations

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from support.cases import CASES


def rule(strength: float) -> gs.training.AutomaticStrength:
    return gs.training.AutomaticStrength(start=strength, least=strength, most=strength)


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(120, 6, generator=generator), torch.arange(120) % 3


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 16), nn.Dropout(0.9), nn.ReLU(), nn.AlphaDropout(0.9), nn.Linear(16, 3)
        )


def test_a_probability_without_room_trains_as_layers_that_have_it() -> None:
    settings = gs.TrainingSpec(learning_rate=0.1, batch_size=40, epochs=4)
    automatic, fixed = network(), network()
    for layer in (fixed[1], fixed[3]):
        assert isinstance(layer, nn.Dropout | nn.AlphaDropout)
        layer.p = 0.25
    penalty = gs.penalties.AutomaticDropout(rule(0.25))
    gs.train(automatic, problem(), settings, penalties=[penalty])
    gs.train(fixed, problem(), settings)
    assert all(
        torch.equal(a, b) for a, b in zip(automatic.parameters(), fixed.parameters(), strict=True)
    )
    assert [automatic[1].p, automatic[3].p, penalty.strength] == [0.25] * 3


def test_messages() -> None:
    resnet, samples = CASES["ResNet-18, narrow"].make(4)
    with pytest.raises(InvalidInput, match=r"dropout layers.*this"):
        gs.penalties.AutomaticDropout()(resnet, samples.inputs, samples.targets)
