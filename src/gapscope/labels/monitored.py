"""What one training says of its labels, from how it learned them beside canaries that it was given.

A sample's margin is the mean over the epochs watched of the logit of its label less the largest other one (Pleiss et
al. 2020, arXiv:2001.10528, eq. 1): wrong labels are learned late, against what the others say, so that theirs is small.
Canaries are samples that were trained on with a false label; how their margins lie is how those of wrong labels do.
What the network makes of canaries is also the one thing it says without having learned it: how often their own label is
its best guess beside the false one stands for its accuracy on what it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.base.errors import InvalidInput
from gapscope.labels.noise_interval import CanaryMargins, estimate_noise_interval
from gapscope.labels.results import RECALL, LabelIssues, LabelNoiseEstimate, rank_label_issues

# the rate is the smallest ratio over the upper part of the canaries: they are few, and the smallest of many is too low
QUANTILE = 0.7
# below it many wrong labels cannot be told from a network that knows little: both look like the canaries
LEAST_ACCURACY = 0.45


@dataclass(frozen=True)
class MonitoredLabels:
    """Labels and what a training made of them, a row a watched sample.

    Attributes:
        positions: In the training data.
        given: Labels as they were given, those of the canaries too.
        baselines: The class that most often had the largest logit beside the trained label.
        margins: Mean margin of the trained label.
        is_canary: Which samples were trained on with a false label.
        n_classes: Number of classes.
    """

    positions: Int[Tensor, " n"]
    given: Int[Tensor, " n"]
    rivals: Int[Tensor, " n"]
    margins: Float[Tensor, " n"]
    is_canary: Bool[Tensor, " n"]
    n_classes: int

    def noise(self, generator: torch.Generator) -> LabelNoiseEstimate:
        """Bound the fraction of wrong labels among the samples that are no canaries.

        Args:
            generator: Draws what is resampled for the interval.

        Returns:
            The noise; its clean accuracy is taken as if no label were wrong where the network predicts the canaries'
            own labels at less than 45 %.
        """
        canaries = self.is_canary
        accuracy = float((self.rivals == self.given)[canaries].double().mean())
        margins = CanaryMargins(self.margins[~canaries][None], self.margins[canaries][None])
        noise = estimate_noise_interval(
            margins,
            accuracy,
            self.n_classes,
            samples=int((~canaries).sum()),
            quantile=QUANTILE,
            generator=generator,
        )
        noise = noise if accuracy >= LEAST_ACCURACY else replace(noise, clean_accuracy=accuracy)
        return noise.as_upper_bound()

    def ranked(self, noise: LabelNoiseEstimate, kernel: Float[Tensor, " n"] | None = None) -> LabelIssues:
        """Rank the samples that are no canaries: by margin, or by the mean of its rank and a kernel machine's.

        Args:
            noise: What `noise` returned.
            kernel: Leave-one-out margins of the labels that were trained on, of a kernel that sees the inputs alone.

        Returns:
            The ranking; positions are those in the training data. With `kernel` its margins are mean ranks less 0.5.
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
    """Ranks in [0, 1), smallest first; ties in the order of the samples."""
    return values.argsort(stable=True).argsort().double() / len(values)


@runtime_checkable
class WatchesLabels(Protocol):
    """An alarm that knows how labels were learned."""

    def watched_labels(self) -> MonitoredLabels:
        """Return what was seen so far."""
        ...


def get_monitored_labels(source: Any) -> MonitoredLabels:
    """Ask a monitor, its callback or its alarm what the training made of the labels.

    Args:
        source: One of these.

    Returns:
        What it saw.

    Raises:
        InvalidInput: It watched no canaries, or nothing yet.
    """
    found = getattr(source, "monitor", source)
    alarm = getattr(found, "alarm", None)
    asked = [found, alarm, getattr(alarm, "gate", None), getattr(alarm, "alarm", None)]
    for watcher in asked:
        if isinstance(watcher, WatchesLabels):
            return watcher.watched_labels()
    what = type(found).__name__ + ("" if alarm is None else f" with the alarm {type(alarm).__name__}")
    raise InvalidInput(
        "Wrong labels are told by an untrained network with its data, or by a Monitor whose alarm is a CanaryAlarm; "
        f"got {what}. Train on canaries.labels of canaries = Canaries(y), watched by Monitor((x, canaries.labels), [], "
        "n_samples=len(x), alarm=CanaryAlarm(canaries))."
    )
