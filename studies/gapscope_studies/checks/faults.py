"""Data sets, network families, and faults to plant in them."""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import gapscope as gs

IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10")
TABLES = ("concrete", "california_housing")
FAMILIES = ("fully connected", "batch norm", "residual")
N, N_TEST, MAX_SIDE = 250, 1000, 16
Data = tuple[Tensor, Tensor]


class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.branch(x)


class Wiggly(nn.Module):
    """A network plus a high-frequency function of its inputs: a planted sensitivity."""

    def __init__(self, network: nn.Module, x: Tensor, generator: torch.Generator) -> None:
        super().__init__()
        self.network = network
        with torch.no_grad():
            logits = network(x)
        self.directions = nn.Parameter(
            torch.randn(x[0].numel(), logits.shape[1], generator=generator), requires_grad=False
        )
        self.frequency = 30.0 / float((x.flatten(1) @ self.directions).std())
        self.amplitude = 2.0 * float(logits.std())

    def forward(self, x: Tensor) -> Tensor:
        """Return logits plus sine waves."""
        return self.network(x) + self.amplitude * torch.sin(
            self.frequency * (x.flatten(1) @ self.directions)
        )


def draw(name: str, seed: int, n: int = N) -> tuple[Data, Data]:
    """Return disjoint samples: images of at most 16 x 16 pixels, or tables with three classes."""
    problem: Any = gs.load_dataset(name)
    x = torch.cat([problem.train.inputs, problem.test.inputs])
    y = torch.cat([problem.train.targets, problem.test.targets]).flatten()
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: n + N_TEST]
    if name in TABLES:
        y = torch.bucketize(
            y, torch.quantile(y.double(), torch.tensor([1 / 3, 2 / 3], dtype=torch.double)).to(y)
        )
    first: dict[bytes, int] = {}
    for row in rows.tolist():
        first.setdefault(x[row].numpy().tobytes(), row)
    rows = torch.tensor(list(first.values()))  # without exact repeats, which concrete has
    x, y = x[rows].clone(), y[rows].long()
    if x.ndim == 4 and x.shape[-1] > MAX_SIDE:
        x = nn.functional.avg_pool2d(x, 2)
    return (x[:n], y[:n]), (x[n:], y[n:])


def build(family: str, data: Data, seed: int) -> nn.Module:
    """Build an untrained network of a family, with fully connected layers for tables."""
    x, classes = data[0], int(data[1].max()) + 1
    is_table, options = x.ndim == 2, {"input_shape": tuple(x.shape[1:]), "n_outputs": classes}
    torch.manual_seed(seed)
    if family == "fully connected" or (is_table and family == "batch norm"):
        return gs.build_network(
            "fully_connected", width=64, batch_norm=family == "batch norm", **options
        )
    if family == "batch norm":
        return gs.build_network(
            "small_cnn", depth=2, width_multiplier=0.25, batch_norm=True, **options
        )
    width = 64 if is_table else 12
    first = (
        nn.Linear(x.shape[1], width)
        if is_table
        else nn.Conv2d(x.shape[1], width, 3, stride=2, padding=1)
    )
    layer = (
        partial(nn.Linear, width, width)
        if is_table
        else partial(nn.Conv2d, width, width, 3, padding=1)
    )
    layers: list[tuple[str, nn.Module]] = [("first", first), ("relu", nn.ReLU())]
    layers += [
        (f"block{i}", Residual(nn.Sequential(layer(), nn.ReLU(), layer()))) for i in range(2)
    ]
    layers += [] if is_table else [("flatten", nn.Flatten())]
    with torch.no_grad():
        features = nn.Sequential(OrderedDict(layers))(x[:1]).numel()
    return nn.Sequential(OrderedDict([*layers, ("output", nn.Linear(features, classes))]))


def add_duplicates(data: Data, generator: torch.Generator, *, exact: bool) -> Data:
    """Repeat 5 to 20 % of the samples, exactly or with noise of 1 % of the spread."""
    x, y = data
    k = int(len(x) * (0.05 + 0.15 * float(torch.rand((), generator=generator))))
    rows = torch.randperm(len(x), generator=generator)[:k]
    copies = x[rows]
    if not exact:
        copies = copies + 0.01 * x.std() * torch.randn(copies.shape, generator=generator)
    return torch.cat([x, copies]), torch.cat([y, y[rows]])


def flip_labels(data: Data, generator: torch.Generator) -> Data:
    """Replace 10, 20 or 30 % of the labels by another class."""
    rate = (0.1, 0.2, 0.3)[int(torch.randint(3, (), generator=generator))]
    x, y = data
    return x, gs.data.inject_label_noise(y, rate, int(y.max()) + 1, generator)


