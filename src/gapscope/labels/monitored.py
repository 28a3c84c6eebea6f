"""Label noise from one monitored training run with canaries.

A sample's margin is the logit of its label less the largest other logit, averaged over the monitored epochs (Pleiss et
al. 2020, arXiv:2001.10528, eq. 1). Label errors are learned late, so their margins are small. Canaries are samples that
are trained on with a corrupted label; the margins of label errors are assumed to be distributed as theirs.
are trained on with a corrupted label; the margins of label errors are assumed to be distributed as theirs. The network
never trains on the original labels of the canaries: how often these are its best class besides the
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.labels.noise_rate import CanaryMargins, clean_accuracy, noise_rate_interval
from gapscope.labels.results import RECALL, LabelIssues, LabelNoiseEstimate, rank_label_issues

# The rate is the smallest ratio over the upper part of the canaries: the minimum over few canaries is biased downwards.
QUANTILE = 0.7
# Below this accuracy, many label errors look the same as a network that has learned little.
MIN_ACCURACY = 0.45


@dataclass(frozen=True)
class MonitoredLabels:
    """Labels and margins of the monitored samples of one training run.

    Attributes:
        positions: Indices in the training data.
        given: Labels as given, also of the canaries.
        rivals: The runner-up class, other than the trained label, most often with the largest logit.
        margins: Mean margin of the trained label.
        is_canary: Which samples were trained on with a corrupted label.
        n_classes: Number of classes.
    """

    positions: Int[Tensor, " n"]
    given: Int[Tensor, " n"]
    rivals: Int[Tensor, " n"]
    margins: Float[Tensor, " n"]
    is_canary: Bool[Tensor, " n"]
    n_classes: int

    def noise(self, generator: torch.Generator) -> LabelNoiseEstimate:
        """Return the estimated label noise of the samples that are not canaries.

        The accuracy on clean labels is not corrected for noise where fewer than 45 % of the canaries' original labels
        are predicted.
        """
        canaries, n_classes = self.is_canary, self.n_classes
        accuracy = float((self.rivals == self.given)[canaries].double().mean())
        margins = CanaryMargins(self.margins[~canaries][None], self.margins[canaries][None])
        rate, low, high = noise_rate_interval(margins, n_classes, quantile=QUANTILE, generator=generator)
        # a rate that is far too high would make the accuracy on clean labels look high too
        clean = accuracy if accuracy < MIN_ACCURACY else min(clean_accuracy(accuracy, rate, n_classes), 1.0)
        samples = int((~canaries).sum())
        return LabelNoiseEstimate(rate, low, high, clean, samples, accuracy=accuracy).bounded_if_hard()

    def ranked(self, noise: LabelNoiseEstimate, kernel: Float[Tensor, " n"] | None = None) -> LabelIssues:
        """Rank the samples that are not canaries by margin.

        With `kernel`, the leave-one-out margins of the trained labels by a kernel of the inputs, samples are ranked by
        the mean of both ranks (less 0.5).
        """
        ordinary = ~self.is_canary
        cut = float(self.margins[self.is_canary].quantile(RECALL))
        agreed = (self.margins > 0) & (self.margins > cut)
        suggested = torch.where(agreed, self.given, self.rivals)
        margins = self.margins
        if kernel is not None:
            margins = (_ranks(self.margins) + _ranks(kernel)) / 2 - 0.5
        return rank_label_issues(
            self.positions[ordinary], self.given[ordinary], suggested[ordinary], margins[ordinary],
            margins[self.is_canary], noise,
        )  # fmt: skip


def _ranks(values: Tensor) -> Tensor:
    """Return ranks in [0, 1), smallest first, ties in the order of the samples."""
    return values.argsort(stable=True).argsort().double() / len(values)


@runtime_checkable
class RecordsLabels(Protocol):
    """Alarm that records the margins of labels."""

    def monitored_labels(self) -> MonitoredLabels:
        """Return labels and margins up to now."""
        ...


def get_monitored_labels(source: Any) -> MonitoredLabels:
    """Return the monitored labels of a monitor, its callback or its alarm.

    Raises:
        InvalidInput: It has no canaries, or has recorded nothing yet.
    """
    monitor = getattr(source, "monitor", source)
    alarm = getattr(monitor, "alarm", None)
    for candidate in (monitor, alarm):
        if isinstance(candidate, RecordsLabels):
            return candidate.monitored_labels()
    what = type(monitor).__name__ + ("" if alarm is None else f" with the alarm {type(alarm).__name__}")
    raise InvalidInput(
        "Label issues need an untrained network (or None) with its data, or a Monitor whose alarm is a CanaryAlarm; "
        f"got {what}. Train on canaries.labels of canaries = Canaries(y), with "
        "on_epoch=Monitor((x, canaries.labels), [], n_samples=len(x), alarm=CanaryAlarm(canaries))."
    )
