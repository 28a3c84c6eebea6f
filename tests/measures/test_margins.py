"""Margins: closed forms, and distances to a linear boundary."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gapscope.base.errors import NotMeasurable
from gapscope.measures._noise import mixup, same_class_partners
from gapscope.measures.margins import augmentation_margin, mixup_margin, output_margin

DOUBLE = torch.float64


def test_percentiles_of_known_margins() -> None:
    margins = torch.arange(1.0, 41.0)
    logits = torch.stack([margins, torch.zeros(40), torch.full((40,), -9.0)], 1)
    result = output_margin(nn.Identity(), logits[torch.randperm(40)], torch.zeros(40).long())
    assert result.scalars() == {"percentile_10": 4.0, "median": 20.5, "inverse_square": 1 / 16}
    wrong = output_margin(nn.Identity(), -logits, torch.zeros(40).long())
    assert wrong["percentile_10"] < 0
    flat = output_margin(nn.Identity(), torch.zeros(4, 2), torch.zeros(4).long())
    assert flat["inverse_square"] == math.inf


def test_distance_of_mixtures_from_a_linear_boundary() -> None:
    """A first layer and a linear head: the margin at the first layer is the distance to a plane, over the spread."""
    first, head = nn.Linear(4, 40).double(), nn.Linear(40, 2).double()
    network = nn.Sequential(first, head)
    x, y = torch.randn(30, 4, dtype=DOUBLE), torch.arange(30) % 2
    inputs = mixup(x, same_class_partners(y, None), slice(30))
    features = first(inputs).detach()
    normal = head.weight[0] - head.weight[1]
    lead = features @ normal + head.bias[0] - head.bias[1]
    distances = torch.where(y == 0, lead, -lead) / normal.norm()
    variances = features.var(0, correction=0).sort().values
    expected = distances.mean() / variances[2:-2].mean().sqrt()
    result = mixup_margin(network, x, y)
    assert result == pytest.approx(float(expected.detach()), rel=1e-8)


def test_margins_of_changed_images_of_one_grey_are_those_of_the_images() -> None:
    """Constant images: flips, saturation and crops keep them; a linear network and its distance to the plane."""
    network = nn.Sequential(nn.Conv2d(1, 30, 1), nn.Flatten(), nn.Linear(480, 2)).double()
    x = torch.randn(12, 1, 1, 1, dtype=DOUBLE).expand(12, 1, 4, 4).contiguous()
    y = torch.arange(12) % 2
    result = augmentation_margin(network, x, y)
    assert math.isfinite(result) and result.standard_error is not None
    again = augmentation_margin(network, x, y)
    assert result == again


def test_a_constant_layer_has_no_scale() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with pytest.raises(NotMeasurable, match="Layer '0' must vary over the samples"):
        mixup_margin(network, torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(NotMeasurable, match="must be a first convolution or linear layer"):
        mixup_margin(nn.Identity(), torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))
