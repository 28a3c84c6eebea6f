"""Shared learning: progress on samples compared with that on their gradient neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.gradients.neighbours import most_similar
from gapscope.measures.empirical_ntk import empirical_ntk
from gapscope.measures.gradient_neighbours import conflict_fraction
from gapscope.training.alarms.base import Alarm, labels_of, outputs_of
from gapscope.training.alarms.registry import register_alarm


@dataclass(frozen=True)
class _Learnt:
    """Class probabilities per sample [n, C], and their mean over its neighbours [n, C]."""

    at_sample: Tensor
    at_neighbours: Tensor
    labels: Tensor

    @cached_property
    def own(self) -> Tensor:
        """Probability p of every sample's own label, see `SharedLearning`."""
        return self.at_sample.gather(1, self.labels[:, None]).squeeze(1)

    @cached_property
    def shared(self) -> Tensor:
        """Probability q of the same label at its neighbours."""
        return self.at_neighbours.gather(1, self.labels[:, None]).squeeze(1)

    def support(self, weight: float) -> Tensor:
        """Difference s = q - w (p - q) of every sample."""
        return self.shared - weight * (self.own - self.shared)

    @cached_property
    def conflict(self) -> float:
        """Fraction of samples whose label is not the most probable one among their neighbours."""
        return conflict_fraction(self.at_neighbours, self.labels)


def mean_support(
    probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], neighbours: Int[Tensor, "n k"], weight: float
) -> float:
    """Mean of s over samples, see `SharedLearning`."""
    learnt = _Learnt(probabilities, probabilities[neighbours].mean(1), labels)
    return float(learnt.support(weight).mean())


@dataclass
class Neighbourhood:
    """Neighbours of the monitored samples, updated at observations 1, 2, 3, 5, 8, 12, ...

    Attributes:
        nearest: Neighbours of each sample; None before the first observation.
        looks: Observations so far.
        refresh_at: The next observation at which they are computed again.
    """

    nearest: Tensor | None = None
    looks: int = 0
    refresh_at: int = 1

    def neighbours_at(self, network: nn.Module, samples: Samples, number: int) -> Int[Tensor, "n k"]:
        """Return the neighbours at this observation.

        Args:
            number: Neighbours a sample.
        """
        self.looks += 1
        if self.nearest is None or self.looks == self.refresh_at:
            self.nearest = most_similar(empirical_ntk(network, samples.inputs, outputs="traced"), number).cpu()
            self.refresh_at = math.ceil(1.5 * self.refresh_at)
        return self.nearest


@register_alarm("shared_learning")
class SharedLearning(Alarm):
    r"""Monitor of whether similar samples share what a network learns about one of them.

    Each sample has `neighbours`: the training samples with the most similar model gradients. With $p_i$ the probability
    that the network gives the (possibly wrong) training label of sample i, and $q_i$ the mean probability that it gives
    the same label at the neighbours of i, the alarm follows

    .. math:: s = \frac1n \sum_i s_i, \qquad s_i = q_i - w\, (p_i - q_i).

    While the network learns what samples have in common, p and q rise together and s rises. What it memorizes about
    individual samples raises p alone, and s falls: for w = 2 as soon as less than two thirds of what is newly learned
    is shared, $\Delta q < \frac{w}{1 + w} \Delta p$. The alarm is raised when s has fallen from its maximum by more
    than `smallest_fall` and by more than `threshold` standard errors (of the mean of the paired differences of $s_i$),
    for `patience` observations in a row, while at least a share `smallest_conflict` of the samples is in conflict: has
    a label that is not the most probable one among its neighbours. Where labels agree with their surroundings there is
    little by whose memorizing test accuracy could fall; so it stays silent where far fewer labels are wrong than that.

    Neighbours are computed again at the observations 1, 2, 3, 5, 8, 12, 18, ... (each 1.5 times the one before, rounded
    up), because early gradients say little about the problem; any other observation costs one forward pass. Both sides
    of a difference are taken with the neighbours of today. 256 monitored samples are a good number.

    Args:
        weight: w, the weight of what is not shared.
        neighbours: Neighbours a sample; fewer than the samples of a class.
        threshold: See above, in standard errors.
        smallest_fall: See above, a probability.
        smallest_conflict: See above, a fraction of the samples.

    Raises:
        InvalidInput: An argument is out of range.

    >>> import torch
    >>> labels = (torch.arange(99) % 3 == 0).long()  # of 99 alike, a third has another label
    >>> others = (torch.arange(99)[:, None] + torch.arange(1, 21)) % 99
    >>> alarm = SharedLearning()
    >>> for epoch, network in enumerate([(0.5, 0.5), (0.67, 0.33)], start=1):  # learns the common part
    ...     _ = alarm.update(torch.tensor([network]).expand(99, 2), labels, others, epoch)
    >>> alarm.raised_at, alarm.peak
    (None, 2)
    >>> _ = alarm.update(torch.eye(2)[labels], labels, others, 3)  # knows each label by heart
    >>> alarm.raised_at, alarm.peak
    (3, 2)
    """

    says: ClassVar[str] = "what is learned is not shared by similar samples"
    kept: ClassVar[tuple[str, ...]] = ("_near", "_best", "_below")

    def __init__(
        self,
        *,
        weight: float = 2.0,
        neighbours: int = 20,
        threshold: float = 5.0,
        smallest_fall: float = 0.01,
        patience: int = 1,
        smallest_conflict: float = 0.3,
    ) -> None:
        check_range("weight", weight, 0)
        check_range("neighbours", neighbours, 1)
        check_range("threshold", threshold, 0)
        check_range("smallest_fall", smallest_fall, 0)
        check_range("patience", patience, 1)
        check_range("smallest_conflict", smallest_conflict, 0, 1)
        self.weight, self.neighbours = weight, neighbours
        self.threshold, self.smallest_fall, self.patience = threshold, smallest_fall, patience
        self.smallest_conflict = smallest_conflict
        self.reset()

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self._near = Neighbourhood()
        self._best: Float[Tensor, "n c"] | None = None
        self._below = 0

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Record probabilities, and sometimes the kernel, of the samples (see `Alarm.observe`)."""
        labels = labels_of(samples, "shared_learning")
        near = self._near.neighbours_at(network, samples, self.neighbours)
        return self.update(outputs_of(network, samples).softmax(1), labels, near, epoch)

    def update(
        self, probabilities: Float[Tensor, "n c"], labels: Int[Tensor, " n"], neighbours: Int[Tensor, "n k"], epoch: int
    ) -> dict[str, float]:
        """Take one observation.

        Returns:
            The means of p and q, s, its fall from the maximum, the fraction of samples in conflict, and whether the
            alarm has been raised (0 or 1), by name.
        """
        best = probabilities if self._best is None else self._best
        then, now = (_Learnt(given, given[neighbours].mean(1), labels) for given in (best, probabilities))
        fall = then.support(self.weight) - now.support(self.weight)
        if float(fall.mean()) <= 0:
            self._best, self.peak = probabilities.clone(), epoch
        error = float(fall.std()) / len(fall) ** 0.5
        fallen = float(fall.mean()) > max(self.smallest_fall, self.threshold * error)
        self._below = self._below + 1 if fallen and now.conflict >= self.smallest_conflict else 0
        if self._below >= self.patience:
            self._raise(epoch)
        return {
            "alarm.own_probability": float(now.own.mean()),
            "alarm.shared_probability": float(now.shared.mean()),
            "alarm.support": float(now.support(self.weight).mean()),
            "alarm.fall": max(0.0, float(fall.mean())),
            "alarm.conflict": now.conflict,
            "alarm.raised": float(self.raised),
        }
