"""Sizes: closed forms, and the competition's own values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cases import CASES
from gapscope.base.errors import NotMeasurable
from gapscope.measures.sizes import multiply_accumulates, vc_dimension_bound


def test_multiply_accumulates_of_layers() -> None:
    convolution = nn.Conv2d(4, 6, 3, stride=2, groups=2)
    assert multiply_accumulates(nn.Sequential(convolution, nn.Flatten()), torch.ones(2, 4, 9, 9)) == 16 * 6 * 2 * 9
    assert multiply_accumulates(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.ones(3, 3, 4)) == 60


def test_multiply_accumulates_of_recurrence_and_attention() -> None:
    network, samples = CASES["LSTM"].make(3)  # 4 steps, 5 inputs, 6 states, 4 gates, 3 classes
    assert multiply_accumulates(network, samples.inputs) == 4 * (5 + 6) * 24 + 6 * 3
    network, samples = CASES["encoder"].make(3)
    # 6 tokens, width 8: projections 4 * 8 * 8 and two products of attention 2 * 6 * 8, feed-forward 2 * 8 * 16
    layer = 6 * (4 * 64 + 2 * 6 * 8 + 2 * 128)
    assert multiply_accumulates(network, samples.inputs) == 2 * layer + 8 * 8 + 8 * 3


@pytest.mark.parametrize(("width", "expected"), [(256, 820213390.8527741), (512, 1747976977.6737378)])
def test_the_competition_s_own_values(width: int, expected: float) -> None:
    """Models 20 and 21 of its task 1: two convolutions, pooling, a hidden dense layer of 128."""
    with torch.device("meta"):
        network = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 256, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
    assert vc_dimension_bound(network) == pytest.approx(expected, rel=1e-12)


def test_without_matrices_there_is_no_bound() -> None:
    with pytest.raises(NotMeasurable, match="no trainable weight of two dimensions"):
        vc_dimension_bound(nn.LayerNorm(3))
