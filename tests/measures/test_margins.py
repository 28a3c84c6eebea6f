"""Margins and their signature: closed forms, and distances to a linear boundary."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor, nn

from ablation.some_networks import initialized, noise
from gapscope.base.errors import NotMeasurable
from gapscope.measures.margin_signature import FEATURES, TAPS, margin_signature
from gapscope.measures.measurement import measure
from gapscope.measures.training_fit import output_margin
from gapscope.measures.training_speed import gradient_weight_alignment
from gapscope.measures.unit_sparsity import unit_sparsity


def test_percentiles_of_known_margins() -> None:
    margins = torch.arange(1.0, 41.0)
    logits = torch.stack([margins, torch.zeros(40), torch.full((40,), -9.0)], 1)
    result = output_margin(nn.Identity(), logits[torch.randperm(40)], torch.zeros(40).long())
    assert result.scalars() == {"percentile_10": 4.0, "median": 20.5, "inverse_square": 1 / 16}
    wrong = output_margin(nn.Identity(), -logits, torch.zeros(40).long())
    assert wrong["percentile_10"] < 0
    flat = output_margin(nn.Identity(), torch.zeros(4, 2), torch.zeros(4).long())
    assert flat["inverse_square"] == math.inf


def labels_of(network: nn.Module, x: Tensor) -> Tensor:
    return network(x).argmax(1)


def test_on_a_linear_network_margins_are_exact_distances() -> None:
    network = initialized(lambda: nn.Linear(5, 4)).double()
    x = noise(40, 5, dtype=torch.float64)
    y = labels_of(network, x)
    result = margin_signature(network, x, y, epsilon=0.0)
    assert result.layers == ("input",)
    weight, outputs = network.weight.detach(), network(x).detach()
    distances = result.margins[0] * result.total_variation.sqrt()
    for margin, sample, label in zip(distances, range(40), y, strict=True):
        # the distance to a hyperplane of equal outputs, least over the other classes that come second
        second = outputs[sample].topk(2).indices[1]
        normal = weight[label] - weight[second]
        moved = x[sample] - margin * normal / normal.norm()
        new = network(moved)
        assert new[label].item() == pytest.approx(new[second].item(), abs=1e-13)


def test_features_are_those_of_the_normalized_margins() -> None:
    network = initialized(lambda: nn.Linear(3, 2)).double()
    x = noise(50, 3, dtype=torch.float64)
    y = torch.arange(50) % 2
    outputs, weight = network(x).detach(), network.weight.detach()
    distances = (outputs[:, 0] - outputs[:, 1]) * (1 - 2 * y) / (weight[0] - weight[1]).norm()
    normalized = (distances[distances > 0] / x.var(0, correction=0).sum().sqrt()).numpy()
    result = margin_signature(network, x, y, epsilon=0.0)
    low, mid, high = numpy.quantile(normalized, [0.25, 0.5, 0.75])
    reach = 1.5 * (high - low)
    inside = normalized[(normalized >= low - reach) & (normalized <= high + reach)]
    expected = [inside.min(), low, mid, high, inside.max()]
    assert result.signature[0].tolist() == pytest.approx(numpy.log(expected), rel=1e-12)
    assert result.n_samples == 50 and result.margins.shape == (1, len(normalized))


def test_readings_have_four_layers_for_every_network() -> None:
    small, x = (
        initialized(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))),
        noise(20, 4),
    )
    readings = measure(small, (x, labels_of(small, x)), measures=("margin_signature",))
    names = [f"margin_signature.{tap}.{feature}" for tap in TAPS for feature in FEATURES]
    assert [reading.name for reading in readings] == names
    result = margin_signature(small, x, labels_of(small, x))
    assert readings["margin_signature.h1.median"].value == result.signature[1, 2].item()
    assert math.isnan(readings["margin_signature.h2.median"].value)
    other = margin_signature(small, x, labels_of(small, x), layers=["0", "1", "2", "input"])
    assert other.scalars()["h3.median"] == other.signature[2, 2].item()
    five = initialized(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))))
    y = labels_of(five, x)
    with pytest.raises(NotMeasurable, match="most 3 hidden layers"):
        margin_signature(five, x, y, layers=["0", "1", "2", "3"]).scalars()


def test_networks_without_a_margin() -> None:
    network, x = initialized(lambda: nn.Linear(3, 2)), noise(6, 3)
    y = labels_of(network, x)
    with pytest.raises(NotMeasurable, match="correctly classified samples; got"):
        margin_signature(network, x, 1 - y)
    with pytest.raises(NotMeasurable, match="Layer 'input'"):
        margin_signature(network, x[[0, 0]], y[[0, 0]])


def test_one_output_is_the_second_of_two_logits() -> None:
    hidden = initialized(lambda: nn.Sequential(nn.Linear(3, 9), nn.ReLU()))
    head, heads = nn.Linear(9, 1), nn.Linear(9, 2)
    with torch.no_grad():
        head.weight.copy_(noise(1, 9))
        heads.weight.copy_(torch.cat([torch.zeros(1, 9), head.weight]))
        heads.bias.copy_(torch.cat([torch.zeros(1), head.bias]))
    one, two = nn.Sequential(*hidden, head), nn.Sequential(*hidden, heads)
    x = noise(40, 3)
    y = (two(x).argmax(1) + (torch.arange(40) % 5 == 0)) % 2
    for layers in (None, "1"):
        first, second = (unit_sparsity(network, x, y, layers=layers) for network in (one, two))
        assert torch.equal(first.curves, second.curves) and first.layer == second.layer
        assert first.scalars() == second.scalars() and first.n_classes == 2
    first, second = (margin_signature(network, x, y) for network in (one, two))
    torch.testing.assert_close(first.margins, second.margins)
    assert first.layers == second.layers and 0 < first.margins.shape[1] < 40
    sign = (y == 1).double() * 2 - 1
    mean = (sign * torch.cosine_similarity(hidden(x), head.weight)).mean().detach()
    alignment = gradient_weight_alignment(one, x, y)
    assert alignment.scalars()["mean"] == pytest.approx(float(mean), rel=1e-5)
