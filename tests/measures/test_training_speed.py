"""Training speed, agreement of gradients, and sizes: dense gradients and closed forms."""

from __future__ import annotations

import itertools
from typing import Any

import pandas
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import kurtosis
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.measures.parameters import multiply_accumulates
from gapscope.measures.training_speed import (
    gradient_disparity,
    gradient_weight_alignment,
    training_loss_sum,
)
from support.cases import CASES

DOUBLE = torch.float64


def data(n: int = 20) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return network, torch.randn(n, 3, dtype=DOUBLE), torch.arange(n) % 3


def gradient(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result = torch.autograd.grad(F.cross_entropy(network(x), y), list(network.parameters()))
    return torch.cat([g.flatten() for g in result])


def test_disparity_of_all_pairs_of_batches() -> None:
    network, x, y = data(23)
    result = gradient_disparity(
        network, x, y, batches=4, generator=torch.Generator().manual_seed(1)
    )
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))[:20].split(5)
    rows = [gradient(network, x[part], y[part]) for part in order]
    distances = [float((a - b).norm()) for a, b in itertools.combinations(rows, 2)]
    assert (
        result == pytest.approx(sum(distances) / 6, rel=1e-9) and result.standard_error is not None
    )
    left = [
        sum(float((a - b).norm()) for a, b in itertools.combinations(rows[:i] + rows[i + 1 :], 2))
        / 3
        for i in range(4)
    ]
    mean = sum(left) / 4
    assert result.standard_error == pytest.approx(
        (0.75 * sum((v - mean) ** 2 for v in left)) ** 0.5, rel=1e-9
    )
    same = gradient_disparity(network, x[:1].expand(30, 3), y[:1].expand(30))
    assert same == pytest.approx(0, abs=1e-12)
    with pytest.raises(InvalidInput, match="number of samples"):
        gradient_disparity(network, x[:3], y[:3])


def test_alignment_of_the_last_layer_by_autograd() -> None:
    network, x, y = data()
    weight = network.get_submodule("2").get_parameter("weight")
    cosines = []
    for a, b in zip(x, y, strict=True):
        (result,) = torch.autograd.grad(F.cross_entropy(network(a[None]), b[None]), weight)
        cosines.append(
            float(F.cosine_similarity(-result.flatten(), weight.detach().flatten(), dim=0))
        )
    mean = sum(cosines) / len(cosines)
    result = gradient_weight_alignment(network, x, y)
    assert result["mean"] == pytest.approx(mean, rel=1e-8)
    assert result["alignment"] == pytest.approx(mean / (kurtosis(cosines) + 1.2), rel=1e-7)
    alike = gradient_weight_alignment(network, x[:1].expand(4, 3), y[:1].expand(4))
    assert (
        alike["alignment"] != alike["alignment"] and "no kurtosis" in alike.missing()["alignment"]
    )


@pytest.mark.parametrize("factor", [1, 4, 30, 60])
def test_alignment_of_networks_that_fit_their_samples(factor: float) -> None:
    torch.manual_seed(0)
    network, x, _ = data(30)
    y = network(x).argmax(1)
    head = network.get_submodule("2")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(40 * factor)
        features, outputs = network[:2](x), network(x)  # type: ignore[index]
        # p - e over p_j of the second class j, without the cancellation in the entry of the label
        others = outputs.scatter(1, y[:, None], -torch.inf)
        by_logits = (others - others.amax(1, keepdim=True)).exp()
        by_logits.scatter_(1, y[:, None], -by_logits.sum(1, keepdim=True))
        gradients = (by_logits[:, :, None] * features[:, None]).flatten(1)
        cosines = F.cosine_similarity(-gradients, head.weight.view(1, -1)).tolist()
    result = gradient_weight_alignment(network, x, y)
    mean = sum(cosines) / len(cosines)
    assert result["mean"] == pytest.approx(mean, rel=1e-10)
    assert result["alignment"] == pytest.approx(mean / (kurtosis(cosines) + 1.2), rel=1e-9)


def test_losses_of_the_history_are_summed() -> None:
    network, samples = nn.Linear(3, 2), gs.Samples(torch.randn(30, 3), torch.arange(30) % 2)
    result = gs.train(network, samples, gs.TrainingSpec(learning_rate=0.1, epochs=4, batch_size=10))
    losses = [row["train_loss"] for row in result.history]
    readings = gs.measure(network, samples, ["training_loss_sum"], history=result.history)
    assert readings["training_loss_sum.all"].value == pytest.approx(sum(losses))
    with pytest.raises(InvalidInput, match="history="):
        gs.measure(network, samples, ["training_loss_sum"])
    with pytest.raises(InvalidInput, match=r"train_loss .*for every epoch"):
        training_loss_sum(network, history=[{"epoch": 1}])


def test_multiply_accumulates_of_layers() -> None:
    convolution = nn.Conv2d(4, 6, 3, stride=2, groups=2)
    assert (
        multiply_accumulates(nn.Sequential(convolution, nn.Flatten()), torch.ones(2, 4, 9, 9))
        == 16 * 6 * 2 * 9
    )
    assert (
        multiply_accumulates(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.ones(3, 3, 4))
        == 60
    )


def test_multiply_accumulates_of_recurrence_and_attention() -> None:
    network, samples = CASES["LSTM"].make(3)  # 4 steps, 5 inputs, 6 states, 4 gates, 3 classes
    assert multiply_accumulates(network, samples.inputs) == 4 * (5 + 6) * 24 + 6 * 3
    network, samples = CASES["encoder"].make(3)
    # 6 tokens, width 8: projections 4 * 8 * 8 and two products of attention 2 * 6 * 8, feed-forward 2 * 8 * 16
    layer = 6 * (4 * 64 + 2 * 6 * 8 + 2 * 128)
    assert multiply_accumulates(network, samples.inputs) == 2 * layer + 8 * 8 + 8 * 3


def test_a_frame_is_a_history_and_a_number_is_none() -> None:
    frame: Any = pandas.DataFrame({"train_loss": [1.0, 0.5]})
    samples = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    readings = gs.measure(nn.Linear(2, 2), samples, ["training_loss_sum"], history=frame)
    assert readings["training_loss_sum.all"].value == 1.5
    with pytest.raises(InvalidInput, match="one mapping per epoch"):
        gs.measure(nn.Linear(2, 2), samples, ["training_loss_sum"], history=["low"])
