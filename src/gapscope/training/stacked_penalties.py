"""Penalties of stacked networks, each with its own strength and probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.gradients.square_norms import jacobian_square_norms
from gapscope.penalties.base import Penalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from gapscope.training.stacked_layers import LayerUse, LayerUses


def penalty_stacking_obstacle(network: nn.Module, penalty: Penalty) -> str:
    """Return why this penalty cannot be stacked (empty if it can).

    Args:
        penalty: The penalty.
    """
    if penalty.automatic is not None:
        return f"{type(penalty).__name__} sets its strength by looking at one network"
    if type(penalty) is L2Penalty:
        return ""
    if type(penalty) is not GradientSimilarityPenalty or penalty.kind != "trace":
        return f"{type(penalty).__name__} watches the layers of one network"
    if penalty.method == "probe" and penalty.probe == "batch_sum":
        return "the probe 'batch_sum' is for one network"
    for name, module in network.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not _has_rule(module):
            return f"GradientSimilarityPenalty in a stack has no rule for {name} ({type(module).__name__})"
    return ""


def _has_rule(module: nn.Module) -> bool:
    trained = all(parameter.requires_grad for parameter in module.parameters(recurse=False))
    if type(module) is nn.Conv2d:
        return trained and module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return trained and type(module) is nn.Linear


def penalty_stacking_key(penalties: Sequence[Penalty]) -> tuple[Any, ...]:
    """Common settings of the penalties of one stack, all but seeds and strengths."""
    return tuple(
        (item.method, item.every, item.reduction, item.probe)
        for item in penalties
        if isinstance(item, GradientSimilarityPenalty)
    )


class StackedPenalties:
    """The penalties of all networks of a stack, for one batch after the other.

    Args:
        penalties: Those of each network, alike by `penalty_likeness`.
    """

    def __init__(self, penalties: Sequence[Sequence[Penalty]]) -> None:
        self.weight = [sum(item.strength for item in given if isinstance(item, L2Penalty)) for given in penalties]
        watching = [[item for item in given if isinstance(item, GradientSimilarityPenalty)] for given in penalties]
        self.watching = list(zip(*watching, strict=True))
        self.due: list[list[bool]] = []

    def begin(self) -> LayerUses | None:
        """Count one call each, and return where to record uses of layers if one is applied."""
        self.due = [[item.count_call() for item in items] for items in self.watching]
        return LayerUses() if any(any(due) for due in self.due) else None

    def value(
        self, weights: Sequence[Tensor], outputs: Float[Tensor, "s n k"], uses: LayerUses | None
    ) -> Float[Tensor, " s"]:
        """Return the penalty of each network.

        Args:
            uses: What `begin` returned, filled by the forward pass.
        """
        total = outputs.new_zeros(len(outputs))
        if any(self.weight):
            squares = torch.stack([weight.square().flatten(1).sum(1) for weight in weights]).sum(0)
            total = total + torch.tensor(self.weight, dtype=torch.float64).to(total) * squares
        for items, due in zip(self.watching, self.due, strict=True):
            if uses is not None and any(due):
                total = total + _similarity(items, due, outputs, uses.each)
        return total


def _similarity(
    items: Sequence[GradientSimilarityPenalty], due: Sequence[bool], outputs: Tensor, uses: Sequence[LayerUse]
) -> Tensor:
    # training runs of a stack may be at different epochs, so that not all of them are due at the same step
    parts = zip(items, due, outputs, strict=True)
    drawn = [item.cotangents(part) if on else None for item, on, part in parts]
    some = next(weighting for weighting in drawn if weighting is not None)
    weightings = torch.stack([torch.zeros_like(some) if weighting is None else weighting for weighting in drawn])
    nodes = [use.outputs for use in uses]
    by_weighting = [
        torch.autograd.grad(outputs, nodes, weighting.to(outputs), create_graph=True)
        for weighting in weightings.transpose(0, 1)
    ]
    norms = torch.stack([
        jacobian_square_norms(use.inputs, torch.stack([use.places(gradient) for gradient in gradients]), use.layout)
        for use, gradients in zip(uses, zip(*by_weighting, strict=True), strict=True)
    ]).sum(0)  # fmt: skip
    totals = norms.view(len(items), -1).sum(1)
    parts = zip(items, due, outputs, totals, strict=True)
    return torch.stack([item.of_total(part, one) if on else one for item, on, part, one in parts])
