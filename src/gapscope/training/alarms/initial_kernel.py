"""How far labels contradict what the kernel of model gradients says before anything was learned; a gate for alarms."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.inspection.outputs import inspection_mode
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.base import Alarm, labels_of
from gapscope.training.alarms.registry import register_alarm


def disagreement_fraction(predictions: Float[Tensor, "n k"], labels: Int[Tensor, " n"], margin: float) -> float:
    """Fraction of samples for which left-out prediction gives another class more than the given one, by a margin.

    Args:
        predictions: Left-out predictions of one-hot labels.
        labels: Labels as given.
        margin: Difference of the two predictions, of which those of all classes add up to 1.

    Returns:
        The share.
    """
    own = predictions.gather(1, labels[:, None]).squeeze(1)
    other = predictions.scatter(1, labels[:, None], -torch.inf).amax(1)
    return float((other - own > margin).double().mean())


@register_alarm("initial_kernel")
class KernelNoiseGate(Alarm):
    """Not an alarm by itself: a gate for one, open where many labels contradict their surroundings from the start.

    Before the first epoch (`begin`; else at the first observation, which is a little late) every watched sample is
    predicted by ridge regression in gradient space fitted to all others (`kernel_leave_one_out`), which knows nothing
    of its own label. The gate opens if the fraction of `contradicted` samples is at least `smallest_share`. Where the
    task itself is hard for this kernel (natural images) predictions are unsure, and a `margin` counts few of them.

    Costs one kernel of the watched samples; nothing later.

    Args:
        margin: See `contradicted`.
        smallest_share: See above.
    """

    kept: ClassVar[tuple[str, ...]] = ("share", "accuracy")

    def __init__(self, *, margin: float = 0.2, smallest_share: float = 0.1) -> None:
        check_range("margin", margin, 0)
        check_range("smallest_share", smallest_share, 0, 1)
        self.margin, self.smallest_share = margin, smallest_share
        self.reset()

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self.share = self.accuracy = math.nan

    @property
    def open(self) -> bool:
        """Whether labels contradict their surroundings often enough for an alarm; see `GatedAlarm`."""
        return self.share >= self.smallest_share

    def begin(self, network: nn.Module, samples: Samples) -> None:
        """Predict every watched sample from all others, at the initial weights."""
        labels = labels_of(samples, "initial_kernel")
        with inspection_mode(network):
            found = kernel_leave_one_out(network, samples.inputs, labels.to(samples.inputs.device))
        self.update(found.predictions.cpu(), labels)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Look at the first observation only, and only where `begin` was not called; see `Alarm.observe`."""
        if math.isnan(self.share):
            self.begin(network, samples)
        return {"alarm.contradicted": self.share, "alarm.left_out_accuracy": self.accuracy, "alarm.raised": 0.0}

    def update(self, predictions: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> None:
        """Take the left-out predictions of the initial kernel.

        Args:
            predictions: Left-out predictions of one-hot labels.
            labels: Labels as given.
        """
        self.share = disagreement_fraction(predictions, labels, self.margin)
        self.accuracy = float((predictions.argmax(1) == labels).double().mean())
