"""Functions of the user get targets in the shape and type in which the user passed them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.samples import as_samples

X = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
FORMS: dict[str, Any] = {
    "numbers": X[:, 0],
    "a column of numbers": X[:, :1],
    "two columns": X[:, :2],
    "floats of two classes": (X[:, 0] > 0).float(),
    "a column of two classes": (X[:, :1] > 0).float(),
    "one-hot": nn.functional.one_hot(X.argmax(1), 3).float(),
    "several labels": (X > 0).double(),
    "booleans": X[:, 0] > 0,
    "labels": X.argmax(1),
    "positions": (X > 0).long() + (X > 1).long(),
}


@pytest.mark.parametrize("name", FORMS)
def test_targets_come_back_as_they_were_passed(name: str) -> None:
    passed = FORMS[name]
    samples = as_samples((X, passed)).subset(torch.arange(10, 50))
    assert samples.targets_as_passed.dtype == passed.dtype
    assert torch.equal(samples.targets_as_passed, passed[10:50])


def test_smaller_integers_and_names_are_class_numbers() -> None:
    for labels in (X.argmax(1).int(), numpy.array(["a", "b", "c"])[X.argmax(1).numpy()]):
        targets = as_samples((X, labels)).targets_as_passed
        assert targets.dtype == torch.int64 and torch.equal(targets, X.argmax(1))


def _trained(network: nn.Module, loss: Any, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """The loop of many users: one output without its axis."""
    optimizer = torch.optim.Adam(network.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        # of targets [n, 1] the squared error would be that of all pairs, whose minimum is the mean
        loss(network(x).squeeze(1), y).backward()
        optimizer.step()
    return network


def _one_logit(x: Tensor, y: Tensor) -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return _trained(network, nn.functional.binary_cross_entropy_with_logits, x, y, 60)


def _one_number(x: Tensor, y: Tensor) -> nn.Module:
    return _trained(nn.Linear(3, 1), nn.functional.mse_loss, x, y, 150)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "targets"), [(_one_logit, "floats of two classes"), (_one_number, "numbers")]
)
def test_training_functions_of_users_learn(function: Any, targets: str) -> None:
    data = X, FORMS[targets]
    torch.manual_seed(0)
    assert gs.learning_curve(function, data).score > 0.85
    assert gs.out_of_sample(function, data, cost=3).score > 0.85
    assert gs.check(function(*data), data, train_fn=function).tried is not None
