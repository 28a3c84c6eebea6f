"""Criteria that the library did not adopt as alarms."""

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
from gapscope.gradients.recording import record_forward
from gapscope.gradients.verification import verify
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import inspection_mode, prepare_inputs
from gapscope.training.alarms.base import Alarm, PeakAlarm

_CHUNK = 16  # samples whose gradients are held at a time, layer by layer
_UNIFORM = 1.2  # excess kurtosis of the uniform distribution, with the other sign


class Stop(NamedTuple):
    """Epochs at which a rule ends training and of its best checkpoint."""

    at: int
    peak: int


class ReplayedAlarm(PeakAlarm):
    """Alarm that follows recorded numbers and observes no network."""

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Raise an error: call `follow`."""
        raise NotImplementedError("A replayed alarm observes no network: call follow.")


def prediction_changes(predicted: Int[Tensor, "t n"]) -> list[float]:
    """Return the fraction of samples with a changed class per epoch, NaN in the first.

    It rises when the network begins to fit label errors. Yuan, Feng and Liu (ICLR 2024, arXiv:2502.07551, Sec. 3) stop
    at the first local minimum of its mean over 3 epochs (Label Wave).
    """
    return [math.nan, *(predicted[1:] != predicted[:-1]).double().mean(1).tolist()]


def excess_kurtosis(values: Float[Tensor, " n"]) -> float:
    """Return the excess kurtosis (0 if all values are equal)."""
    square = (values - values.mean()).square()
    variance = float(square.mean())
    return float(square.square().mean()) / variance**2 - 3 if variance > 0 else 0.0


def alignment(
    cosines: Float[Tensor, " n"], *, kurtosis: bool = True, smallest: float = 0.05
) -> float:
    """Return the mean cosine of gradients and weights over the excess kurtosis + 1.2.

    After Hoelzl, Rueckert and Kaissis (NeurIPS 2025, arXiv:2510.25480, Sec. 4), for the last layer. The authors do not
    bound the denominator by `smallest`; it is negative for a distribution with two modes.
    """
    mean = float(cosines.mean())
    return mean / max(excess_kurtosis(cosines) + _UNIFORM, smallest) if kurtosis else mean


def significant_rise(errors: Float[Tensor, "t m"], level: float) -> tuple[int, int] | None:
    """Return the first significant rise of held-out errors, and the best time by then.

    Each pair of times is compared by the exact paired sign test (McNemar's) at the level over the number of pairs. So
    the chance of a false alarm in the whole training is at most `level` if accuracy never falls.
    """
    rows, n_pairs = errors.double(), math.comb(len(errors), 2)
    for time in range(1, len(rows)):
        worse, better = (rows[time] > rows[:time]).sum(1), (rows[time] < rows[:time]).sum(1)
        p_values = stats.binom.sf(worse.numpy() - 1, (worse + better).numpy(), 0.5)
        if p_values.min() <= level / n_pairs:
            return time, int(rows[: time + 1].mean(1).argmin())
    return None


def evidence_criterion(network: nn.Module, samples: Samples) -> float:
    r"""Return the evidence-based criterion (Mahsereci et al. 2017, arXiv:1703.09580, Sec. 3).

    $1 - \frac{m}{D} \sum_{k=1}^{D} \bar g_k^2 / \hat\Sigma_k$ for m samples and D weights, with the mean $\bar g$ and
    the variance $\hat\Sigma$ of per-sample gradients. Its expectation is 0 if the true gradient is 0; training stops
    at positive values. Weights with the same gradient at all samples (dead units) are ignored.
    """
    if len(samples) < 2 or samples.targets is None:
        raise InvalidInput(
            f"evidence_criterion needs two samples or more with targets; got {len(samples)} samples."
        )
    totals: dict[
        tuple[int, ...], tuple[Tensor, Tensor]
    ] = {}  # sums over samples of the gradient and of its square
    with inspection_mode(network):
        x = prepare_inputs(network, samples.inputs)
        for part in slices(len(x), _CHUNK):
            tape, outputs = record_forward(network, x[part])
            verify(tape, outputs)
            loss = sample_losses(outputs, samples.targets[part].to(x.device)).sum()
            (by_outputs,) = torch.autograd.grad(loss, outputs, retain_graph=True)
            for key, contribution in tape.contributions(outputs, by_outputs[None]).items():
                rows = torch.cat(
                    [values[0].flatten(1) for values in contribution.dense()], dim=1
                ).double()
                first, second = totals.get(key, (torch.zeros(()), torch.zeros(())))
                totals[key] = (first + rows.sum(0), second + rows.square().sum(0))
    m, quotients, n_weights = len(samples), 0.0, 0
    for first, second in totals.values():
        variance = (second - first.square() / m) / (m - 1)
        alive = variance > 1e-12 * second / m
        quotients += float(((first[alive] / m).square() / variance[alive]).sum())
        n_weights += int(alive.sum())
    return 1 - m * quotients / n_weights if n_weights else 1.0


def first_exceeded(criteria: Sequence[float], *, threshold: float, patience: int) -> Stop | None:
    """Stop at the first `patience` values in a row above a threshold."""
    above = 0
    for index, value in enumerate(criteria):
        above = above + 1 if value > threshold else 0
        if above >= patience:
            return Stop(index, index - above if index >= above else index)
    return None


class EvidenceAlarm(Alarm):
    """Alarm for a loss gradient that is no larger than chance alone makes it."""

    classes_only: ClassVar[bool] = False
    description: ClassVar[str] = "the loss gradient is no larger than chance alone makes it"

    def __init__(self, *, threshold: float = 0.0, n_samples: int = 128) -> None:
        self.threshold, self.n_samples = threshold, n_samples
        self.reset()

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Evaluate `evidence_criterion`. See `Alarm.observe`."""
        criterion = evidence_criterion(
            network, samples.subset(torch.arange(min(self.n_samples, len(samples))))
        )
        if criterion > self.threshold:
            self._raise(epoch)
        elif not self.raised:
            self.peak = epoch
        return {"alarm.evidence": criterion, "alarm.raised": float(self.raised)}