def thin_out_class(data: Data, generator: torch.Generator) -> Data:
    """Remove nine tenths of the samples of one class."""
    x, y = data
    rare = int(torch.randint(int(y.max()) + 1, (), generator=generator))
    members = torch.nonzero(y == rare).flatten()
    keep = torch.ones(len(y), dtype=torch.bool)
    keep[members[max(1, len(members) // 10) :]] = False
    return x[keep], y[keep]


def unscale(data: Data, generator: torch.Generator) -> Data:
    """Multiply one column by 1,000, or scale the pixels of images to 0 to 255."""
    x, y = data
    x = x.clone()
    if x.ndim == 2:
        x[:, int(torch.randint(x.shape[1], (), generator=generator))] *= 1000
        return x, y
    return (x - x.min()) / (x.max() - x.min()) * 255, y


def rescale_weights(network: nn.Module, generator: torch.Generator) -> nn.Module:
    """Multiply weights by 10 or 0.1 (with batch norm: of the last layer by 100 or 0.001)."""
    network = copy.deepcopy(network)
    large = bool(torch.rand((), generator=generator) < 0.5)
    normalized = any(
        isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in network.modules()
    )
    factor = (100 if large else 1e-3) if normalized else (10 if large else 0.1)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not normalized or name.startswith("output"):
                parameter.mul_(factor)
    return network


def add_bottleneck(network: nn.Module, x: Tensor, generator: torch.Generator) -> nn.Module:
    """Project the inputs of a network to one dimension."""
    d = x[0].numel()
    down, up = nn.Linear(d, 1, bias=False), nn.Linear(1, d, bias=False)
    with torch.no_grad():
        down.weight.copy_(torch.randn(1, d, generator=generator) / d**0.5)
        up.weight.copy_(torch.randn(d, 1, generator=generator))
    return nn.Sequential(
        nn.Flatten(), down, up, nn.Unflatten(1, x.shape[1:]), copy.deepcopy(network)
    )


def switch_off_units(network: nn.Module, generator: torch.Generator) -> nn.Module:
    """Switch off 30 % of the units before the ReLU layers of a network."""
    network, bias = copy.deepcopy(network), None
    for module in network.modules():
        if isinstance(module, nn.ReLU) and bias is not None:
            with torch.no_grad():
                bias[torch.rand(len(bias), generator=generator) < 0.3] = -1e4
        if isinstance(module, nn.Linear | nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d):
            bias = module.bias
    return network


def age_statistics(network: nn.Module) -> nn.Module:
    """Move the running statistics of batch norm half way to their initial values."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.mul_(0.5)
            module.running_var.mul_(0.5).add_(0.5)
    return network


def rare_class(data: Data, generator: torch.Generator) -> Data:
    """Leave one to four samples of one class."""
    x, y = data
    rare = int(torch.randint(int(y.max()) + 1, (), generator=generator))
    members = torch.nonzero(y == rare).flatten()
    keep = torch.ones(len(y), dtype=torch.bool)
    keep[members[int(torch.randint(1, 5, (), generator=generator)) :]] = False
    return x[keep], y[keep]


def overlapping_windows(data: Data, generator: torch.Generator) -> Data:
    """Average each sample with the next three of its class, in the order of the classes, as windows of a series are."""
    x, y = data
    order = torch.randperm(len(y), generator=generator)
    order = order[y[order].argsort(stable=True)]
    x, y = x[order], y[order]
    parts = [x[i : len(x) - 3 + i] for i in range(4)]
    return torch.stack(parts).mean(0), y[:-3]


def add_label_column(data: Data, generator: torch.Generator) -> Data:
    """Add a column that is the label plus noise of a tenth, or a function of it."""
    x, y = data
    column = y.to(x.dtype) + 0.1 * torch.randn(len(y), generator=generator)
    if bool(torch.rand((), generator=generator) < 0.5):
        column = torch.exp(column)
    return torch.cat([x, column[:, None]], 1), y


def add_counter(data: Data, generator: torch.Generator) -> Data:
    """Add a column that counts the rows."""
    x, y = data
    first = int(torch.randint(1000, (), generator=generator))
    return torch.cat([x, torch.arange(first, first + len(y)).to(x.dtype)[:, None]], 1), y


def toss_coins(data: Data, generator: torch.Generator) -> Data:
    """Replace the labels by random classes."""
    x, y = data
    return x, torch.randint(int(y.max()) + 1, y.shape, generator=generator)


def train_without_first_layer(network: nn.Module, data: Data, seed: int) -> nn.Module:
    """Train a network of which the first layer keeps its initial weights, as if the optimizer had not got them."""
    first = next(network.parameters())
    first.requires_grad_(False)
    gs.train(network, data, gs.TrainingSpec(epochs=30, learning_rate=0.05, momentum=0.9), seed=seed)
    first.requires_grad_(True)
    return network
