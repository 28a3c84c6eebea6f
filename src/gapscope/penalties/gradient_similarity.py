"""Model gradient similarity as a penalty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.gradients.backward import ProbeSource, probe_scale, whole_gradient
from gapscope.gradients.frozen_batch_stats import freeze_batch_stats
from gapscope.gradients.kernel import log_determinant
from gapscope.gradients.tape import Tape, record_calls
from gapscope.gradients.traces import one_hot_cotangents, square_norms
from gapscope.gradients.verification import verify
from gapscope.inspection.outputs import checked_outputs
from gapscope.penalties.base import Penalty, StrengthRule, register_penalty, strength_of

# Applied steps between two tests for a collapsed network; number of tests in a row, and least mean difference of the
# probabilities between samples, before the warning. BatchNorm in training mode keeps even a dead network's outputs
# apart, by 0.03 falling to 0.01; those of a slow network that learns grow.
_CHECK_INTERVAL = 20
_N_CHECKS = 5
_ALIKE = 0.03
_GROWS = 1.2


# from here on the penalty costs networks with normalization layers accuracy (docs/penalty.md)
_HIGH_IF_NORMALIZED = 0.003


def _check_plain(network: nn.Module, most: float) -> None:
    layer = next((type(module).__name__ for module in network.modules() if "Norm" in type(module).__name__), None)
    if layer is not None and most > _HIGH_IF_NORMALIZED:
        raise InvalidInput(
            f"An automatic strength that rises to {most:g} must be that of a network without normalization layers, "
            f"which lose accuracy from 0.001 to {_HIGH_IF_NORMALIZED:g} on; got {layer}. Pass a number, or "
            "AutomaticStrength(start=0.0001, least=0.0001, most=0.003), which is not evaluated yet."
        )


def _batch_sum(network: nn.Module, outputs: Tensor, probe: Tensor) -> Tensor:
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    with freeze_batch_stats():
        gradients = whole_gradient(outputs, parameters, probe.to(outputs.dtype), create_graph=True)
    return torch.stack([gradient.square().sum() for gradient in gradients]).sum()


@register_penalty("gradient_similarity")
class GradientSimilarityPenalty(Penalty):
    r"""Trace or log determinant of the mini-batch's gradient kernel K.

    It is $\alpha\, \mathrm{tr} K / (nC)$, or $\alpha \log\det(I + K/s) / (nC)$, with
    $K_{nc,md} = \nabla_\theta f_c(x_n) \cdot \nabla_\theta f_d(x_m)$ over all trainable weights, raw outputs f, n
    samples and C outputs (Szolnoky et al. 2022, arXiv:2205.12642, Sec. 4). Lower K means that samples are learned in
    groups and not one by one. Exact up to its probe: gradients of the probe's value are exact, and its expectation is
    the penalty. A step with one class probe costs 2.6 to 5 plain training steps, by architecture; the exact trace or
    log determinant about as many more as there are outputs.

    In training mode BatchNorm's batch statistics are constants in the Jacobian, dy/dh = gamma / sigma; the gradient of
    the penalty is that of its value, in which the statistics move with the weights. Dropout masks are those of the pass
    shared with the loss. Works with gradient accumulation (every call counts as a step of `every`), automatic mixed
    precision (the penalty is computed in at least float32) and DistributedDataParallel (the trace of equal local
    batches averages to that of the joined batch; log det takes the kernel of the local batch).

    Args:
        strength: alpha, a number, "auto" or an `AutomaticStrength`. For "mean" begin with 0.001. From 0.03 on, networks
            with normalized layers collapse to the same output for all samples, from 0.1 on others, under SGD and Adam
            alike; a warning reports it.
        kind: "trace" or "logdet" (always exact).
        reduction: "mean" divides by nC, so that alpha does not depend on the batch; "sum" does not (the paper's sum
            over the batch, for its kernel averaged over outputs, is strength / C).
        probe: "class" (one output per sample, stratified over the batch), "rademacher" or "batch_sum"
            (Hutchinson), see `ntk_trace`.
        noise: s of the log determinant; None for log det K itself, which fails where K is singular.

    >>> network = nn.Linear(2, 3)
    >>> penalty = GradientSimilarityPenalty(0.1, method="exact")
    >>> round(penalty(network, torch.tensor([[1.0, 2.0]])).item(), 6)  # 0.1 (|x|^2 + 1)
    0.6
    """

    counts_calls = True

    def __init__(
        self,
        strength: float | Literal["auto"] | StrengthRule,
        *,
        kind: Literal["trace", "logdet"] = "trace",
        method: Literal["probe", "exact"] = "probe",
        every: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        probe: Literal["class", "rademacher", "batch_sum"] = "class",
        noise: float | None = 1.0,
        seed: int = 0,
    ) -> None:
        self.strength, self.automatic = strength_of(strength, "GradientSimilarityPenalty")
        if self.automatic is not None:
            self.automatic.check = partial(_check_plain, most=self.automatic.most)
        check_choice("kind", kind, ("trace", "logdet"))
        check_choice("method", method, ("probe", "exact"))
        check_choice("reduction", reduction, ("mean", "sum"))
        check_range("every", every, 1)
        if noise is not None:
            check_range("noise", noise, 0, low_open=True)
        self.kind: Literal["trace", "logdet"] = kind
        self.method: Literal["probe", "exact"] = method
        self.every, self.reduction, self.noise = every, reduction, noise
        self._probes: ProbeSource = ProbeSource(probe, seed)
        self._warned = False
        self._looks_alike = 0
        self._difference = float("inf")

    def count_call(self) -> bool:
        """Count a call, and return whether the penalty is applied in it."""
        self._calls += 1
        return (self._calls - 1) % self.every == 0

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Tape | None]]:
        """Record the forward pass in calls with the penalty."""
        if not self.count_call():
            yield inputs, None
            return
        with record_calls(network, inputs) as tape:
            yield inputs, tape

    def value(
        self, network: nn.Module, inputs: Tensor, outputs: Tensor, targets: Tensor | None, observed: Tape | None
    ) -> Tensor:
        """Return the penalty (zero in calls without it)."""
        if observed is None:
            return outputs.new_zeros(())
        outputs = checked_outputs(outputs, len(inputs))
        total = self._logdet(observed, outputs) if self.kind == "logdet" else self._trace(network, observed, outputs)
        return self.of_total(outputs, total)

    def of_total(self, outputs: Float[Tensor, "n k"], total: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the penalty, and warn if it has collapsed the network."""
        if (
            self.automatic is None
            and not self._warned
            and (self._calls // self.every) % _CHECK_INTERVAL == 0
            and len(outputs) > 1
        ):
            self._warn_if_collapsed(outputs, total / outputs.numel())
        scale = self.strength * self.every / (outputs.numel() if self.reduction == "mean" else 1)
        return scale * total

    def _logdet(self, tape: Tape, outputs: Tensor) -> Tensor:
        verify(tape, outputs, create_graph=True)
        parts = tape.contributions(outputs, one_hot_cotangents(outputs), create_graph=True)
        with torch.autocast(outputs.device.type, enabled=False):
            return log_determinant(list(parts.values()), self.noise)

    @property
    def probe(self) -> str:
        """Kind of its probes."""
        return self._probes.kind

    def cotangents(self, outputs: Float[Tensor, "n k"]) -> Float[Tensor, "c n k"]:
        """Return cotangents whose squared gradients sum to the trace."""
        if self.method == "exact":
            return one_hot_cotangents(outputs)
        return self._probes.draw(outputs)[None] * math.sqrt(probe_scale(self.probe, outputs.shape[1]))

    def _trace(self, network: nn.Module, tape: Tape, outputs: Tensor) -> Tensor:
        if self.method == "probe" and self.probe == "batch_sum":
            return _batch_sum(network, outputs, self._probes.draw(outputs))
        return square_norms(tape, outputs, self.cotangents(outputs), create_graph=True).sum()

    @torch.no_grad()
    def _warn_if_collapsed(self, outputs: Tensor, mean_trace: Tensor) -> None:
        spread = (outputs - outputs.mean(0)).abs().max()
        at_floor = self.kind == "trace" and bool((mean_trace < 1.01) & (spread < 0.01))
        probabilities = outputs.float().softmax(1)
        difference = float((probabilities - probabilities.mean(0)).abs().sum(1).mean()) / 2
        alike = difference == 0 or difference < min(_ALIKE, _GROWS * self._difference)
        self._looks_alike = self._looks_alike + 1 if alike and outputs.shape[1] > 1 else 0
        self._difference = difference
        if at_floor:
            reason = (
                f"has collapsed the network: the mean trace is {float(mean_trace):.3f} (its floor is 1 with a bias at "
                "the output) and the outputs are the same for all samples"
            )
        elif self._looks_alike >= _N_CHECKS:
            reason = (
                f"keeps the network from learning: for {_N_CHECKS * _CHECK_INTERVAL} steps its outputs have been "
                f"nearly the same for all samples (their probabilities differ by {difference:.2g} on average)"
            )
        else:
            return
        self._warned = True
        warnings.warn(
            f"The gradient similarity penalty {reason}. "
            f"Lower the strength, now {self.strength:g}, for example to {self.strength / 3:.2g}.",
            stacklevel=2,
        )
