"""Joint alarm: LOO agreement, gradient-weight alignment and shared learning."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.training.alarms.base import PeakAlarm, labels_of, outputs_of
from gapscope.training.alarms.gradient_weight_alignment import observed_alignments
from gapscope.training.alarms.loo_agreement import agreement, loo_predictions
from gapscope.training.alarms.registry import register_alarm
from gapscope.training.alarms.shared_learning import Neighbourhood, mean_support


@register_alarm("joint")
class JointAlarm(PeakAlarm):
    r"""Raised when the sum of three signals, each about a number between 0 and 1, has fallen.

    The alarm follows $a + g + s$: the agreement a with held-out predictions of the initial kernel
    (`LeftOutAgreement`), the mean cosine g of the last layer's loss gradients and weight (`GradientWeightAlignment`,
    without the kurtosis), and what is shared by neighbours in gradient space, $s = q - w (p - q)$ (`SharedLearning`).
    They err for different reasons, so that their sum is steadier than each.

    Costs one kernel of the monitored samples before training and at the observations 1, 2, 3, 5, 8, 12, 18, ..., and
    two forward passes per observation. The network must end in an nn.Linear.

    Args:
        fall: In units of the sum.
        weight: w.
        neighbours: Neighbours a sample; at most a quarter of the monitored samples are taken.
    """

    says: ClassVar[str] = "what is learned of individual samples is shared less and less"
    kept: ClassVar[tuple[str, ...]] = (*PeakAlarm.kept, "_predictions", "_near")

    def __init__(
        self, *, window: int = 5, fall: float = 0.03, patience: int = 3, weight: float = 0.5, neighbours: int = 20
    ) -> None:
        check_range("weight", weight, 0)
        check_range("neighbours", neighbours, 1)
        self.weight, self.neighbours = weight, neighbours
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self._predictions: Tensor | None = None
        self._near = Neighbourhood()

    def begin(self, network: nn.Module, samples: Samples) -> None:
        """Predict every monitored sample from all others, at the initial weights."""
        labels_of(samples, "joint")
        self._predictions = loo_predictions(network, samples)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Observe outputs, last layer and sometimes neighbours (see `Alarm.observe`)."""
        labels = labels_of(samples, "joint")
        if self._predictions is None:
            self.begin(network, samples)
        assert self._predictions is not None
        near = self._near.neighbours_at(network, samples, min(self.neighbours, max(1, len(samples) // 4)))
        probabilities = outputs_of(network, samples).softmax(1)
        return self.update(
            probabilities, labels, self._predictions, near, observed_alignments(network, samples, labels), epoch
        )

    def update(
        self,
        probabilities: Float[Tensor, "n k"],
        labels: Int[Tensor, " n"],
        predictions: Float[Tensor, "n k"],
        neighbours: Int[Tensor, "n m"],
        cosines: Float[Tensor, " n"],
        epoch: int,
    ) -> dict[str, float]:
        """Take one observation.

        Args:
            predictions: Left-out predictions at the initial weights, the same each time.
            cosines: As `alignments` gives them.

        Returns:
            The three signals and whether the alarm has been raised.
        """
        a, g = agreement(probabilities, predictions), float(cosines.mean())
        s = mean_support(probabilities, labels, neighbours, self.weight)
        found = self.follow(a + g + s, epoch)
        return {
            "alarm.agreement": a,
            "alarm.alignment": g,
            "alarm.support": s,
            "alarm.value": found["alarm.value"],
            "alarm.raised": found["alarm.raised"],
        }
