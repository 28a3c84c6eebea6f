"""Stack of networks of one architecture, each with its own samples, settings and RNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from gapscope.base.samples import Samples
from gapscope.data.corruptions import flip_shift_rotate
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import checked_outputs
from gapscope.training.run import TrainingState, batches, learning_rate_at
from gapscope.training.stacked_layers import LayerUses, StackedLayers
from gapscope.training.stacked_optimizers import StackedAdam, StackedPenalties, StackedSGD, per_network

OnBatches = Sequence[Callable[[Tensor, Tensor], None] | None]


class Stack:
    """Pass over the samples for several networks; `close` returns weights and state.

    Every network keeps its own order of samples, learning rate, momentum, loss, penalties and masks: it is trained as
    `Run.train_epoch` trains it, to rounding.

    Args:
        runs: The training runs, all with the same `multi_training.stacking_key`.
        streams: For each a generator in the state of its global random stream on the CPU.
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

        # what draws random numbers in another way than dropout layers raises: its draws would be others than alone
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

    def train_epoch(self, on_batch: OnBatches) -> list[dict[str, float] | None]:
        """One pass over the samples of every network.

        Args:
            on_batch: Of each network, what is called after every step with positions and outputs, or None.

        Returns:
            The row of each, as `Run.train_epoch` gives it: None for one whose loss was not finite.
        """
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
            outputs = outputs.detach()
            right = (outputs.argmax(2) == y).sum(1) if classes else torch.zeros_like(losses)
            totals += torch.stack([losses.detach() * y.shape[1], penalties.detach() * y.shape[1], right]).double()
            for call, index, output in zip(on_batch, indices, outputs, strict=True):
                if call is not None:
                    call(index, output)
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
