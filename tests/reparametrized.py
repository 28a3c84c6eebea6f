"""Networks with other weights that compute the same: what a measure's `unchanged_by` is checked on."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.training.loop import train

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
    return network.double().eval(), samples, {name: tensor.double() for name, tensor in initial.items()}


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
        network[7].bias.add_(0.7)  # type: ignore[operator]
    return network


CHANGES: dict[str, Callable[[nn.Sequential], nn.Sequential]] = {
    "layer rescaling": rescaled,
    "unit permutation": permuted,
    "head shift": shifted,
}
