"""Networks and data for the tests of normalization."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples

Network = TypeVar("Network", bound=nn.Module)


def images(n: int = 40, seed: int = 0, dtype: torch.dtype = torch.float64) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=generator)
    x = (
        torch.randn(n, 2, 6, 6, generator=generator, dtype=torch.float64)
        + y[:, None, None, None] * 0.7
    )
    return Samples(x.to(dtype), y)


class Residual(nn.Module):
    """Residual network with a normalization fed by a convolution and one fed by a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.BatchNorm2d(4)  # registered first, runs last
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm2 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        x = self.relu(self.last(x + self.norm2(self.conv2(x))))
        return self.fc(x.mean((2, 3)))


def plain(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, bias=False), nn.BatchNorm2d(5),
        nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3),
    ).to(dtype)  # fmt: skip


def warmed_up(network: Network, seed: int = 0) -> Network:
    """Set random weights, gammas, betas and running statistics, and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.4 + (1.0 if parameter.ndim == 1 else 0.0))
    dtype = next(network.parameters()).dtype
    for batch in range(10):
        network(images(seed=batch, dtype=dtype).inputs)
    return network.eval()
