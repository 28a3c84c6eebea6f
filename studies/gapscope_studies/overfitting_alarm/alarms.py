"""Alarms that the library did not adopt: criteria of recorded numbers, gradient evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from scipy import stats
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples, slices
from gapscope.gradients.tape import record_forward
from gapscope.gradients.verification import verify
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import inspection_mode, prepare_inputs
from gapscope.training.alarms.base import Alarm, PeakAlarm

_CHUNK = 16  # samples whose gradients are held at a time, layer by layer
_UNIFORM = 1.2  # excess kurtosis of the uniform distribution, with the other sign


class Stop(NamedTuple):
    """Epochs at which a rule ends training and at which it puts the best checkpoint."""

    at: int
    peak: int


class ReplayedAlarm(PeakAlarm):
    """Alarm that follows recorded numbers and observes no network."""

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Raise an error: call `follow`."""
        raise NotImplementedError("A replayed alarm observes no network: call follow.")


def prediction_changes(predicted: Int[Tensor, "t n"]) -> list[float]:
    r"""Return the fraction of training samples with a changed class per epoch (Label Wave).

    It is NaN in the first epoch. It falls while the network learns what samples have in common, and rises when it
    begins to fit label errors (Yuan, Feng and Liu, ICLR 2024, arXiv:2502.07551, Sec. 3, who stop at the first local
    minimum of the mean over 3 epochs).
    """
    return [math.nan, *(predicted[1:] != predicted[:-1]).double().mean(1).tolist()]


def excess_kurtosis(values: Float[Tensor, " n"]) -> float:
    """Return the excess kurtosis (0 if all values are equal)."""
    square = (values - values.mean()).square()
    variance = float(square.mean())
    return float(square.square().mean()) / variance**2 - 3 if variance > 0 else 0.0


def alignment(cosines: Float[Tensor, " n"], *, kurtosis: bool = True, smallest: float = 0.05) -> float:
    r"""Return the mean cosine with the last layer over the excess kurtosis plus 1.2.

    Cosines are those of per-sample loss gradients and the weight of the last layer. Hoelzl, Rueckert and Kaissis,
    NeurIPS 2025, arXiv:2510.25480, Sec. 4 and their code. A distribution with two modes has an excess kurtosis below
    -1.2, where the quotient changes its sign: `smallest` bounds the denominator from below, which the authors do not
    do, and `kurtosis=False` gives the mean alone.
    """
    mean = float(cosines.mean())
    return mean / max(excess_kurtosis(cosines) + _UNIFORM, smallest) if kurtosis else mean


def significant_rise(errors: Float[Tensor, "t m"], level: float) -> tuple[int, int] | None:
    """Return the first look with a significant rise of held-out errors, and the best by then.

    The rise is against an earlier look. Nothing was fitted to these samples, so that the exact paired sign test
    (McNemar's) between two looks holds. Every pair of looks is tested at the level over the number of pairs: if
    accuracy never falls, the chance of a false alarm in the *whole* training is at most `level`, whatever network, data
    and noise.
    """
    looks, rows = len(errors), errors.double()
    for look in range(1, looks):
        worse, better = (rows[look] > rows[:look]).sum(1), (rows[look] < rows[:look]).sum(1)
        p_values = stats.binom.sf(worse.numpy() - 1, (worse + better).numpy(), 0.5)
        if p_values.min() <= level / math.comb(looks, 2):
            return look, int(rows[: look + 1].mean(1).argmin())
    return None


def evidence_criterion(network: nn.Module, samples: Samples) -> float:
    r"""Return the evidence-based criterion (Mahsereci et al. 2017, arXiv:1703.09580).

    It is that of Sec. 3. Positive values mean that training should stop.

    With $\bar g$ the mean of the loss gradients of m samples and $\hat\Sigma$ their variance (over m - 1), entry by
    entry, and D the number of weights, $1 - \frac{m}{D} \sum_{k=1}^{D} \bar g_k^2 / \hat\Sigma_k$.

    If the gradient of the true loss is zero, every quotient has the expectation 1 (up to 1/m) and the criterion 0.
    Weights whose gradient is the same at all samples (such as those of dead units) are left out of the sum and of D.
    """
    if len(samples) < 2 or samples.targets is None:
        raise InvalidInput(f"evidence_criterion needs two samples or more with targets; got {len(samples)} samples.")
    totals: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # sums over samples of the gradient and of its square
    with inspection_mode(network):
        x = prepare_inputs(network, samples.inputs)
        for part in slices(len(x), _CHUNK):
            tape, outputs = record_forward(network, x[part])
            verify(tape, outputs)
            loss = sample_losses(outputs, samples.targets[part].to(x.device)).sum()
            (by_outputs,) = torch.autograd.grad(loss, outputs, retain_graph=True)
            for key, contribution in tape.contributions(outputs, by_outputs[None]).items():
                rows = torch.cat([values[0].flatten(1) for values in contribution.dense()], dim=1).double()
                first, second = totals.get(key, (torch.zeros(()), torch.zeros(())))
                totals[key] = (first + rows.sum(0), second + rows.square().sum(0))
    m, quotients, counted = len(samples), 0.0, 0
    for first, second in totals.values():
        variance = (second - first.square() / m) / (m - 1)
        alive = variance > 1e-12 * second / m
        quotients += float(((first[alive] / m).square() / variance[alive]).sum())
        counted += int(alive.sum())
    return 1 - m * quotients / counted if counted else 1.0


def first_exceeded(criteria: Sequence[float], *, threshold: float, patience: int) -> Stop | None:
    """Return the end of the first `patience` observations in a row above a threshold.

    The observation before these is returned, too.
    """
    above = 0
    for index, value in enumerate(criteria):
        above = above + 1 if value > threshold else 0
        if above >= patience:
            return Stop(index, index - above if index >= above else index)
    return None


class EvidenceAlarm(Alarm):
    """Alarm for a loss gradient that is no larger than chance alone would make it.

    The gradient is that of the first monitored samples.
    """

    classes_only: ClassVar[bool] = False
    description: ClassVar[str] = "the loss gradient is no larger than chance alone makes it"

    def __init__(self, *, threshold: float = 0.0, n_samples: int = 128) -> None:
        self.threshold, self.n_samples = threshold, n_samples
        self.reset()

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Evaluate `evidence_criterion`. See `Alarm.observe`."""
        criterion = evidence_criterion(network, samples.subset(torch.arange(min(self.n_samples, len(samples)))))
        if criterion > self.threshold:
            self._raise(epoch)
        elif not self.raised:
            self.peak = epoch
        return {"alarm.evidence": criterion, "alarm.raised": float(self.raised)}
