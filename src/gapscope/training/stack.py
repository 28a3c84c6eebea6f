"""Stack of networks of one architecture, with their optimizers and penalties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gapscope.base.samples import Samples
from gapscope.data.corruptions import flip_shift_rotate
from gapscope.gradients.square_norms import jacobian_square_norms
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import checked_outputs
from gapscope.penalties.base import Penalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from gapscope.training.run import TrainingState, batches, learning_rate_at
from gapscope.training.stacked_layers import LayerUse, LayerUses, StackedLayers


def per_network(values: Sequence[float] | Tensor, weights: Tensor) -> Tensor:
    """One number per network, in a shape that multiplies a stack of weights."""
    return torch.as_tensor(values, dtype=torch.float64).to(weights).view(-1, *[1] * (weights.ndim - 1))


class _StackedOptimizer:
    """State of several optimizers of one kind, stacked as their weights [networks, ...] are."""

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
        """Take one step with the learning rate of each network."""
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
    """Return why this penalty cannot be stacked (empty if it can)."""
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
    """The penalties of all networks of a stack, all with the same `penalty_stacking_key`."""

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
        """Return the penalty of each network from `uses`, which the forward pass filled."""
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
    cotangents = [item.cotangents(part) if on else None for item, on, part in parts]
    some = next(weighting for weighting in cotangents if weighting is not None)
    weightings = torch.stack([torch.zeros_like(some) if weighting is None else weighting for weighting in cotangents])
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


class Stack:
    """Pass over the samples for several networks, until `close` restores their state.

    Every network keeps its own order of samples, learning rate, momentum, loss, penalties and masks: it is trained as
    `TrainingState.train_epoch` trains it, to rounding. All runs have the same `multi_training.stacking_key`; `streams`
    are generators in the states of their global random streams on the CPU.
    """

    def __init__(
        self, runs: Sequence[TrainingState], samples: Sequence[Samples], streams: Sequence[torch.Generator]
    ) -> None:
        self.runs, self.samples, self.streams = runs, samples, streams
        self.device = runs[0].device
        for run in runs:
            run.network.train()
        self.template = runs[0].network
        self.parameters, self.buffers = stack_module_state([run.network for run in runs])  # type: ignore[arg-type]
        self.trained = [name for name, tensor in self.parameters.items() if tensor.requires_grad]
        weights = [self.parameters[name] for name in self.trained]
        kind = StackedAdam if runs[0].settings.optimizer == "adam" else StackedSGD
        self.optimizer = kind(weights, [run.optimizer for run in runs])
        self.penalties = StackedPenalties([run.penalties for run in runs])
        self.shared_inputs = all(item.inputs is samples[0].inputs for item in samples)

    def outputs(self, x: Tensor, uses: LayerUses | None) -> Tensor:
        """Return outputs [networks, n, K] of inputs [networks, n, ...], recording uses of layers."""

        def of_one(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
            return checked_outputs(functional_call(self.template, (parameters, buffers), (x,)), len(x))

        # random operations other than dropout raise, because their numbers would differ from those of single training
        with StackedLayers(self.streams, uses):
            return vmap(of_one, randomness="error")(self.parameters, self.buffers, x)

    def _batch(self, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        targets = [item.targets[index] for item, index in zip(self.samples, indices, strict=True)]  # type: ignore[index]
        if self.shared_inputs:
            x = self.samples[0].inputs[torch.cat(list(indices))].unflatten(0, (len(indices), -1))
        else:
            x = torch.stack([item.inputs[index] for item, index in zip(self.samples, indices, strict=True)])
        x = x.to(self.device)
        if self.runs[0].settings.augmentation == "flip_shift_rotate":
            pairs = zip(x, self.streams, strict=True)
            x = torch.stack([flip_shift_rotate(images, generator=stream) for images, stream in pairs])
        return x, torch.stack(targets).to(self.device)

    def _losses(self, outputs: Tensor, y: Tensor, indices: Sequence[Tensor]) -> Tensor:
        """Loss of each network's batch, [networks]."""
        if any(run.robust_loss is not None for run in self.runs):
            parts = zip(self.runs, outputs, y, indices, strict=True)
            return torch.stack([run.loss(*part) for run, *part in parts])
        return sample_losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(self.runs), -1).mean(1)

    def _clipped(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        limits = [run.settings.gradient_clip for run in self.runs]
        if all(limit is None for limit in limits):
            return gradients
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients if g is not None]).norm(dim=0)
        largest = torch.tensor([math.inf if limit is None else limit for limit in limits], dtype=torch.float64).to(
            norms
        )
        # as torch's clip_grad_norm_
        factors = (largest / (norms + 1e-6)).clamp(max=1.0)
        return [None if g is None else g * per_network(factors, g) for g in gradients]

    def train_epoch(self) -> list[dict[str, float] | None]:
        """Pass over the samples of every network once, and return one row per network."""
        settings, n = [run.settings for run in self.runs], len(self.samples[0])
        size, classes = settings[0].batch_size, self.samples[0].is_classification
        totals = torch.zeros(3, len(self.runs), dtype=torch.float64, device=self.device)
        rates, weights = [item.learning_rate for item in settings], [self.parameters[name] for name in self.trained]
        orders = [batches(n, size, run.order) for run in self.runs]
        for number, indices in enumerate(zip(*orders, strict=True)):
            done = number / max(1, math.ceil(n / size))
            rates = [learning_rate_at(run.settings, run.epoch + done) for run in self.runs]
            x, y = self._batch(indices)
            uses = self.penalties.begin()
            outputs = self.outputs(x, uses)
            losses, penalties = self._losses(outputs, y, indices), self.penalties.value(weights, outputs, uses)
            gradients = torch.autograd.grad((losses + penalties).sum(), weights, allow_unused=True)
            self.optimizer.step(self._clipped(gradients), rates)
            right = (outputs.detach().argmax(2) == y).sum(1) if classes else torch.zeros_like(losses)
            totals += torch.stack([losses.detach() * y.shape[1], penalties.detach() * y.shape[1], right]).double()
        parts = zip(self.runs, totals.T / n, rates, strict=True)
        return [run.end_epoch(means, rate, classes) for run, means, rate in parts]

    @torch.no_grad()
    def close(self) -> None:
        """Give every network its weights, buffers and optimizer state."""
        for number, run in enumerate(self.runs):
            for name, parameter in run.network.named_parameters():
                parameter.copy_(self.parameters[name][number])
            for name, buffer in run.network.named_buffers():
                buffer.copy_(self.buffers[name][number])
        self.optimizer.close()
