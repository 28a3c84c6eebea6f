"""Penalty on the squared norm of the Jacobian of outputs by inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice
from gapscope.gradients.backward import ProbeSource, differentiable_kernels, input_gradient, probe_scale
from gapscope.gradients.frozen_batch_stats import allow_frozen_stats, freeze_batch_stats
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.inspection.outputs import checked_outputs, eager_mode, unwrapped
from gapscope.penalties.base import Penalty
from gapscope.penalties.registry import register_penalty
from gapscope.penalties.strength import check_fixed


def differentiable_inputs(inputs: Tensor) -> Tensor:
    """Return inputs with a gradient (integers raise InvalidInput)."""
    if not inputs.is_floating_point():
        raise InvalidInput(
            f"A derivative by the inputs must have floating-point inputs; got {inputs.dtype}. "
            "Let the network begin after the embedding, or use a penalty on the weights."
        )
    return inputs if inputs.requires_grad else inputs.detach().requires_grad_()


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
        self._probes = ProbeSource(probe, seed)

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """Enable the inputs' gradient and frozen batch statistics."""
        modules = dict(unwrapped(network).named_modules())
        with eager_mode(), differentiable_kernels(modules.values()), allow_frozen_stats(modules, needed=False):
            yield differentiable_inputs(inputs), None

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

    def state_dict(self) -> dict[str, Tensor]:
        """Return the generator state of the probes."""
        return self._probes.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from the saved state."""
        self._probes.load_state_dict(state)
