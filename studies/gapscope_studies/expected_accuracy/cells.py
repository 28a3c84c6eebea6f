"""Cells of NAS-Bench-201 ranked before training, with published accuracy on CIFAR-10.

Protocol, fixed before the first score: 100 random cells, the first 300 training images of CIFAR-10, PyTorch's initial
weights, Kendall's tau-b with the published test accuracy. A cell without a score is ranked last.
"""

from __future__ import annotations

import copy
import gzip
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.data import load_dataset
from gapscope.data.location import data_root
from gapscope.inspection.hooks import forward_hooks
from gapscope.measures._forward import forward_pass
from gapscope.measures.before_training import (
    connection_sensitivity,
    jacobian_covariance,
    synaptic_flow,
)
from gapscope.measures.kernel_leave_one_out import loo_from_kernel
from gapscope.statistics.baselines import linear_ridge
from gapscope.statistics.correlations import kendall_tau
from gapscope_studies.expected_accuracy.rows import find_row, hashes_of, to_numbers, to_table
from gapscope_studies.kit.claims import estimate
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings

CELLS_PER_STAGE, WIDTHS = 5, (16, 32, 64)
OPERATIONS = ("none", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")
N_CELLS, N_IMAGES, N_SCORED, SEED = 100, 300, 64, 201
N_SAMPLED, BATCH = 2048, 25
ZEN_NOISE = 0.01
TRUTH = "cifar10-test"
NTK, FEATURES, MEAN = "NTK leave-one-out", "features leave-one-out", "mean of both"
SCORES = (NTK, FEATURES, MEAN, "parameter count", "multiply-adds", "depth", "SynFlow", "Jacobian covariance", "NASWOT",
          "SNIP", "gradient norm", "zen-score")  # fmt: skip


# --- networks of cells


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
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
    return tuple(
        tuple(part.split("~")[0] for part in node.strip("|").split("|")) for node in cell.split("+")
    )


class Cell(nn.Module):
    """NAS-Bench-201 cell of four nodes, each the sum of one operation on every earlier node."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.operations = nn.ModuleList(
            nn.ModuleList(_operation(name, width) for name in node) for node in parse(cell)
        )

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
        self.branch = nn.Sequential(
            _convolution(inputs, outputs, 3, 2), _convolution(outputs, outputs, 3)
        )
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


def build_cell_network(cell: str, n_classes: int = 10) -> nn.Sequential:
    """Build the network of a cell: stem, three stages of five cells, linear layer."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(WIDTHS[0]),
    ]
    for stage, width in enumerate(WIDTHS):
        if stage:
            layers.append(_Reduction(WIDTHS[stage - 1], width))
        layers += [Cell(cell, width) for _ in range(CELLS_PER_STAGE)]
    layers += [nn.BatchNorm2d(WIDTHS[-1]), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(WIDTHS[-1], n_classes))


def longest_path(cell: str) -> int:
    """Return the largest number of convolutions from input to output, 0 without a path.

    >>> longest_path("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|avg_pool_3x3~2|")
    2
    """
    lengths: list[float] = [0]
    for node in parse(cell):
        steps = [
            lengths[source] + name.startswith("nor_conv")
            for source, name in enumerate(node)
            if name != "none"
        ]
        lengths.append(max(steps, default=float("-inf")))
    return max(0, int(lengths[-1])) if lengths[-1] > float("-inf") else 0


