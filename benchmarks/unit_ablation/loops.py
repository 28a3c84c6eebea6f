"""Two loops that ablate units one n after the other, for comparison: the whole network each time, or a cached tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

BATCH = 128


def _orders(activations: Tensor) -> tuple[Tensor, Tensor]:
    """Units by descending mean over samples and positions, and the reverse, as in the authors' program."""
    descending = activations.mean((0, 2, 3)).argsort(descending=True, stable=True)
    return descending, descending.flip(0)


def _masks(order: Tensor, steps: Sequence[int]) -> Iterator[Tensor]:
    mask = torch.ones(len(order), device=order.device)
    for n in range(len(order) + 1):
        if n:
            mask[order[n - 1]] = 0
        if n in steps:
            yield mask[:, None, None]


@torch.no_grad()
def naive(body: nn.Module, tail: nn.Module, x: Tensor, label: int, steps: Sequence[int]) -> Tensor:
    """Accuracies [2, steps]: the whole network runs for every n."""
    curves = [
        torch.stack(
            [
                (tail(body(x) * mask).argmax(1) == label).double().mean()
                for mask in _masks(order, steps)
            ]
        )
        for order in _orders(body(x))
    ]
    return torch.stack(curves)


@torch.no_grad()
def cached(body: nn.Module, tail: nn.Module, x: Tensor, label: int, steps: Sequence[int]) -> Tensor:
    """Accuracies [2, steps], the loop of Zhao et al.'s program: activations once, then the tail in batches for every n.

    Their `cumulative_unit_ablation.py` multiplies the cached activations of a class by a mask and evaluates the rest of
    the network ("predict_model") in batches of 128, for each of the 2 (M + 1) masks.
    """
    activations = body(x)
    curves = []
    for order in _orders(activations):
        curve = []
        for mask in _masks(order, steps):
            masked = activations * mask
            hits = [tail(masked[i : i + BATCH]).argmax(1) == label for i in range(0, len(x), BATCH)]
            curve.append(torch.cat(hits).double().mean())
        curves.append(torch.stack(curve))
    return torch.stack(curves)
