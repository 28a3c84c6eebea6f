"""Ablation by definition: a loop over n with masked outputs of one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.ablation.class_curves import mean_absolute_activation
from gapscope.ablation.split import Activations, SplitNetwork


def ranking_of(split: SplitNetwork, source: Activations) -> Tensor:
    """Units by descending mean absolute activation."""
    return mean_absolute_activation(split.flatten_positions(source.values)).argsort(descending=True, stable=True)


@torch.no_grad()
def naive_predictions(network: nn.Module, layer: str, x: Tensor, ranking: Tensor, *, unit_axis: int = 1) -> Tensor:
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
