"""What dropout costs, against its closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from batch_norm.some_networks import images, plain, warmed_up
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.batch_norm.advice.batch_norm import DropoutLoss, name_of_last_linear_layer
from gapscope.results.estimate import Estimate


@pytest.fixture
def signs() -> Samples:
    """u = -1 or 1, which the identity fits: dropping it with probability p costs p / (1 - p)."""
    u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(1000, 1)
    return Samples(u, u)


def identity() -> nn.Sequential:
    network = nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False)).double()
    nn.init.ones_(network[1].weight)  # type: ignore[arg-type]
    return network


def test_the_cost_is_that_of_the_closed_form_and_no_rate_adds_too_much(signs: Samples) -> None:
    dropout = DropoutLoss(identity(), signs, ["1"], draws=20)
    for rate in (0.1, 0.5):
        found = dropout.excess(rate)
        assert found.standard_error is not None and found.standard_error < 0.02
        assert float(found) == pytest.approx(rate / (1 - rate), abs=4 * found.standard_error + 1e-9)
    assert dropout.excess(0.0) == 0
    assert dropout.matching_rate(Estimate(20.0, 0.0)) is None


def test_the_matching_rate_is_that_of_the_closed_form(signs: Samples) -> None:
    rate = DropoutLoss(identity(), signs, ["1"], draws=20).matching_rate(Estimate(0.25, 0.0))
    assert rate is not None and rate.standard_error is not None
    assert float(rate) == pytest.approx(0.2, abs=4 * rate.standard_error) and rate.standard_error < 0.01


def test_the_last_layer_is_the_one_that_runs_last(signs: Samples) -> None:
    assert name_of_last_linear_layer(warmed_up(plain()), images(2)) == "10"
    with pytest.raises(NotMeasurable, match="linear or convolutional layer"):
        name_of_last_linear_layer(nn.BatchNorm1d(1).double(), signs)


def test_wrong_use_is_explained(signs: Samples) -> None:
    with pytest.raises(InvalidInput, match="data must hold targets"):
        DropoutLoss(identity(), Samples(signs.inputs), ["1"])
    with pytest.raises(InvalidInput, match="dropout_before must name layers of the network; got '2'"):
        DropoutLoss(identity(), signs, ["2"])
