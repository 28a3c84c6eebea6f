"""Small untrained networks with spread-out activations, in evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gapscope.networks import build_network

Network = TypeVar("Network", bound=nn.Module)


def built(name: str, *, input_shape: Any = (3, 32, 32), **options: Any) -> nn.Module:
    """A network of gapscope's, He-initialized, its batch-norm statistics taken from noise."""
    network = build_network(
        name,
        input_shape=input_shape,
        n_outputs=7,
        initialization="he_normal",
        generator=torch.Generator().manual_seed(3),
        **options,
    )
    network(noise(16, *input_shape))
    return network.eval()


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Functional(nn.Module):
    """Functional activations, a ReLU module used twice, a read batch size, an option."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(6 * 16, 5)
        self.shift = nn.Parameter(torch.full((6 * 16,), 0.1))

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        n = x.size(0)
        if scale is not None:
            x = x * scale
        hidden = self.relu(self.second(self.relu(self.first(x))))
        self.seen = hidden
        return self.head(F.max_pool2d(hidden, 2).view(n, -1) + self.shift)


class BareRelu(nn.Module):
    """A convolution followed by F.relu and average pooling: no module returns the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.convolution(x))).mean((2, 3)))


class Block(nn.Module):
    """A residual block with F.relu behind the sum, and a squeeze-and-excitation gate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze = nn.Conv2d(channels, 2, 1)
        self.excite = nn.Conv2d(2, channels, 1)
        nn.init.normal_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(F.relu(self.first(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(hidden.mean((2, 3), keepdim=True)))))
        return F.relu(x + gate * hidden)


class Attention(nn.Module):
    """Convolution and ReLU, then tokens through attention, layer norm and GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, stride=4)
        self.relu = nn.ReLU()
        self.position = nn.Parameter(0.1 * torch.ones(1, 4, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 12)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(12, 8)
        self.head = nn.Linear(8, 5)
        nn.init.normal_(self.narrow.weight)
        nn.init.normal_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.relu(self.patches(x)).flatten(2).transpose(1, 2) + self.position
        tokens = tokens + self.attention(tokens, tokens, tokens)[0]
        tokens = tokens + self.narrow(self.gelu(self.wide(self.norm(tokens))))
        return self.head(tokens.mean(1))


class Untraceable(nn.Module):
    """Network with a branch that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.ReLU())
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) if x.sum() < 1e6 else self.body(-x))


def initialized(make: Callable[[], Network]) -> Network:
    """Build with torch's default initialization from a fixed seed, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


@torch.no_grad()
def naive_predictions(
    network: nn.Module, layer: str, x: Tensor, ranking: Tensor, *, unit_axis: int = 1
) -> Tensor:
    """Predicted classes [2, s, M + 1]: both orders, samples, number of removed units."""
    module, orders = network.get_submodule(layer), []
    for order in (ranking, ranking.flip(0)):
        mask, steps = torch.ones(len(ranking), dtype=x.dtype, device=x.device), []

        def masked(module: nn.Module, args: object, output: Tensor, mask: Tensor = mask) -> Tensor:
            shape = [1] * output.ndim
            shape[unit_axis] = len(mask)
            return output * mask.view(shape)

        handle = module.register_forward_hook(masked)
        for n in range(len(ranking) + 1):
            mask[order[:n]] = 0
            steps.append(network(x).argmax(1))
        handle.remove()
        orders.append(torch.stack(steps, 1))
    return torch.stack(orders)
