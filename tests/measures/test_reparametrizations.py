"""Invariances of measures: exactly those in the table of measures."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.measures.registry import Measure, list_measures
from gapscope.results.readings import Readings
from gapscope.training.loop import train
from support.measures_small import HISTORY, SMALL, TABLE, options_of

CLASSES = 3
FACTOR = 4.0


def relu_network() -> tuple[nn.Sequential, Samples, dict[str, torch.Tensor]]:
    """A small convolutional ReLU network without normalization, trained a little, its samples and initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.ReLU(), nn.Flatten(),
            nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, CLASSES),
        )  # fmt: skip
        labels = torch.arange(24) % CLASSES
        x = 0.6 * torch.randn(24, 1, 6, 6) + torch.randn(CLASSES, 1, 6, 6)[labels]
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    train(network, Samples(x, labels), TrainingSpec(learning_rate=0.05, epochs=12, batch_size=8))
    samples = Samples(x.double(), labels)
    return (
        network.double().eval(),
        samples,
        {name: tensor.double() for name, tensor in initial.items()},
    )


def rescaled(network: nn.Sequential) -> nn.Sequential:
    """The first convolution times a factor, the second divided by it."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        network[0].weight.mul_(FACTOR)  # type: ignore[operator]
        network[0].bias.mul_(FACTOR)  # type: ignore[operator]
        network[2].weight.div_(FACTOR)  # type: ignore[operator]
    return network


def permuted(network: nn.Sequential) -> nn.Sequential:
    """The hidden units of the last hidden layer and the channels of the first convolution in another order."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for first, second in ((0, 2), (5, 7)):
            one, two = network[first], network[second]
            order = torch.arange(len(one.weight)).roll(1)  # type: ignore[arg-type]
            one.weight.copy_(one.weight[order])  # type: ignore[operator, index]
            one.bias.copy_(one.bias[order])  # type: ignore[operator, index]
            two.weight.copy_(two.weight[:, order])  # type: ignore[operator, index]
    return network


def shifted(network: nn.Sequential) -> nn.Sequential:
    """The same number added to every logit."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        network[7].bias.add_(7.0)  # type: ignore[operator]
    return network


CHANGES: dict[str, Callable[[nn.Sequential], nn.Sequential]] = {
    "rescaling": rescaled,
    "permutation": permuted,
    "shift": shifted,
}


NETWORK, SAMPLES, INITIAL = relu_network()
MEASURES = list_measures()
# random vectors and noise are not reparametrized with the weights: enough of them for small standard errors
DRAWS: dict[str, dict[str, Any]] = {
    "hessian_trace": {"probes": 24},
    "pacbayes_flatness": {"draws": 48},
    "pacbayes_magnitude_flatness": {"draws": 48},
    "pacbayes_norm": {"draws": 48},
}


def take(item: Measure, network: Any) -> Readings:
    initial = INITIAL if "initial" in item.needs else None
    given = {**SMALL.get(item.name, {}), **DRAWS.get(item.name, {}), **options_of(item)}
    return item(network, SAMPLES, initial_state=initial, history=HISTORY, **given)


@pytest.fixture(scope="module")
def plain() -> dict[str, Readings]:
    return {name: take(item, NETWORK) for name, item in MEASURES.items()}


def test_each_reparametrization_keeps_the_predictions() -> None:
    assert list(CHANGES) == list(TABLE.REPARAMETRIZATIONS)
    for change in CHANGES.values():
        other = change(NETWORK)
        assert not all(
            torch.equal(a, b) for a, b in zip(NETWORK.parameters(), other.parameters(), strict=True)
        )
        torch.testing.assert_close(
            other(SAMPLES.inputs).softmax(1), NETWORK(SAMPLES.inputs).softmax(1)
        )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MEASURES)
def test_exactly_the_documented_invariances_hold(
    name: str, change: str, plain: dict[str, Readings]
) -> None:
    item = MEASURES[name]
    result = take(item, CHANGES[change](NETWORK))
    pairs = [(mine.value, theirs) for mine, theirs in zip(result, plain[name], strict=True)]
    same = [
        mine == theirs.value
        or (math.isnan(mine) and math.isnan(theirs.value))
        or abs(mine - theirs.value)
        <= max(1e-4 * abs(theirs.value), 4 * (theirs.standard_error or 0.0))
        for mine, theirs in pairs
    ]
    assert all(same) is (change in TABLE.VERIFIED[name].invariances), (
        f"{change!r} {'leaves' if all(same) else 'changes'} {name}: correct docs/measures_table.py; {pairs}"
    )
