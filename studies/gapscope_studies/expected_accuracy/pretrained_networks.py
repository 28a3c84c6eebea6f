"""Networks pretrained on CIFAR-10: published ResNets, VGG-11 and an MLP trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.data.location import data_root

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES, EPOCHS = 10_000, 12


class _Block(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.padding = stride, (width - width_in) // 2

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return torch.relu(branch + nn.functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding)))


class CifarResNet(nn.Module):
    """ResNet of 6 `n_blocks` + 2 layers for CIFAR-10 (He et al. 2016, section 4.2, option A)."""

    def __init__(self, n_blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        width_in = 16
        for stage, width in enumerate((16, 32, 64), start=1):
            strides = [1 if stage == 1 else 2] + [1] * (n_blocks - 1)
            blocks = [_Block(width_in if i == 0 else width, width, stride) for i, stride in enumerate(strides)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            width_in = width
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalized RGB images."""
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.linear(x.mean((2, 3)))


def _resnet(n_blocks: int, *, pretrained: bool, root: str | None) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(0, f"ResNet of {n_blocks} blocks"))
        network = CifarResNet(n_blocks)
    if pretrained:
        weights = load_file(data_root(root) / "pretrained_cifar10" / f"resnet{6 * n_blocks + 2}.safetensors")
        # the files lack the counters of batch norm
        network.load_state_dict(weights, strict=False)
    return network.eval()


def _load_or_train(name: str, options: dict[str, Any], root: str | None, folder: Path) -> nn.Module:
    generator = torch.Generator().manual_seed(derive_seed(0, name))
    network = gs.build_network(name, input_shape=(3, 32, 32), n_outputs=10, generator=generator, **options)
    path = folder / f"{name}.safetensors"
    if not path.exists():
        train = gs.load_dataset("cifar10", root=root).train
        assert train.targets is not None
        data = normalize(train.inputs[:IMAGES]), train.targets[:IMAGES]
        spec = gs.TrainingSpec(epochs=EPOCHS, batch_size=64, optimizer="adam", learning_rate=1e-3)
        gs.train(network, data, spec, seed=0)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(network.state_dict(), path)
    network.load_state_dict(load_file(path))
    return network.eval()


def normalize(x: Tensor) -> Tensor:
    """Normalize RGB images in [0, 1] for the pretrained networks."""
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


NETWORKS = ("ResNet-20", "ResNet-44", "ResNet-20, untrained", "VGG-11", "fully connected")


def build_pretrained(name: str, root: str | None, folder: Path) -> nn.Module:
    """Return one of `NETWORKS` with ten outputs. Those trained here are cached in a folder."""
    if name == "VGG-11":
        return _load_or_train("vgg11", {"width_multiplier": 0.25}, root, folder)
    if name == "fully connected":
        return _load_or_train("fully_connected", {"n_hidden": 2, "width": 256}, root, folder)
    return _resnet(7 if "44" in name else 3, pretrained="untrained" not in name, root=root)
