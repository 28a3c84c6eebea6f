"""A training function that trains one network again and again has seen what it is scored on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, SGDClassifier
from torch import Tensor, nn

import gapscope as gs
from gapscope.accuracy.subset_problems import run_configuration
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.checks.trainers import FunctionTrainer

RANDOM = np.random.default_rng(0)
X = torch.from_numpy(RANDOM.normal(size=(60, 6))).float()
Y = torch.from_numpy(RANDOM.integers(0, 2, 60))


def fit(network: nn.Module, x: Tensor, y: Tensor, steps: int = 5) -> nn.Module:
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


def new() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


SHARED = new()


def of_enclosing() -> Callable[..., Any]:
    network = new()
    return lambda x, y: fit(network, x, y)


def of_module(x: Tensor, y: Tensor) -> nn.Module:
    return fit(SHARED, x, y)


def wrapped() -> Callable[..., Any]:
    network = new()
    return lambda x, y: fit(nn.Sequential(network), x, y)


def same_storage() -> Callable[..., Any]:
    network = new()

    def train(x: Tensor, y: Tensor) -> nn.Module:
        result = new()
        for own, shared in zip(result.parameters(), network.parameters(), strict=True):
            own.data = shared.data
        return fit(result, x, y)

    return train


class OfObject:
    def __init__(self) -> None:
        self.network = new()

    def __call__(self, x: Tensor, y: Tensor) -> nn.Module:
        return fit(self.network, x, y)


def tuned_backbone() -> Callable[..., Any]:
    backbone = nn.Linear(6, 4)
    return lambda x, y: fit(nn.Sequential(backbone, nn.Linear(4, 2)), x, y)


def fixed() -> Callable[..., Any]:
    network = new()
    return lambda x, y: network


SHARING = [of_enclosing, lambda: of_module, wrapped, same_storage, OfObject, tuned_backbone, fixed]


@pytest.mark.parametrize("make", SHARING)
def test_a_shared_network_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match="inside train_fn"):
        gs.out_of_sample(make(), (X, Y), cost=5)


def test_it_is_refused_in_the_first_call() -> None:
    with pytest.raises(InvalidInput, match="inside train_fn"):
        run_configuration(of_enclosing(), X, Y, 0)


def test_a_hidden_network_is_refused_in_the_second_call() -> None:
    class Holder:
        __slots__ = ("network",)

    holder = Holder()
    holder.network = new()
    train = lambda x, y: fit(holder.network, x, y)  # noqa: E731
    run_configuration(train, X, Y, 0)
    run_configuration(train, X, Y, 0)  # the same samples again: nothing that is scored was seen
    with pytest.raises(InvalidInput, match="inside train_fn"):
        run_configuration(train, X, Y, 1)


def test_learning_curves_and_own_scores_refuse_it() -> None:
    with pytest.raises(InvalidInput, match="inside train_fn"):
        gs.learning_curve(of_enclosing(), (X, Y), design="continued halves")
    score = lambda network, x, y: float((network(x).argmax(1) == y).double().mean())  # noqa: E731
    with pytest.raises(InvalidInput, match="inside train_fn"):
        gs.learning_curve(of_enclosing(), (X, Y), score=score)


def test_tried_advice_refuses_it() -> None:
    samples = gs.Samples(X, Y)
    with pytest.raises(NotMeasurable, match="inside train_fn"):
        FunctionTrainer(of_enclosing(), None).run(samples, {}, 0)
    FunctionTrainer(lambda x, y: fit(new(), x, y), None).run(samples, {}, 0)


def frozen_backbone() -> Callable[..., Any]:
    backbone = nn.Linear(6, 4).requires_grad_(False)
    return lambda x, y: fit(nn.Sequential(backbone, nn.Linear(4, 2)), x, y)


def kept_last() -> Callable[..., Any]:
    kept: list[nn.Module] = []

    def train(x: Tensor, y: Tensor) -> nn.Module:
        kept.append(fit(new(), x, y))
        return kept[-1]

    return train


@pytest.mark.parametrize(
    "make", [lambda: lambda x, y: fit(new(), x, y), frozen_backbone, kept_last]
)
def test_new_networks_pass(make: Callable[[], Any]) -> None:
    train = make()
    for seed in range(20):  # addresses of freed networks are used again
        run_configuration(train, X, Y, seed)


def test_estimators_are_refused_only_if_they_go_on() -> None:
    shared = LogisticRegression()
    score = lambda fitted, x, y: fitted.score(x, y)  # noqa: E731
    data = (X.numpy(), Y.numpy())
    again = gs.learning_curve(lambda x, y: shared.fit(x, y), data, score=score)
    anew = gs.learning_curve(lambda x, y: LogisticRegression().fit(x, y), data, score=score)
    assert [run.score for run in again.trainings] == [run.score for run in anew.trainings]
    warm, online = LogisticRegression(warm_start=True), SGDClassifier()
    for train in (lambda x, y: warm.fit(x, y), lambda x, y: online.partial_fit(x, y, [0, 1])):
        with pytest.raises(InvalidInput, match="inside train_fn"):
            gs.learning_curve(train, data, score=score)
