"""Networks of one architecture trained as one, with their optimizers and penalties."""

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
    """Return one number per network, in a shape that multiplies stacked weights."""
    return torch.as_tensor(values, dtype=torch.float64).to(weights).view(-1, *[1] * (weights.ndim - 1))


class _StackedOptimizer:
    """Several optimizers of one kind, with stacked weights and state [networks, ...]."""

    keys: tuple[str, ...] = ()

    def __init__(self, weights: Sequence[Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.weights, self.optimizers = weights, optimizers
        self.settings = [optimizer.param_groups[0] for optimizer in optimizers]
        self.state = [self._stack_state(index, stack) for index, stack in enumerate(weights)]

    def _states(self, index: int) -> list[dict[str, Any]]:
        """Return the state of the weight `index` in every optimizer."""
        return [item.state[item.param_groups[0]["params"][index]] for item in self.optimizers]

    def _stack_state(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        # before its first step a weight has no state; torch's optimizers begin with zeros
        stacked = {}
        for key in self.keys:
            pairs = zip((state.get(key) for state in self._states(index)), weights.detach(), strict=True)
            stacked[key] = torch.stack([torch.zeros_like(weight) if part is None else part for part, weight in pairs])
        return stacked

    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float]) -> None:
        with torch.no_grad():
            for weights, gradient, state in zip(self.weights, gradients, self.state, strict=True):
                if gradient is not None:
                    self._step(weights, gradient, state, per_network(rates, weights))

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for index, stacked in enumerate(self.state):
            for number, state in enumerate(self._states(index)):
                state.update({key: value[number].clone() for key, value in stacked.items()})


class StackedSGD(_StackedOptimizer):
    """SGD, with plain or Nesterov momentum."""

    keys = ("momentum_buffer",)

    def __init__(self, weights: Sequence[Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        has_momentum = any(optimizer.param_groups[0]["momentum"] for optimizer in optimizers)
        self.keys = self.keys if has_momentum else ()
        super().__init__(weights, optimizers)

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        if self.keys:
            momentum = per_network([item["momentum"] for item in self.settings], weights)
            buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
            gradient = gradient + momentum * buffer if self.settings[0]["nesterov"] else buffer
        weights.addcmul_(gradient, rates, value=-1)


class StackedAdam(_StackedOptimizer):
    """Adam, in the order of operations of torch."""

    keys = ("exp_avg", "exp_avg_sq")

    def _stack_state(self, index: int, weights: Tensor) -> dict[str, Tensor]:
        steps = [float(state.get("step", 0)) for state in self._states(index)]
        return {"step": torch.tensor(steps)} | super()._stack_state(index, weights)

    def _step(self, weights: Tensor, gradient: Tensor, state: dict[str, Tensor], rates: Tensor) -> None:
        (beta1, beta2), epsilon = self.settings[0]["betas"], self.settings[0]["eps"]
        steps = state["step"].add_(1).double()
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        # the bias corrections 1 - beta^t, with one t per network
        sizes = rates / per_network(1 - beta1**steps, weights)
        root = per_network((1 - beta2**steps).sqrt(), weights)
        weights.sub_(sizes * mean / (square.sqrt() / root + epsilon))


def penalty_stacking_obstacle(network: nn.Module, penalty: Penalty) -> str:
    """Return why this penalty cannot be stacked (empty if it can)."""
    if penalty.automatic is not None:
        return f"{type(penalty).__name__} adapts its strength to one network"
    if type(penalty) is L2Penalty:
        return ""
    if type(penalty) is not GradientSimilarityPenalty or penalty.kind != "trace":
        return f"{type(penalty).__name__} observes the layers of one network"
    if penalty.method == "probe" and penalty.probe == "batch_sum":
        return "the probe 'batch_sum' cannot be stacked"
    for name, module in network.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not _has_rule(module):
            return f"GradientSimilarityPenalty cannot be stacked over {name} ({type(module).__name__})"
    return ""


def _has_rule(module: nn.Module) -> bool:
    trained = all(parameter.requires_grad for parameter in module.parameters(recurse=False))
    if type(module) is nn.Conv2d:
        return trained and module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return trained and type(module) is nn.Linear


def penalty_stacking_key(penalties: Sequence[Penalty]) -> tuple[Any, ...]:
    """Return the settings that the penalties of one stack share: all but seeds and strengths."""
    return tuple(
        (item.method, item.every, item.reduction, item.probe)
        for item in penalties
        if isinstance(item, GradientSimilarityPenalty)
    )


class StackedPenalties:
    """The penalties of all networks of a stack, all with the same `penalty_stacking_key`."""

    def __init__(self, penalties: Sequence[Sequence[Penalty]]) -> None:
        self.l2_strengths = [sum(item.strength for item in items if isinstance(item, L2Penalty)) for items in penalties]
        similarity = [[item for item in items if isinstance(item, GradientSimilarityPenalty)] for items in penalties]
        # one tuple per position in the lists, with the penalties of all networks
        self.similarity = list(zip(*similarity, strict=True))
        self.due: list[list[bool]] = []

    def begin(self) -> LayerUses | None:
        """Count a call of every penalty, and return a record of layer uses if one is due."""
        self.due = [[item.count_call() for item in items] for items in self.similarity]
        return LayerUses() if any(any(due) for due in self.due) else None

    def value(
        self, weights: Sequence[Tensor], outputs: Float[Tensor, "s n k"], uses: LayerUses | None
    ) -> Float[Tensor, " s"]:
        """Return the penalty of each network from `uses`, which the forward pass filled."""
        total = outputs.new_zeros(len(outputs))
        if any(self.l2_strengths):
            squares = torch.stack([weight.square().flatten(1).sum(1) for weight in weights]).sum(0)
            total = total + torch.tensor(self.l2_strengths, dtype=torch.float64).to(total) * squares
        for items, due in zip(self.similarity, self.due, strict=True):
            if uses is not None and any(due):
                total = total + _similarity_penalties(items, due, outputs, uses.each)
        return total


def _similarity_penalties(
    items: Sequence[GradientSimilarityPenalty], due: Sequence[bool], outputs: Tensor, uses: Sequence[LayerUse]
) -> Tensor:
    # runs of a stack may be at different epochs, so that some are not due; their cotangents, and values, are zero
    parts = zip(items, due, outputs, strict=True)
    each = [item.cotangents(part) if is_due else None for item, is_due, part in parts]
    like = next(cotangents for cotangents in each if cotangents is not None)
    cotangents = torch.stack([torch.zeros_like(like) if item is None else item for item in each])  # [s, c, n, k]
    nodes = [use.outputs for use in uses]
    # one backward pass per cotangent for all networks: outputs of one network depend on its own weights only
    gradients = [
        torch.autograd.grad(outputs, nodes, cotangent.to(outputs), create_graph=True)
        for cotangent in cotangents.transpose(0, 1)
    ]
    norms = torch.stack([
        jacobian_square_norms(use.inputs, torch.stack([use.at_positions(part) for part in by_cotangent]), use.layout)
        for use, by_cotangent in zip(uses, zip(*gradients, strict=True), strict=True)
    ]).sum(0)  # fmt: skip
    totals = norms.view(len(items), -1).sum(1)
    parts = zip(items, due, outputs, totals, strict=True)
    return torch.stack([item.of_total(part, total) if is_due else total for item, is_due, part, total in parts])


class Stack:
    """Several networks with stacked weights, until `close` copies these back.

    Every network has its own order of samples, learning rate, momentum, loss, penalties and masks: up to rounding it is
    trained as by `TrainingState.train_epoch`. All runs have the same `multi_training.stacking_key`; `streams` are
    generators in the states of their random streams on the CPU.
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
        self.trainable = [name for name, tensor in self.parameters.items() if tensor.requires_grad]
        weights = [self.parameters[name] for name in self.trainable]
        optimizer_class = StackedAdam if runs[0].settings.optimizer == "adam" else StackedSGD
        self.optimizer = optimizer_class(weights, [run.optimizer for run in runs])
        self.penalties = StackedPenalties([run.penalties for run in runs])
        self.shared_inputs = all(item.inputs is samples[0].inputs for item in samples)

    def outputs(self, x: Tensor, uses: LayerUses | None) -> Tensor:
        """Return outputs [networks, n, K] of inputs [networks, n, ...], and record layer uses."""

        def call_network(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
            return checked_outputs(functional_call(self.template, (parameters, buffers), (x,)), len(x))

        # random operations other than dropout raise: their numbers would differ from those of training alone
        with StackedLayers(self.streams, uses):
            return vmap(call_network, randomness="error")(self.parameters, self.buffers, x)

    def _batch(self, indices: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        targets = [item.y[index] for item, index in zip(self.samples, indices, strict=True)]
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
        if any(run.robust_loss is not None for run in self.runs):
            parts = zip(self.runs, outputs, y, indices, strict=True)
            return torch.stack([run.loss(*part) for run, *part in parts])
        return sample_losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(len(self.runs), -1).mean(1)

    def _clip(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        limits = [run.settings.gradient_clip for run in self.runs]
        if all(limit is None for limit in limits):
            return gradients
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients if g is not None]).norm(dim=0)
        largest = torch.tensor([math.inf if limit is None else limit for limit in limits], dtype=torch.float64)
        # as torch's clip_grad_norm_
        factors = (largest.to(norms) / (norms + 1e-6)).clamp(max=1.0)
        return [None if g is None else g * per_network(factors, g) for g in gradients]

    def train_epoch(self) -> list[dict[str, float] | None]:
        """Pass over the samples of every network once, and return one row per network."""
        settings, n = [run.settings for run in self.runs], len(self.samples[0])
        size, classes = settings[0].batch_size, self.samples[0].is_classification
        totals = torch.zeros(3, len(self.runs), dtype=torch.float64, device=self.device)
        rates, weights = [item.learning_rate for item in settings], [self.parameters[name] for name in self.trainable]
        orders = [batches(n, size, run.order) for run in self.runs]
        for number, indices in enumerate(zip(*orders, strict=True)):
            epoch_fraction = number / max(1, math.ceil(n / size))
            rates = [learning_rate_at(run.settings, run.epoch + epoch_fraction) for run in self.runs]
            x, y = self._batch(indices)
            uses = self.penalties.begin()
            outputs = self.outputs(x, uses)
            losses, penalties = self._losses(outputs, y, indices), self.penalties.value(weights, outputs, uses)
            gradients = torch.autograd.grad((losses + penalties).sum(), weights, allow_unused=True)
            self.optimizer.step(self._clip(gradients), rates)
            n_correct = (outputs.detach().argmax(2) == y).sum(1) if classes else torch.zeros_like(losses)
            totals += torch.stack([losses.detach() * y.shape[1], penalties.detach() * y.shape[1], n_correct]).double()
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
