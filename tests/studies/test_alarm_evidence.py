"""The evidence-based criterion against dense per-sample gradients, and on gradients that are pure noise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope_studies.overfitting_alarm.evidence import evidence_criterion


def gradients_one_by_one(network: nn.Module, samples: Samples, losses: nn.Module) -> torch.Tensor:
    assert samples.targets is not None
    rows = []
    for i in range(len(samples)):
        loss = losses(network(samples.inputs[i : i + 1]), samples.targets[i : i + 1])
        parts = torch.autograd.grad(loss, list(network.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_the_criterion_against_dense_gradients(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(37, 5, generator=generator, dtype=torch.float64)
    if kind == "classes":
        samples, losses = Samples(x, torch.randint(0, 3, (37,), generator=generator)), nn.CrossEntropyLoss()
    else:
        samples = Samples(x, torch.randn(37, 3, generator=generator, dtype=torch.float64))
        losses = nn.MSELoss(reduction="sum")
    rows = gradients_one_by_one(network, samples, losses)
    expected = 1 - float((rows.mean(0) ** 2 / rows.var(0)).mean()) * 37
    assert evidence_criterion(network, samples) == pytest.approx(expected, rel=1e-6)


def test_dead_weights_are_left_out() -> None:
    network = nn.Linear(3, 2, bias=False).double()
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 2] = 0  # no sample says anything of the last column
    samples = Samples(x, torch.arange(20) % 2)
    smaller = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        smaller.weight.copy_(network.weight[:, :2])
    assert evidence_criterion(network, samples) == pytest.approx(
        evidence_criterion(smaller, Samples(x[:, :2], samples.targets))
    )


def test_gradients_without_a_signal_have_the_criterion_zero() -> None:
    # at zero weights the gradient is (1/2 - y) x with random labels: zero on average
    network = nn.Linear(400, 2, bias=False).double()
    nn.init.zeros_(network.weight)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 400, generator=generator, dtype=torch.float64)
    found = evidence_criterion(network, Samples(x, torch.randint(0, 2, (200,), generator=generator)))
    # 400 independent weights (those of the two classes are opposite): standard error sqrt(2 / 400) = .07
    assert abs(found) < 0.2


def test_one_sample_is_too_few() -> None:
    with pytest.raises(InvalidInput, match="needs two samples or more with targets; got 1 samples"):
        evidence_criterion(nn.Linear(2, 2), Samples(torch.zeros(1, 2), torch.tensor([0])))
