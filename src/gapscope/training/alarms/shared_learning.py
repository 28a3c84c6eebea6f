"""Shared learning: progress on samples, compared with that on their gradient neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.gradients.kernel import most_similar
from gapscope.measures.gradient_neighbours import conflict_fraction
from gapscope.measures.ntk import empirical_ntk
from gapscope.training.alarms.base import Alarm, outputs_of, register_alarm


def label_support(
    probabilities: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    neighbours: Int[Tensor, "n k"],
    weight: float,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return p, q and s = q - w (p - q) per sample, see `SharedLearning`."""
    at_neighbours = probabilities[neighbours].mean(1)
    p, q = (table.gather(1, labels[:, None]).squeeze(1) for table in (probabilities, at_neighbours))
    return p, q, q - weight * (p - q)


@dataclass
class Neighbourhood:
    """Neighbours of the monitored samples, updated at observations 1, 2, 3, 5, 8, 12, ..."""

    nearest: Tensor | None = None
    looks: int = 0  # number of observations
    refresh_at: int = 1  # number of the next observation at which neighbours are recomputed

    def neighbours_at(
        self, network: nn.Module, samples: Samples, number: int
    ) -> Int[Tensor, "n k"]:
        """Return this observation's neighbours, `number` per sample."""
        self.looks += 1
        if self.nearest is None or self.looks == self.refresh_at:
            self.nearest = most_similar(
                empirical_ntk(network, samples.inputs, outputs="traced"), number
            ).cpu()
            self.refresh_at = math.ceil(1.5 * self.refresh_at)
        return self.nearest


@register_alarm("shared_learning")
class SharedLearning(Alarm):
    r"""Alarm on progress on individual samples that similar samples do not share.

    The neighbours of a sample are the training samples with the most similar gradients of the outputs by the weights.
    With $p_i$ the probability of the training label of sample i, and $q_i$ the mean probability of that label at the
    neighbours of i, the alarm follows

    .. math:: s = \frac1n \sum_i s_i, \qquad s_i = q_i - w\, (p_i - q_i).

    While the network learns what samples have in common, p, q and s rise. Memorization of individual samples raises p
    alone, and s falls if $\Delta q < \frac{w}{1 + w} \Delta p$. The alarm is raised when s has fallen from its maximum
    by more than `smallest_fall` and by more than `threshold` standard errors (of the mean paired difference of $s_i$)
    for `patience` consecutive observations, while at least a fraction `smallest_conflict` of the labels is not the most
    probable one among the neighbours. With fewer such conflicts memorization hardly lowers the test accuracy.

    Neighbours are recomputed at the observations 1, 2, 3, 5, 8, 12, 18, ..., because early gradients depend little on
    the data; any other observation costs one forward pass. Monitor about 256 samples.

    Args:
        weight: w.
        neighbours: Neighbours per sample; fewer than the samples of a class.
        threshold: Smallest fall in standard errors.
        smallest_fall: Smallest fall, a probability.
        smallest_conflict: Smallest fraction of samples in conflict.
    """

    description: ClassVar[str] = "progress on individual samples is not shared by similar ones"
    state_fields: ClassVar[tuple[str, ...]] = ("_near", "_best", "_below")

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
        self.weight = weight
        self.neighbours = neighbours
        self.threshold = threshold
        self.smallest_fall = smallest_fall
        self.patience = patience
        self.smallest_conflict = smallest_conflict
        self.reset()

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._near = Neighbourhood()
        self._best: Float[Tensor, "n c"] | None = None
        self._below = 0

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Record probabilities, and sometimes the kernel, of the samples (see `Alarm.observe`)."""
        labels = self._labels(samples)
        near = self._near.neighbours_at(network, samples, self.neighbours)
        return self.update(outputs_of(network, samples).softmax(1), labels, near, epoch)

    def update(
        self,
        probabilities: Float[Tensor, "n c"],
        labels: Int[Tensor, " n"],
        neighbours: Int[Tensor, "n k"],
        epoch: int,
    ) -> dict[str, float]:
        """Update with one observation, and return its numbers by name."""
        best = probabilities if self._best is None else self._best
        # both supports use the current neighbours
        p, q, support = label_support(probabilities, labels, neighbours, self.weight)
        fall = label_support(best, labels, neighbours, self.weight)[2] - support
        conflict = conflict_fraction(probabilities[neighbours].mean(1), labels)
        if float(fall.mean()) <= 0:
            self._best = probabilities.clone()
            self.peak = epoch
        error = float(fall.std()) / len(fall) ** 0.5
        is_below = float(fall.mean()) > max(self.smallest_fall, self.threshold * error)
        is_below &= conflict >= self.smallest_conflict
        self._below = self._below + 1 if is_below else 0
        if self._below >= self.patience:
            self._raise(epoch)
        return {
            "alarm.own_probability": float(p.mean()),
            "alarm.shared_probability": float(q.mean()),
            "alarm.support": float(support.mean()),
            "alarm.fall": max(0.0, float(fall.mean())),
            "alarm.conflict": conflict,
            "alarm.raised": float(self.raised),
        }
