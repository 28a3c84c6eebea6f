"""The networks of the tables in docs/penalty.md: small, one channel, ten classes, by their layers' kind."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

OUTPUTS = 10
Normalization = Callable[[int], nn.Module]


def nothing(channels: int) -> nn.Module:
    return nn.Identity()


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def dense(size: int, norm: Normalization) -> nn.Module:
    hidden = [
        nn.Linear(size * size, 128),
        norm(128),
        nn.ReLU(),
        nn.Linear(128, 128),
        norm(128),
        nn.ReLU(),
    ]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, OUTPUTS))


def convolutional(size: int, norm: Normalization) -> nn.Module:
    features = [nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(16, 32, 3, padding=1), norm(32), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(32 * (size // 4) ** 2, OUTPUTS))


class Block(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, channels: int, norm: Normalization) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList([norm(channels), norm(channels)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        hidden = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(hidden)))


def residual(size: int, norm: Normalization) -> nn.Module:
    blocks = [Block(16, norm) for _ in range(3)]
    stem = [nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, OUTPUTS)
    )


class Transformer(nn.Module):
    """Two encoder layers with dropout over the rows of an image, learned positions, the mean of all rows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding, self.positions = (
            nn.Linear(size, 32),
            nn.Parameter(0.1 * torch.randn(size, 32)),
        )
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.encoder(self.embedding(x[:, 0]) + self.positions).mean(1))


# name -> the network for images of size x size
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "fully connected, 3 layers": lambda size: dense(size, nothing),
    "fully connected, LayerNorm": lambda size: dense(size, nn.LayerNorm),
    "convolutional, 2 layers": lambda size: convolutional(size, nothing),
    "convolutional, GroupNorm": lambda size: convolutional(size, group_norm),
    "convolutional, BatchNorm": lambda size: convolutional(size, nn.BatchNorm2d),
    "residual, 3 blocks": lambda size: residual(size, nothing),
    "residual, GroupNorm": lambda size: residual(size, group_norm),
    "residual, BatchNorm": lambda size: residual(size, nn.BatchNorm2d),
    "transformer, 2 layers": Transformer,
}
