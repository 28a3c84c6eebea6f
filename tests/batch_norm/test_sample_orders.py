"""Layers that take the samples in several rows each, or in another dimension: as the same function on [n, C, T]."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import NotMeasurable

N, T = 24, 6


class Tokens(nn.Module):
    """Batch norm of tokens, which takes them in one of several orders."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.a = nn.Linear(3, 4)
        self.b = nn.BatchNorm1d(4)
        self.c = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.order == "samples, tokens":
            h = self.b(h.flatten(0, 1)).view(h.shape)
        elif self.order == "tokens, samples":
            h = self.b(h.transpose(0, 1).flatten(0, 1)).view(h.shape[1], -1, 4).transpose(0, 1)
        elif self.order == "samples last":
            h = self.b(h.permute(1, 2, 0)).permute(2, 0, 1)
        elif self.order == "random":
            order = torch.randperm(len(x) * x.shape[1], generator=torch.Generator().manual_seed(0))
            h = self.b(h.flatten(0, 1)[order])[order.argsort()].view(h.shape)
        else:
            h = self.b(h.transpose(1, 2)).transpose(1, 2)
        return self.c(torch.tanh(h).mean(1))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, of_samples = (torch.randn(N, t, 3, generator=generator).double() for t in (T, 1))
    return x + of_samples, torch.arange(N) % 3


def network(order: str) -> Tokens:
    torch.manual_seed(0)
    result = Tokens(order).double().eval()
    with torch.no_grad():
        result.b.weight.copy_(torch.tensor([0.5, 1.0, 1.5, 2.0]))
    gs.batch_norm.refresh_population(result, data())
    return result


def numbers(order: str) -> list[Any]:
    decay = gs.batch_norm.gamma_decay(network(order), data(), batch_size=8)
    penalty = gs.penalties.GammaDecayPenalty(batch_size=8)(network(order), *data()).detach()
    # the root of a full covariance, and so its noise, has a sign that depends on rounding
    [excess] = gs.batch_norm.batch_norm_excess(
        network(order), data(), batch_sizes=(4,), passes=2, covariance="diagonal"
    )
    return [*map(float, (decay.decay, penalty, excess.measured, excess.predicted))]


@pytest.mark.parametrize("order", ["samples, tokens", "tokens, samples", "samples last"])
def test_equal_functions_have_equal_numbers(order: str) -> None:
    assert numbers(order) == pytest.approx(numbers("channels"), rel=1e-9)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(NotMeasurable, match="'b'"):
        gs.batch_norm.gamma_decay(network("random"), data(), batch_size=8)


def test_ghost_batches_are_advised_where_their_parts_are_parts_of_the_samples() -> None:
    advised = [
        gs.advise_batch_norm(network(order), data(), batch_size=4, new_batch_size=8, passes=1)
        for order in ("channels", "samples, tokens")
    ]
    assert [advice.ghost_size for advice in advised] == [4, None]
    assert float(advised[0].missing) == pytest.approx(float(advised[1].missing))
