"""Networks of NAS-Bench-201 (Dong and Yang 2020, arXiv:2001.00326), and the published accuracies of half of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas
import torch
from torch import Tensor, nn

from gapscope.inspection.hooks import forward_hooks

CELLS_PER_STAGE, WIDTHS = 5, (16, 32, 64)
OPERATIONS = ("none", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """ReLU, convolution, batch norm, in this order."""
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class _Zero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


def _operation(name: str, width: int) -> nn.Module:
    if name == "none":
        return _Zero()
    if name == "skip_connect":
        return nn.Identity()
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return _convolution(width, width, int(name[-1]))


def parse(cell: str) -> tuple[tuple[str, ...], ...]:
    """Return the operations into nodes 1, 2 and 3, from node 0 upwards.

    >>> parse("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|none~1|avg_pool_3x3~2|")[2]
    ('skip_connect', 'none', 'avg_pool_3x3')
    """
    nodes = tuple(tuple(part.split("~")[0] for part in node.strip("|").split("|")) for node in cell.split("+"))
    if [len(node) for node in nodes] != [1, 2, 3] or not {name for node in nodes for name in node} <= set(OPERATIONS):
        raise ValueError(f"Not a cell of NAS-Bench-201: {cell!r}.")
    return nodes


class Cell(nn.Module):
    """Four nodes, from the input to the output; each is the sum of one operation on every earlier node."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.operations = nn.ModuleList(nn.ModuleList(_operation(name, width) for name in node) for node in parse(cell))

    def forward(self, x: Tensor) -> Tensor:
        """Return the last node."""
        nodes = [x]
        for operations in self.operations:
            assert isinstance(operations, nn.ModuleList)
            results = [operation(node) for operation, node in zip(operations, nodes, strict=True)]
            nodes.append(torch.stack(results).sum(0))
        return nodes[-1]


class _Reduction(nn.Module):
    """Residual block that halves the image and doubles the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(_convolution(inputs, outputs, 3, 2), _convolution(outputs, outputs, 3))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


def build_cell_network(cell: str, n_classes: int = 10) -> nn.Sequential:
    """Build the network of a cell with PyTorch's initial weights: stem, three stages of five cells, linear layer."""
    layers: list[nn.Module] = [nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0])]
    for stage, width in enumerate(WIDTHS):
        if stage:
            layers.append(_Reduction(WIDTHS[stage - 1], width))
        layers += [Cell(cell, width) for _ in range(CELLS_PER_STAGE)]
    layers += [nn.BatchNorm2d(WIDTHS[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(WIDTHS[-1], n_classes))


def longest_path(cell: str) -> int:
    """Return the largest number of convolutions between input and output of a cell; 0 if there is no path.

    >>> longest_path("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|avg_pool_3x3~2|")
    2
    """
    lengths: list[float] = [0]
    for node in parse(cell):
        steps = [lengths[source] + name.startswith("nor_conv") for source, name in enumerate(node) if name != "none"]
        lengths.append(max(steps, default=float("-inf")))
    return max(0, int(lengths[-1])) if lengths[-1] > float("-inf") else 0


def complexity(cell: str, network: nn.Module, image: Tensor) -> dict[str, int]:
    """Parameters, multiply-adds of convolutions and linear layers for one image [3, h, w], and longest path."""
    counts: list[int] = []

    def count(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        weight = module.get_parameter("weight")
        counts.append(weight.numel() * (output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1))

    layers = {name: each for name, each in network.named_modules() if isinstance(each, nn.Conv2d | nn.Linear)}
    with torch.no_grad(), forward_hooks(layers, count):
        network(image[None])
    depth = len(WIDTHS) * CELLS_PER_STAGE * longest_path(cell) + 2 * (len(WIDTHS) - 1) + 2
    parameters = sum(each.numel() for each in network.parameters())
    return {"parameter count": parameters, "multiply-adds": sum(counts), "depth": depth}


def published_cells(root: Path) -> pandas.DataFrame:
    """Return the cells with their published accuracies in percent, in the order of the file."""
    with gzip.open(root / "nasbench201" / "cells.csv.gz", "rt") as file:
        return pandas.read_csv(file)
