"""SGD and Adam on stacked weights, with settings per network and torch's optimizer state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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
