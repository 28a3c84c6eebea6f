"""One list of whole networks with inputs, for every battery: what users have, made small.

A battery takes `CASES[name].make()`; one that cannot do with some kind of network picks by `has`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.networks import build_network

CLASSES = 3


class GroupNormResidual(nn.Module):
    """Two residual blocks with group normalization, which needs no statistics of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(2, 4) for _ in range(2))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2)
        )
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = x + convolution(torch.relu(norm(x)))
        return self.head(x.mean((2, 3)))


class Encoder(nn.Module):
    """Token and place embeddings, two encoder layers with dropout as in BERT, the first token's state classified."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.1, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.layers(self.dropout(self.norm(self.words(x) + self.places(places))))
        return self.head(torch.tanh(self.pooler(hidden[:, 0])))


class LowRank(nn.Module):
    """A frozen linear layer and what LoRA trains beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LastState(nn.Module):
    """An LSTM over the rows of its input, its last state classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _fully_connected() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, CLASSES)
    )


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32, 10), nn.ReLU(), nn.Linear(10, CLASSES),
    )  # fmt: skip


def _resnet18() -> nn.Module:
    return build_network(
        "resnet18", input_shape=(1, 8, 8), n_outputs=CLASSES, width_multiplier=1 / 16
    )


def _low_rank() -> nn.Module:
    layers = [LowRank(nn.Linear(6, 10), 2), nn.GELU(), LowRank(nn.Linear(10, 8), 2), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


@dataclass(frozen=True)
class Case:
    """A network and its inputs.

    Attributes:
        build: Makes the network, untrained, from the global random state.
        shape: Shape of one input.
        tokens: Number of different token ids, 0 where inputs are floating point.
        has: "batch norm", "dropout", "frozen weights", "recurrence": what a battery may have to know.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0
    has: frozenset[str] = field(default_factory=frozenset)

    def samples(self, n: int = 8, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Samples:
        """Inputs with the labels 0, 1, 2, 0, 1, 2, ...; inputs of one class lie about one point."""
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(n) % CLASSES
        if self.tokens:
            return Samples(
                torch.randint(self.tokens, (n, *self.shape), generator=generator), labels
            )
        noise = torch.randn(n, *self.shape, generator=generator)
        points = torch.randn(CLASSES, *self.shape, generator=generator)
        return Samples((0.3 * noise + points[labels]).to(dtype), labels)

    def make(
        self, n: int = 8, *, dtype: torch.dtype = torch.float32, seed: int = 0, mode: str = "eval"
    ) -> tuple[nn.Module, Samples]:
        """The network, its batch-norm statistics those of some batches, and samples; the random state is left alone."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = self.build()
            # the up-projection of LoRA starts at zero, biases and gammas alike everywhere: nothing may be special
            for parameter in network.parameters():
                if parameter.ndim == 1 or not bool(parameter.any()):
                    nn.init.uniform_(
                        parameter.data, -0.2, 0.2
                    ) if parameter.ndim > 1 else parameter.data.add_(
                        0.2 * torch.rand_like(parameter)
                    )
            if "batch norm" in self.has:
                for batch in range(3):
                    network.train()(self.samples(32, seed=100 + batch).inputs)
        return network.to(dtype).train(mode == "train"), self.samples(n, dtype=dtype, seed=seed)


CASES: dict[str, Case] = {
    "fully connected": Case(_fully_connected, (6,)),
    "convolutional": Case(_convolutional, (1, 8, 8), has=frozenset({"batch norm", "dropout"})),
    "ResNet-18, narrow": Case(_resnet18, (1, 8, 8), has=frozenset({"batch norm"})),
    "residual, group norm": Case(GroupNormResidual, (1, 6, 6)),
    "encoder": Case(Encoder, (6,), tokens=11, has=frozenset({"dropout"})),
    "low-rank adapters": Case(_low_rank, (6,), has=frozenset({"frozen weights"})),
    "LSTM": Case(LastState, (4, 5), has=frozenset({"recurrence"})),
}


def each(*, without: str = "") -> pytest.MarkDecorator:
    """Parametrise a test by `name`, over all cases, or those that have no `without`."""
    return pytest.mark.parametrize(
        "name", [name for name, case in CASES.items() if without not in case.has]
    )
