from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.networks.factory import build_network


@pytest.mark.parametrize(
    ("n_hidden", "width", "parameters"),
    # CIFAR-10 images; the smallest and largest of the sensitivity paper's Fig. 2(a), and its 450k example
    [(2, 100, 318_410), (2, 480, 1_710_730), (2, 140, 451_370), (3, 140, 471_110), (0, 100, 30_730)],
)
def test_parameter_counts_of_the_paper(n_hidden: int, width: int, parameters: int) -> None:
    network = build_network("fully_connected", input_shape=(3, 32, 32), n_outputs=10, n_hidden=n_hidden, width=width)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_order_of_layers() -> None:
    network = build_network("fully_connected", input_shape=(4,), n_outputs=2, n_hidden=1, batch_norm=True, dropout=0.5)
    assert [name for name, _ in network.named_children()] == [
        "flatten", "fc1", "fc1_norm", "fc1_relu", "fc1_dropout", "output",
    ]  # fmt: skip
    assert isinstance(network.get_submodule("fc1_norm"), nn.BatchNorm1d)


def test_against_a_product_of_matrices() -> None:
    network = build_network(
        "fully_connected", input_shape=(3, 2), n_outputs=2, n_hidden=2, width=5, activation="tanh"
    ).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64)
    h = x.reshape(4, 6)
    for name in ("fc1", "fc2"):
        h = torch.tanh(h @ network.get_parameter(f"{name}.weight").T + network.get_parameter(f"{name}.bias"))
    expected = h @ network.get_parameter("output.weight").T + network.get_parameter("output.bias")
    torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-14)
