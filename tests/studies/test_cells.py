from __future__ import annotations

import pandas
import pytest
import torch
from torch import nn

from gapscope.functional import empirical_ntk
from gapscope_studies.expected_accuracy.cells import (
    TRUTH,
    activation_patterns,
    build_cell_network,
    complexity,
    gradient_norm,
    longest_path,
    rank_correlation,
    regret,
    sampled_kernel,
)

LARGEST = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"
EMPTY = "|none~0|+|none~0|none~1|+|none~0|none~1|none~2|"


@pytest.mark.parametrize(
    ("cell", "parameters", "megaflops"), [(LARGEST, 1_531_546, 220.12), (EMPTY, 73_306, 7.783)]
)
def test_sizes_are_those_that_the_benchmark_publishes(
    cell: str, parameters: int, megaflops: float
) -> None:
    size = complexity(cell, build_cell_network(cell).eval(), torch.zeros(3, 32, 32))
    assert size["parameter count"] == parameters
    assert size["multiply-adds"] / 1e6 == pytest.approx(megaflops, abs=0.005)


def test_a_cell_sums_its_operations() -> None:
    cell = "|skip_connect~0|+|none~0|skip_connect~1|+|skip_connect~0|none~1|skip_connect~2|"  # doubles its input
    network = build_cell_network(cell).eval()
    x = torch.rand(2, 16, 8, 8)
    assert torch.equal(network[2](x), 2 * x)
    assert longest_path(cell) == 0 and longest_path(LARGEST) == 3 and longest_path(EMPTY) == 0


@pytest.mark.thorough
def test_the_kernel_equals_the_ntk_of_one_combination_of_outputs() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.weight)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    ).eval()  # fmt: skip
    x, signs = torch.randn(60, 3, 6, 6), torch.tensor([1.0, -1.0, 1.0])
    combined = nn.Linear(3, 1, bias=False)
    combined.weight = nn.Parameter(signs[None], requires_grad=False)
    reference = empirical_ntk(nn.Sequential(network, combined).eval(), x, outputs="traced")
    kernel = sampled_kernel(network, x, signs, torch.Generator().manual_seed(0))
    torch.testing.assert_close(kernel.double(), reference.double(), rtol=1e-4, atol=1e-4)
    draws = [
        sampled_kernel(network, x, signs, torch.Generator().manual_seed(seed), n_sampled=40)
        for seed in range(400)
    ]
    assert float((torch.stack(draws).mean(0) - kernel).norm() / kernel.norm()) < 0.05


def test_activation_patterns_and_gradient_norm_in_closed_form() -> None:
    head = nn.Linear(3, 2, bias=False)
    network = nn.Sequential(nn.ReLU(), head)
    x = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0]])
    assert activation_patterns(network, x) == pytest.approx(
        torch.tensor(9.0 - 1.0).log().item()
    )  # K = [[3, 1], [1, 3]]
    nn.init.zeros_(head.weight)
    # gradient of the logits: softmax minus one-hot, (-1/2, 1/2) times the input
    assert gradient_norm(network, x[:1], torch.tensor([0])) == pytest.approx((2 * 0.25 * 3) ** 0.5)


def test_cells_without_a_score_are_ranked_last() -> None:
    table = pandas.DataFrame({"score": [None, 1.0, 2.0], TRUTH: [10.0, 80.0, 90.0]})
    assert rank_correlation(table, "score") == 1.0
    assert regret(table, "score") == 0.0
    assert regret(table.assign(score=[0.0, 3.0, 2.0]), "score") == 10.0
