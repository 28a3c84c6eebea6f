"""Penalty on the trace or log determinant of the kernel of per-sample gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.user_warnings import warn_user
from gapscope.gradients.backward import ProbeSource, probe_scale, whole_gradient
from gapscope.gradients.frozen_batch_stats import freeze_batch_stats
from gapscope.gradients.kernel import log_determinant
from gapscope.gradients.recording import record_calls
from gapscope.gradients.tape import Tape
from gapscope.gradients.traces import one_hot_cotangents, square_norms
from gapscope.gradients.verification import verify
from gapscope.inspection.outputs import checked_outputs
from gapscope.penalties.base import Penalty, StrengthRule, register_penalty, strength_of

# A network is tested for collapse every 20 applied steps. It has collapsed if the probabilities of samples differ by
# less than 0.03, and by less than 1.2 times the previous difference, in five consecutive tests: with BatchNorm in
# training mode the difference of a dead network falls from 0.03 to 0.01, that of a slow network grows.
_CHECK_INTERVAL, _N_CHECKS = 20, 5
# the difference and its growth, see above
_SMALL_DIFFERENCE, _GROWTH = 0.03, 1.2


def _check_no_normalization(network: nn.Module, most: float) -> None:
    layer = next(
        (type(module).__name__ for module in network.modules() if "Norm" in type(module).__name__),
        None,
    )
    # higher strengths lower the accuracy of networks with normalization layers (docs/penalty.md).
    if layer is not None and most > 0.003:
        raise InvalidInput(
            f"An automatic strength up to {most:g} needs a network without normalization layers; got {layer}. Pass a "
            "number, or AutomaticStrength(start=0.0001, least=0.0001, most=0.003), which is not evaluated yet."
        )


@register_penalty("gradient_similarity")
class GradientSimilarityPenalty(Penalty):
    r"""Trace or log determinant of the mini-batch's gradient kernel K.

    It is $\alpha\, \mathrm{tr} K / (nC)$, or $\alpha \log\det(I + K/s) / (nC)$, with
    $K_{nc,md} = \nabla_\theta f_c(x_n) \cdot \nabla_\theta f_d(x_m)$ over all trainable weights, raw outputs f, n
    samples and C outputs (Szolnoky et al. 2022, arXiv:2205.12642, Sec. 4). With a lower K, samples are learned in
    groups rather than one by one. A probe is unbiased, and a step with it costs 2.6 to 5 plain training steps; a step
    with the exact trace or the log determinant costs about C plain steps more.

    Of outputs at positions, nC counts those with a label other than -100, and the others are omitted; without targets,
    in `penalty(network, x)`, the attention mask of the inputs decides, or all count.

    In training mode batch statistics of BatchNorm and of the layers in `gapscope.batch_norm` are constants in the
    Jacobian, dy/dh = gamma / sigma, but depend on the weights in the penalty's gradient; other layers that mix samples
    are an error. Dropout masks are those of the loss. Works with gradient accumulation
    (`every` counts calls), automatic mixed precision (the penalty is computed in at least float32) and
    DistributedDataParallel (the mean of the local traces is that of the joint batch; log det uses local kernels).

    Args:
        strength: alpha, a number, "auto" or an `AutomaticStrength`. For "mean" begin with 0.001. From 0.03 on, networks
            with normalization layers collapse to the same output for all samples, others from 0.1 on; a warning reports
            this.
        kind: "trace" or "logdet" (always exact).
        reduction: "mean" divides by nC, so that alpha does not depend on the batch; "sum" does not (the paper's sum
            over the batch, for its kernel averaged over outputs, is strength / C).
        probe: "class" (one output per sample, stratified over the batch) or "rademacher" (Hutchinson, random signs per
            sample), see `ntk_trace`; "batch_sum" has random signs for the whole batch at once and is much noisier.
        noise: s of the log determinant; None for log det K itself, which fails if K is singular.

    >>> network = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = nn.init.constant_(network[0].weight, 2.0), nn.init.constant_(network[1].weight, 3.0)
    >>> penalty = GradientSimilarityPenalty(0.1, method="exact")
    >>> round(penalty(network, torch.ones(1, 1)).item(), 6)  # 0.1 (2^2 + 3^2)
    1.3
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
            self.automatic.check = partial(_check_no_normalization, most=self.automatic.most)
        check_choice("kind", kind, ("trace", "logdet"))
        check_choice("method", method, ("probe", "exact"))
        check_choice("reduction", reduction, ("mean", "sum"))
        check_range("every", every, 1)
        if noise is not None:
            check_range("noise", noise, 0, low_open=True)
        self.kind: Literal["trace", "logdet"] = kind
        self.method: Literal["probe", "exact"] = method
        self.every = every
        self.reduction = reduction
        self.noise = noise
        self._probes: ProbeSource = ProbeSource(probe, seed)
        self._forget_signs()

    def _forget_signs(self) -> None:
        # of the tests for collapse: the warning, consecutive signs of it, the previous difference of probabilities
        self._warned = False
        self._n_signs = 0
        self._difference = math.inf

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state_dict`; the tests for collapse begin again.

        Args:
            state: Tensors by name, as `state_dict` returned them.
        """
        super().load_state_dict(state)
        self._forget_signs()

    def count_call(self) -> bool:
        """Count a call, and return whether the penalty is applied in it."""
        self._calls += 1
        return (self._calls - 1) % self.every == 0

    @contextmanager
    def observe(self, network: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Tape | None]]:
        """Record the forward pass in calls with the penalty.

        Args:
            network: The network in training.
            inputs: Inputs [n, ...] of the batch.
        """
        if not self.count_call():
            yield inputs, None
            return
        with record_calls(network, inputs, twice=True) as tape:
            yield inputs, tape

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Tape | None,
    ) -> Tensor:
        """Return the penalty (zero in calls without it).

        Args:
            network: The network in training.
            inputs: Inputs [n, ...] of the batch.
            outputs: Its outputs [n, k], with their graph.
            targets: Targets [n, ...]; they are not used.
            observed: Tape of the forward pass, None in calls without the penalty.
        """
        if observed is None:
            return outputs.new_zeros(())
        outputs = checked_outputs(outputs, len(inputs))
        if self.kind == "logdet":
            total = self._logdet(observed, outputs)
        else:
            total = self._trace(network, observed, outputs)
        return self.of_total(outputs, total)

    def of_total(
        self, outputs: Float[Tensor, "n k"], total: Float[Tensor, ""]
    ) -> Float[Tensor, ""]:
        """Return the penalty from a trace or log determinant, and warn of a collapse.

        Args:
            outputs: Outputs [n, k] of the batch.
            total: Trace or log determinant of the kernel of gradients.
        """
        is_test = (self._calls // self.every) % _CHECK_INTERVAL == 0 and len(outputs) > 1
        if is_test and self.automatic is None and not self._warned:
            self._warn_if_collapsed(outputs, total / self.n_counted(outputs))
        # applied at every k-th call with k times the strength
        scaled = self.strength * self.every * total
        return scaled / self.n_counted(outputs) if self.reduction == "mean" else scaled

    def _logdet(self, tape: Tape, outputs: Tensor) -> Tensor:
        verify(tape, outputs, differentiated=outputs.shape[1])
        parts = tape.contributions(outputs, one_hot_cotangents(outputs), create_graph=True)
        with torch.autocast(outputs.device.type, enabled=False):
            return log_determinant(list(parts.values()), self.noise, self.counted)

    @property
    def probe(self) -> str:
        """Kind of the probes."""
        return self._probes.kind

    def cotangents(self, outputs: Float[Tensor, "n k"]) -> Float[Tensor, "c n k"]:
        """Return cotangents v: the squared norms of the gradients of v . f(x) sum to the trace.

        Args:
            outputs: Outputs [n, k] of the batch.
        """
        # exactly for one-hot v; for a random v with E[v v^T] = I / scale, times the scale, in expectation
        if self.method == "exact":
            return one_hot_cotangents(outputs)
        return self._probes.draw(outputs)[None] * math.sqrt(
            probe_scale(self.probe, outputs.shape[1])
        )

    def _trace(self, network: nn.Module, tape: Tape, outputs: Tensor) -> Tensor:
        if self.method == "probe" and self.probe == "batch_sum":
            # random signs at all samples and outputs: |sum_nc v_nc grad f_c(x_n)|^2 has the expectation tr K
            parameters = [
                parameter for parameter in network.parameters() if parameter.requires_grad
            ]
            probe = self._probes.draw(outputs).to(outputs.dtype)
            verify(tape, outputs)  # that no layer mixes samples
            with freeze_batch_stats():
                gradients = whole_gradient(outputs, parameters, probe, create_graph=True)
            return torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        return square_norms(tape, outputs, self.cotangents(outputs), create_graph=True).sum()

    @torch.no_grad()
    def _warn_if_collapsed(self, outputs: Tensor, mean_trace: Tensor) -> None:
        # an output bias alone has a mean trace of 1
        spread = (outputs - outputs.mean(0)).abs().max()
        is_constant = self.kind == "trace" and bool((mean_trace < 1.01) & (spread < 0.01))
        # total variation distance of a sample's probabilities from the mean, averaged over samples
        probabilities = outputs.float().softmax(1)
        difference = float((probabilities - probabilities.mean(0)).abs().sum(1).mean()) / 2
        is_sign = difference == 0 or difference < min(_SMALL_DIFFERENCE, _GROWTH * self._difference)
        if is_sign and outputs.shape[1] > 1:
            self._n_signs = self._n_signs + 1
        else:
            self._n_signs = 0
        self._difference = difference
        if is_constant:
            reason = (
                f"has collapsed the network: the mean trace is {float(mean_trace):.3f} (1 is that of an output bias "
                "alone) and the outputs are the same for all samples"
            )
        elif self._n_signs >= _N_CHECKS:
            reason = (
                f"keeps the network from learning: for {_N_CHECKS * _CHECK_INTERVAL} steps its outputs have been "
                f"nearly the same for all samples (their probabilities differ by {difference:.2g} on average)"
            )
        else:
            return
        self._warned = True
        warn_user(
            f"The gradient similarity penalty {reason}. "
            f"Lower the strength, now {self.strength:g}, for example to {self.strength / 3:.2g}.",
        )
