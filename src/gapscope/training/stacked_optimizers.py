"""Optimizers and penalties of stacked networks."""

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


def per_network(values: Sequence[float] | Tensor, weights: Tensor) -> Tensor:
    """One number per network, in a shape that multiplies a stack of weights."""
    return torch.as_tensor(values, dtype=torch.float64).to(weights).view(-1, *[1] * (weights.ndim - 1))


class _StackedOptimizer:
    """State of several optimizers of one kind, stacked as their weights are.

    Args:
        weights: Stacks [networks, ...], in the order of each optimizer's weights.
        optimizers: One optimizer a network; `close` gives them the state back.
    """

    keys: tuple[str, ...] = ()

    def __init__(self, weights: Sequence[Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.weights, self.optimizers = weights, optimizers
        self.settings = [optimizer.param_groups[0] for optimizer in optimizers]
        self.state = [self._stacked(index, stack) for index, stack in enumerate(weights)]

    def _of_one(self, number: int, index: int) -> dict[str, Any]:
        optimizer = self.optimizers[number]
        return optimizer.state[optimizer.param_groups[0]["params"][index]]

    def _stacked(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        """A weight that no step has moved yet has zeros, with which torch's optimizers begin too."""
        state = {}
        for key in self.keys:
            kept = [self._of_one(number, index).get(key) for number in range(len(self.optimizers))]
            parts = zip(kept, weights.detach(), strict=True)
            state[key] = torch.stack([torch.zeros_like(weight) if value is None else value for value, weight in parts])
        return state

    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float]) -> None:
        """One step.

        Args:
            gradients: One stack a weight; None leaves it.
            rates: Learning rate of each network.
        """
        with torch.no_grad():
            for weights, gradient, state in zip(self.weights, gradients, self.state, strict=True):
                if gradient is not None:
                    self._step(weights, gradient, state, per_network(rates, weights))

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give every optimizer its state."""
        for number in range(len(self.optimizers)):
            for index, state in enumerate(self.state):
                self._of_one(number, index).update({key: value[number].clone() for key, value in state.items()})


class StackedSGD(_StackedOptimizer):
    """SGD with momentum, Nesterov's where the optimizers have it."""

    keys = ("momentum_buffer",)

    def __init__(self, weights: Sequence[Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        moved = any(optimizer.param_groups[0]["momentum"] for optimizer in optimizers)
        self.keys = self.keys if moved else ()
        super().__init__(weights, optimizers)

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        if self.keys:
            momentum = per_network([item["momentum"] for item in self.settings], weights)
            buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
            gradient = gradient + momentum * buffer if self.settings[0]["nesterov"] else buffer
        weights.addcmul_(gradient, rates, value=-1)


class StackedAdam(_StackedOptimizer):
    """Adam, as torch computes it."""

    keys = ("exp_avg", "exp_avg_sq")

    def _stacked(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        steps = [float(self._of_one(number, index).get("step", 0)) for number in range(len(self.optimizers))]
        return {"step": torch.tensor(steps)} | super()._stacked(index, weights)

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        (first, second), epsilon = self.settings[0]["betas"], self.settings[0]["eps"]
        steps = state["step"].add_(1).double()
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        sizes = rates / per_network(1 - first**steps, weights)
        root = per_network((1 - second**steps).sqrt(), weights)
        weights.sub_(sizes * mean / (square.sqrt() / root + epsilon))


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
        penalties: Those of each network, all with the same `penalty_stacking_key`.
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