def complexity(cell: str, network: nn.Module, image: Tensor) -> dict[str, int]:
    """Return parameters, multiply-adds per image [3, h, w], and longest path of a network."""
    counts: list[int] = []

    def count(name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        weight = module.get_parameter("weight")
        counts.append(
            weight.numel() * (output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1)
        )

    layers = {
        name: each
        for name, each in network.named_modules()
        if isinstance(each, nn.Conv2d | nn.Linear)
    }
    with torch.no_grad(), forward_hooks(layers, count):
        network(image[None])
    depth = len(WIDTHS) * CELLS_PER_STAGE * longest_path(cell) + 2 * (len(WIDTHS) - 1) + 2
    parameters = sum(each.numel() for each in network.parameters())
    return {"parameter count": parameters, "multiply-adds": sum(counts), "depth": depth}


# --- scores before training


def _layer_gradients(layer: nn.Module, inputs: Tensor, output: Tensor, cotangent: Tensor) -> Tensor:
    """Return per-image gradients of the parameters of a layer, [n, P]."""
    if isinstance(layer, nn.Conv2d):
        columns = nn.functional.unfold(
            inputs, layer.kernel_size, padding=layer.kernel_size[0] // 2, stride=layer.stride
        )
        return (cotangent.flatten(2) @ columns.transpose(1, 2)).flatten(1)
    if isinstance(layer, nn.BatchNorm2d):
        normalized = (output - layer.bias[:, None, None]) / layer.weight[:, None, None]
        return torch.cat([(cotangent * normalized).sum((2, 3)), cotangent.sum((2, 3))], 1)
    return torch.cat([(cotangent[:, :, None] * inputs[:, None]).flatten(1), cotangent], 1)


def sampled_kernel(
    network: nn.Module,
    x: Tensor,
    cotangent: Tensor,
    generator: torch.Generator,
    *,
    n_sampled: int = N_SAMPLED,
) -> Tensor:
    """Return an unbiased estimate of the NTK [n, n] of a combination of outputs.

    It uses at most `n_sampled` random parameters per layer, and is exact if no layer has more. In evaluation mode; for
    networks of convolutions, batch norm and linear layers that are called once each.
    """
    layers = {
        name: m
        for name, m in network.named_modules()
        if isinstance(m, nn.Conv2d | nn.BatchNorm2d | nn.Linear)
    }
    sizes = {
        name: sum(parameter.numel() for parameter in layer.parameters())
        for name, layer in layers.items()
    }
    columns = {
        name: torch.randperm(size, generator=generator)[:n_sampled] for name, size in sizes.items()
    }
    rows: list[Tensor] = []
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def store(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[name] = inputs[0].detach(), output

    for part in x.split(BATCH):
        with forward_hooks(layers, store):
            total = (network(part) @ cotangent).sum()
        outputs = [calls[name][1] for name in layers]
        gradients = torch.autograd.grad(total, outputs, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            rows.append(torch.cat([
                _layer_gradients(layer, *calls[name], gradient)[:, columns[name]]
                * (sizes[name] / len(columns[name])) ** 0.5
                for (name, layer), gradient in zip(layers.items(), gradients, strict=True)
            ], 1))  # fmt: skip
    features = torch.cat(rows)
    return features @ features.T


def activation_patterns(network: nn.Module, x: Tensor) -> float:
    """Return the NASWOT score of ReLU patterns (Mellor et al. 2021, eq. 2)."""
    kernel = torch.zeros(len(x), len(x))  # numbers of ReLUs on which two images agree

    def add(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        active = (output.flatten(1) > 0).float()
        kernel.add_(active @ active.T + (1 - active) @ (1 - active).T)

    relus = {
        name: module for name, module in network.named_modules() if isinstance(module, nn.ReLU)
    }
    with torch.no_grad(), forward_hooks(relus, add):
        network(x)
    return float(torch.linalg.slogdet(kernel.double()).logabsdet)


def gradient_norm(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the sum of gradient norms over parameters (Abdelfattah et al. 2021)."""
    loss = nn.functional.cross_entropy(network(x), y)
    gradients = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)
    return sum(float(gradient.norm()) for gradient in gradients if gradient is not None)


def zen_score(network: nn.Sequential, x: Tensor, seed: int) -> float:
    """Return the Zen-score (Lin et al. 2021, algorithm 1) with batch statistics.

    The log of the change of features with the inputs, plus batch norm scales, for standard normal inputs and weights.
    """
    network, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, generator=generator)
    variances: list[Tensor] = []

    def add(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        variances.append(inputs[0].var((0, 2, 3)).mean())

    network.train()
    norms = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.BatchNorm2d)
    }
    noise = torch.randn(x.shape, generator=generator), torch.randn(x.shape, generator=generator)
    with torch.no_grad():
        with forward_hooks(norms, add):
            features = network[:-3](noise[0])
        scales = torch.stack(variances).clamp_min(1e-12).log().sum() / 2
        moved = network[:-3](noise[0] + ZEN_NOISE * noise[1])
    return float((features - moved).abs().flatten(1).sum(1).mean().log() + scales)


def _or_none(score: Callable[[], Any]) -> float | None:
    """Return a score, or None if it is undefined (for cells with constant output)."""
    try:
        value = float(score())
    except GapscopeError:
        return None
    return value if math.isfinite(value) else None


def read_cell(cell: str, seed: int, root: str | None) -> dict[str, Any]:
    """Compute every score of one cell at one initialization, with the CPU seconds of all."""
    train = load_dataset("cifar10", root=root).train
    x, y = train.inputs[:N_IMAGES].float(), train.y
    x, y = (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y[:N_IMAGES]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "cell"))
        network = build_cell_network(cell)
    generator = torch.Generator().manual_seed(derive_seed(seed, "scores of cells"))
    size = complexity(cell, network.eval(), x[0])
    start = time.process_time()
    adapted = with_data_statistics(network, x).eval()
    features = forward_pass(adapted, x).features
    assert features is not None
    features = (features - features.mean(0)) / features.std(0, correction=0).mean().clamp_min(1e-12)
    signs = torch.randint(0, 2, (10,), generator=generator) * 2.0 - 1
    kernel = sampled_kernel(adapted, x, signs, generator)
    readings: dict[str, Any] = {
        FEATURES: _or_none(lambda: linear_ridge(features, y, n_classes=10).score),
        NTK: _or_none(lambda: loo_from_kernel(kernel, adapted, x, y).accuracy),
    }
    few, labels = x[:N_SCORED], y[:N_SCORED]
    flow = _or_none(lambda: synaptic_flow(adapted, few))
    return readings | size | {
        "SynFlow": flow,
        # no flow: the outputs do not depend on the inputs, and rows of zeros would have the best correlations
        "Jacobian covariance": None if flow is None else _or_none(lambda: jacobian_covariance(adapted, few)),
        "NASWOT": _or_none(lambda: activation_patterns(adapted, few)),
        "SNIP": _or_none(lambda: connection_sensitivity(adapted, few, labels)),
        "gradient norm": _or_none(lambda: gradient_norm(adapted, few, labels)),
        "zen-score": _or_none(lambda: zen_score(network, few, derive_seed(seed, "zen-score"))),
        "cpu_seconds": time.process_time() - start,
    }  # fmt: skip


def rank_correlation(table: pandas.DataFrame, score: str) -> float:
    """Return Kendall's tau-b of score and published accuracy, with cells lacking a score last."""
    values = table[score].to_numpy(dtype=float)
    lowest = np.nanmin(values) - 1 if np.isfinite(values).any() else 0.0
    return kendall_tau(np.nan_to_num(values, nan=lowest), table[TRUTH].to_numpy(dtype=float))


def regret(table: pandas.DataFrame, score: str) -> float:
    """Return the accuracy of the best cell minus that of the highest score, in points."""
    return float(
        table[TRUTH].max()
        - table[TRUTH].iloc[int(table[score].fillna(-np.inf).to_numpy().argmax())]
    )


def _row(table: pandas.DataFrame, score: str) -> dict[str, Any]:
    def tau(rows: Any, score: str = score) -> float:
        return rank_correlation(table.iloc[rows], score)

    return {
        "score": score,
        "tau": bootstrap(tau, len(table)),
        "tau minus parameter count's": bootstrap(
            lambda rows: tau(rows) - tau(rows, "parameter count"), len(table)
        ),
        "spearman": table[score]
        .fillna(table[score].min() - 1)
        .corr(table[TRUTH], method="spearman"),
        "regret in points": regret(table, score),
    }


def cell_ranking(setting: RunSettings) -> Outcome:
    """Compare the mean scores over seeds with the published accuracy by Kendall's tau."""
    with gzip.open(data_root(setting.data_root) / "nasbench201" / "cells.csv.gz", "rt") as file:
        cells = pandas.read_csv(file).sample(N_CELLS, random_state=SEED)
    cells = cells.iloc[: setting.choose(smoke=4, small=N_CELLS, paper=N_CELLS)]
    seeds = setting.choose(smoke=1, small=3, paper=3)
    jobs = {
        f"cell {index} seed {seed}": partial(read_cell, cell, seed, setting.data_root)
        for seed in range(seeds)
        for index, cell in cells["cellstr"].items()
    }
    readings = pandas.DataFrame(setting.cached("cells", jobs).values())
    scores = [name for name in SCORES if name != MEAN]
    by_cell = readings[scores].astype(float).groupby(np.tile(np.arange(len(cells)), seeds)).mean()
    table = by_cell.set_index(cells.index).assign(**{TRUTH: cells[TRUTH]})
    table[MEAN] = (table[NTK] + table[FEATURES]) / 2
    rows = sorted((_row(table, score) for score in SCORES), key=lambda row: -row["tau"].value)
    gain = find_row(rows, "score", MEAN)["tau minus parameter count's"]
    name = f"{seeds} seeds"
    return Outcome(
        numbers={
            "rows": {name: to_numbers(rows)},
            "cells": table.rename_axis("cell").reset_index().round(4).to_dict("list"),
            "median_cpu_seconds": float(readings["cpu_seconds"].median()),
        },
        claims=[
            estimate(
                "ours", "leave-one-out accuracy before training ranks cells better than their size",
                "Kendall's tau minus that of the parameter count", gain, above=0.0, ours=True, unit="cells",
                compared=(), untrained="published accuracies of fully trained networks",
            )
        ],
        tables={name: to_table(rows)},
        verdict=(
            f"Cells are the units. The NTK is that of one random combination of the outputs, from at most "
            f"{N_SAMPLED} random parameters per layer. Accuracies are those of one training seed, published with "
            f"NAS-Bench-201; the best of these {len(cells)} cells reaches {cells[TRUTH].max():.2f} %."
        ),
        stands_in_for=[
            {"what": "cells", "paper": "15,625", "here": f"{len(cells)} random ones"},
            {"what": "images", "paper": "", "here": f"{N_IMAGES}, {N_SCORED} of them for zero-cost scores"},
            {"what": "seeds of initial weights", "paper": "", "here": str(seeds)},
        ],
        seeds=list(range(seeds)),
        data=hashes_of(setting, "cifar10"),
    )  # fmt: skip
