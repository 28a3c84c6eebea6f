"""Penalties on gradient norms of the loss (weights) and of the outputs (inputs)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.gradients.backward import ProbeSource, differentiable_kernels, input_gradient, probe_scale, whole_gradient
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats, freeze_batch_stats
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.inspection.losses import default_loss
from gapscope.inspection.outputs import checked_outputs, eager_mode, unwrapped
from gapscope.penalties.base import Penalty, StrengthRule, check_fixed, register_penalty, strength_of
from gapscope.penalties.batches import data_parallel


@register_penalty("input_jacobian")
class InputJacobianPenalty(Penalty):
    r"""Squared input-Jacobian norm $\lambda \sum \lVert \nabla_x f_c(x_n) \rVert^2 / (nC)$.

    Jacobian regularization (Hoffman et al. 2019, arXiv:1908.02729; Sokolic et al. 2017), there a mean over samples and
    a sum over outputs. One probe costs about two plain training steps and is unbiased. BatchNorm's batch statistics are
    constants in the derivative by the inputs, so that samples do not interact; the gradient of the penalty is that of
    its value, in which they move with the weights.

    Args:
        strength: lambda, a number, 0 or larger.
        probe: "class" (one output per sample, stratified over the batch) or "rademacher".

    >>> network = nn.Linear(2, 1)
    >>> _ = nn.init.constant_(network.weight, 3.0)
    >>> InputJacobianPenalty(0.5)(network, torch.zeros(4, 2)).item()  # 0.5 (3^2 + 3^2)
    9.0
    """

    def __init__(
        self,
        strength: float,
        *,
        method: Literal["probe", "exact"] = "probe",
        reduction: Literal["mean", "sum"] = "mean",
        probe: Literal["class", "rademacher"] = "class",
        seed: int = 0,
    ) -> None:
        check_fixed(strength, "InputJacobianPenalty")
        check_choice("method", method, ("probe", "exact"))
        check_choice("reduction", reduction, ("mean", "sum"))
        check_choice("probe", probe, ("class", "rademacher"))
        self.strength, self.method, self.reduction = strength, method, reduction
        self._probes: ProbeSource = ProbeSource(probe, seed)

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Enable the inputs' gradient and frozen batch statistics."""
        if not inputs.is_floating_point():
            raise InvalidInput(
                f"A derivative by the inputs must have floating-point inputs; got {inputs.dtype}. "
                "Let the network begin after the embedding, or use a penalty on the weights."
            )
        inputs = inputs if inputs.requires_grad else inputs.detach().requires_grad_()
        modules = dict(unwrapped(network).named_modules())
        with eager_mode(), differentiable_kernels(modules.values()), allow_frozen_stats(modules, needed=False):
            yield inputs, None

    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Any
    ) -> Tensor:
        """Return the penalty."""
        outputs = checked_outputs(outputs, len(inputs))
        if self.method == "exact":
            weightings, scale = one_hot_cotangents(outputs), 1
        else:
            weightings = self._probes.draw(outputs).to(outputs.dtype)[None]
            scale = probe_scale(self._probes.kind, outputs.shape[1])
        with freeze_batch_stats():
            squares = [
                input_gradient(network, outputs, inputs, weighting, create_graph=True).square().sum()
                for weighting in weightings
            ]
        count = outputs.numel() if self.reduction == "mean" else 1
        return self.strength * scale * torch.stack(squares).sum() / count


def _joint_square(gradient: Tensor, network: DistributedDataParallel) -> Tensor:
    # Squared norm of the processes' mean gradient. The derivative on each process is that of 2 mean . gradient,
    # whose mean over processes is the derivative of the squared norm.
    mean = gradient.detach().clone()
    torch.distributed.all_reduce(mean, group=network.process_group)
    mean /= torch.distributed.get_world_size(network.process_group)
    return mean.square().sum() + 2 * (mean * (gradient - gradient.detach())).sum()


@register_penalty("loss_gradient")
class LossGradientPenalty(Penalty):
    r"""Squared gradient norm $\mu \lVert \nabla_\theta L \rVert^2$ of the mean loss L.

    Explicit gradient regularization (Barrett and Dherin 2021, arXiv:2009.11162): a sum over all trainable weights, in
    which BatchNorm's statistics of the batch move with the weights. Exact; costs about two plain training steps. With
    DistributedDataParallel the gradient is that of the joined batch.

    Args:
        loss: The loss of (outputs, targets), a mean over samples; None for cross-entropy with class labels and mean
            squared error with floating-point targets of the shape of the outputs.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(network.weight, 3.0)
    >>> x, y = torch.tensor([[2.0]]), torch.tensor([[5.0]])
    >>> LossGradientPenalty(0.5)(network, x, y).item()  # 0.5 (2 (6 - 5) 2)^2
    8.0
    """

    needs_targets = True
    counts_calls = True

    def __init__(
        self,
        strength: float | Literal["auto"] | StrengthRule,
        *,
        every: int = 1,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        check_range("every", every, 1)
        self.strength, self.automatic = strength_of(strength, "LossGradientPenalty")
        self.every = every
        self.loss = default_loss if loss is None else loss

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Use twice differentiable kernels in calls with the penalty."""
        applied = self._calls % self.every == 0
        self._calls += 1
        if not applied:
            yield inputs, False
            return
        with eager_mode(), differentiable_kernels(unwrapped(network).modules()):
            yield inputs, True

    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Any
    ) -> Tensor:
        """Return the penalty (zero in calls without it)."""
        if targets is None:
            raise InvalidInput(
                "LossGradientPenalty must be given targets; got none. Use penalty.forward_with_penalty(network, x, y)."
            )
        if not observed:
            return outputs.new_zeros(())
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        gradients = whole_gradient(self.loss(outputs, targets), parameters, create_graph=True)
        if (parallel := data_parallel(network)) is not None:
            squares = [_joint_square(gradient, parallel) for gradient in gradients]
        else:
            squares = [gradient.square().sum() for gradient in gradients]
        return self.strength * self.every * torch.stack(squares).sum()
