from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gapscope.networks.factory import build_network
from gapscope.networks.resnet import PaddedShortcut


@pytest.mark.parametrize(
    ("name", "input_shape", "parameters"),
    # The narrow one on CIFAR: 0.27 million (He et al. 2016, Table 6), here with the shortcut without parameters
    [
        ("resnet18", (3, 32, 32), 11_173_962),
        ("resnet34", (3, 32, 32), 21_282_122),
        ("resnet20", (3, 32, 32), 269_722),
        ("resnet20", (1, 28, 28), 269_434),
    ],
)
def test_parameter_counts(name: str, input_shape: tuple[int, int, int], parameters: int) -> None:
    network = build_network(name, input_shape=input_shape, n_outputs=10)
    assert sum(p.numel() for p in network.parameters()) == parameters
    # A residual network is named after its weighted layers, shortcuts apart.
    weighted = [m for n, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear) and "shortcut" not in n]
    assert len(weighted) == int(name.removeprefix("resnet"))


def test_a_block_is_the_relu_of_branch_plus_shortcut() -> None:
    network = build_network("resnet18", input_shape=(3, 8, 8), n_outputs=10, width_multiplier=0.1).double().eval()
    block = network.get_submodule("stage2_block1")
    p = {**dict(block.named_parameters()), **dict(block.named_buffers())}
    x = torch.rand(2, 6, 8, 8, dtype=torch.float64)

    def normalized(name: str, x: torch.Tensor) -> torch.Tensor:
        keys = (f"{name}_norm.{key}" for key in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *(p[key] for key in keys))

    h = functional.conv2d(x, p["branch.conv1.weight"], stride=2, padding=1)
    h = functional.conv2d(normalized("branch.conv1", h).relu(), p["branch.conv2.weight"], padding=1)
    shortcut = normalized("shortcut.conv", functional.conv2d(x, p["shortcut.conv.weight"], stride=2))
    expected = (normalized("branch.conv2", h) + shortcut).relu()
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-14)


def test_padded_shortcut() -> None:
    x = torch.arange(32.0).reshape(1, 2, 4, 4)
    y = PaddedShortcut(5, 2)(x)
    assert y.shape == (1, 5, 2, 2)
    assert torch.equal(y[:, 1:3], x[:, :, ::2, ::2])
    assert not y[:, [0, 3, 4]].any()


@pytest.mark.parametrize(("normalization", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)])
def test_normalization_and_biases(normalization: str, kind: type[nn.Module]) -> None:
    network = build_network(
        "resnet18", input_shape=(3, 8, 8), n_outputs=2, width_multiplier=0.1, normalization=normalization
    )
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert sum(isinstance(module, kind) for module in network.modules()) == len(convolutions) == 20
    assert all(convolution.bias is None for convolution in convolutions)


def test_group_norm_keeps_samples_apart_in_training_mode() -> None:
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for normalization, apart in (("group", True), ("batch", False)):
        network = build_network("resnet20", input_shape=(1, 8, 8), n_outputs=3, normalization=normalization).train()
        assert torch.allclose(network(x)[:2], network(x[:2]), atol=1e-6) is apart
