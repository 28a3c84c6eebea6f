"""The four networks of the comparison, with inputs whose kernel has realistic off-diagonals, and their JAX twins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OUTPUTS = 10
SHAPES = {"fc": (1, 28, 28), "lenet": (1, 28, 28), "resnet20": (3, 32, 32), "vgg16": (3, 32, 32)}
VGG = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
BLOCKS = [(16, 1)] * 3 + [(32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)]


class Block(nn.Module):
    """Residual block without normalization; the branch is halved so that the signal keeps its size."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.shortcut(x) + 0.5 * self.second(F.relu(self.first(x))))


def _layers(name: str) -> list[nn.Module]:
    if name == "fc":
        widths = [
            nn.Linear(784, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, OUTPUTS),
        ]
        return [nn.Flatten(), *widths]
    if name == "lenet":
        features = [
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
        ]
        head = [
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, OUTPUTS),
        ]
        return [*features, nn.MaxPool2d(2), nn.Flatten(), *head]
    if name == "resnet20":
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU()]
        channels = 16
        for outputs, stride in BLOCKS:
            layers.append(Block(channels, outputs, stride))
            channels = outputs
        return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, OUTPUTS)]
    layers, channels = [], 3
    for width in VGG:
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
    head = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, OUTPUTS)]
    return [*layers, nn.Flatten(), *head]


def make(name: str, device: str) -> nn.Sequential:
    """The network with He initialization and small random biases, always the same."""
    torch.manual_seed(0)
    network = nn.Sequential(*_layers(name))
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
            nn.init.normal_(module.bias, std=0.05)  # type: ignore[arg-type]
    return network.to(device).eval()


def batch(name: str, n: int, device: str) -> tuple[Tensor, Tensor]:
    """Inputs scattered about one prototype a class, and the classes."""
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(0, OUTPUTS, (n,), generator=generator)
    prototypes = torch.randn(OUTPUTS, *SHAPES[name], generator=torch.Generator().manual_seed(7))
    x = 0.7 * prototypes[y] + 0.7 * torch.randn(n, *SHAPES[name], generator=generator)
    return x.to(device), y.to(device)


def jax_twin(name: str, network: nn.Sequential) -> tuple[Any, Any]:
    """The same function in JAX with the same weights, channels last as XLA prefers: `(apply(params, x), params)`."""
    import jax.numpy as jnp  # type: ignore[import-not-found]
    from jax import lax  # type: ignore[import-not-found]

    def convolve(p: Any, x: Any, stride: int = 1, padding: int | None = None) -> Any:
        pad = p["w"].shape[0] // 2 if padding is None else padding
        form = ("NHWC", "HWIO", "NHWC")
        z = lax.conv_general_dilated(
            x, p["w"], (stride, stride), [(pad, pad)] * 2, dimension_numbers=form
        )
        return z + p["b"]

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def dense(p: Any, x: Any) -> Any:
        return x @ p["w"] + p["b"]

    def relu(x: Any) -> Any:
        return jnp.maximum(x, 0)

    def weights(module: Any, image: tuple[int, int, int] | None = None) -> Any:
        w, b = module.weight.detach().cpu().numpy(), module.bias.detach().cpu().numpy()
        if w.ndim == 4:
            return {"w": jnp.array(w.transpose(2, 3, 1, 0)), "b": jnp.array(b)}
        if image:
            w = w.reshape(-1, *image).transpose(0, 2, 3, 1).reshape(w.shape[0], -1)
        return {"w": jnp.array(w.T), "b": jnp.array(b)}

    plain = [module for module in network if isinstance(module, nn.Conv2d | nn.Linear)]
    if name == "resnet20":
        blocks = [{k: weights(m) for k, m in b.named_children() if not isinstance(m, nn.Identity)}
                  for b in network if isinstance(b, Block)]  # fmt: skip
        parameters: Any = [weights(plain[0]), *blocks, weights(plain[-1])]
    else:
        first_dense = next(i for i, module in enumerate(plain) if isinstance(module, nn.Linear))
        images = {"lenet": (16, 5, 5), "vgg16": (512, 1, 1)}
        parameters = [
            weights(m, images.get(name) if i == first_dense else None) for i, m in enumerate(plain)
        ]

    def apply(p: Any, x: Any) -> Any:
        if name == "fc":
            x = x.reshape(x.shape[0], -1)
        elif name == "lenet":
            x = pool(relu(convolve(p[0], x)))
            x = pool(relu(convolve(p[1], x, padding=0))).reshape(x.shape[0], -1)
        elif name == "resnet20":
            x = relu(convolve(p[0], x))
            for q, (_, stride) in zip(p[1:-1], BLOCKS, strict=True):
                h = convolve(q["second"], relu(convolve(q["first"], x, stride)))
                x = relu((convolve(q["shortcut"], x, stride) if "shortcut" in q else x) + 0.5 * h)
            return dense(p[-1], x.mean((1, 2)))
        else:
            convolutions = iter(p)
            for width in VGG:
                x = pool(x) if isinstance(width, str) else relu(convolve(next(convolutions), x))
            x = x.reshape(x.shape[0], -1)
        return dense(p[-1], relu(dense(p[-2], relu(dense(p[-3], x)))))

    return apply, parameters
