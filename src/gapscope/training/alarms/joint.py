"""Joint alarm: LOO agreement, gradient-weight alignment and shared learning."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.training.alarms.base import outputs_of
from gapscope.training.alarms.gradient_weight_alignment import observed_alignments
from gapscope.training.alarms.loo_agreement import LeftOutAgreement, agreement
from gapscope.training.alarms.registry import register_alarm
from gapscope.training.alarms.shared_learning import Neighbourhood, label_support


@register_alarm("joint")
class JointAlarm(LeftOutAgreement):
    r"""Alarm on a fall of the sum of three signals, each about a number between 0 and 1.

    The alarm follows $a + g + s$: the agreement a with leave-one-out predictions of the initial kernel
    (`LeftOutAgreement`), the mean cosine g of the last layer's loss gradients and weight (`GradientWeightAlignment`,
    without the kurtosis), and the support s of labels by neighbours in gradient space, $s = q - w (p - q)$
    (`SharedLearning`). Their errors have different causes, so that their sum varies less than each.

    Costs one kernel of the monitored samples before training and at the observations 1, 2, 3, 5, 8, 12, 18, ..., and
    two forward passes per observation. The network must end in an nn.Linear.

    Args:
        fall: In units of the sum.
        weight: w.
        neighbours: Neighbours per sample, at most a quarter of the monitored samples.
    """

    description: ClassVar[str] = "progress on individual samples is shared less and less with similar ones"
    state_fields: ClassVar[tuple[str, ...]] = (*LeftOutAgreement.state_fields, "_near")

    def __init__(
        self, *, window: int = 5, fall: float = 0.03, patience: int = 3, weight: float = 0.5, neighbours: int = 20
    ) -> None:
        check_range("weight", weight, 0)
        check_range("neighbours", neighbours, 1)
        self.weight, self.neighbours = weight, neighbours
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._near = Neighbourhood()

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Observe outputs, last layer and sometimes neighbours (see `Alarm.observe`)."""
        labels, predictions = self._labels(samples), self._loo(network, samples)
        near = self._near.neighbours_at(network, samples, min(self.neighbours, max(1, len(samples) // 4)))
        probabilities, cosines = outputs_of(network, samples).softmax(1), observed_alignments(network, samples, labels)
        return self.update(probabilities, labels, predictions, near, cosines, epoch)

    def update(  # type: ignore[override]
        self,
        probabilities: Float[Tensor, "n k"],
        labels: Int[Tensor, " n"],
        predictions: Float[Tensor, "n k"],
        neighbours: Int[Tensor, "n m"],
        cosines: Float[Tensor, " n"],
        epoch: int,
    ) -> dict[str, float]:
        """Update with one observation.

        Args:
            cosines: What `alignments` returned.

        Returns:
            The three signals, their sum, and whether the alarm has been raised.
        """
        a, g = agreement(probabilities, predictions), float(cosines.mean())
        s = float(label_support(probabilities, labels, neighbours, self.weight)[2].mean())
        self.follow(a + g + s, epoch)
        return {
            "alarm.agreement": a,
            "alarm.alignment": g,
            "alarm.support": s,
            "alarm.value": a + g + s,
            "alarm.raised": float(self.raised),
        }
