"""Agreement of a network with leave-one-out predictions of its initial kernel."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.inspection.outputs import inspection_mode
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.training.alarms.base import PeakAlarm, outputs_of
from gapscope.training.alarms.registry import register_alarm


def loo_predictions(network: nn.Module, samples: Samples) -> Float[Tensor, "n k"]:
    """Return leave-one-out predictions of one-hot labels, clipped to [0, 1]."""
    assert samples.targets is not None
    with inspection_mode(network):
        loo = kernel_leave_one_out(network, samples.inputs, samples.targets.to(samples.inputs.device))
    return loo.predictions.clamp(0, 1).cpu()


def agreement(probabilities: Float[Tensor, "n k"], predictions: Float[Tensor, "n k"]) -> float:
    r"""Return the mean of $\sum_c p_{ic} b_{ic}$ for probabilities p and predictions b."""
    return float((probabilities * predictions).sum(1).mean())


@register_alarm("left_out_agreement")
class LeftOutAgreement(PeakAlarm):
    r"""Alarm on a falling agreement with leave-one-out predictions of the labels.

    Before training, every monitored sample i is predicted by ridge regression in gradient space fitted to all *other*
    monitored samples (`kernel_leave_one_out`), $b_{ic}$ for class c. With $p_{ic}$ the network's probabilities, the
    alarm follows

    .. math:: \frac1n \sum_i \sum_c p_{ic}\, b_{ic}.

    It rises while the network learns what samples have in common. The prediction of a sample does not use its label,
    so that the agreement falls where the label is memorized. It works like a validation set that costs no sample, but
    is limited to the initial features. Our own.

    Costs one kernel of the monitored samples before training (`begin`; else at the first observation) and one forward
    pass per observation.

    Args:
        fall: In units of a probability.
    """

    description: ClassVar[str] = "the network agrees less and less with leave-one-out predictions"
    state_fields: ClassVar[tuple[str, ...]] = (*PeakAlarm.state_fields, "_predictions")

    def __init__(self, *, window: int = 5, fall: float = 0.005, patience: int = 3) -> None:
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._predictions: Tensor | None = None

    def begin(self, network: nn.Module, samples: Samples) -> None:
        """Predict every monitored sample from all others, at the initial weights."""
        self._labels(samples)
        self._predictions = loo_predictions(network, samples)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Predict the monitored samples in evaluation mode (see `Alarm.observe`)."""
        return self.update(outputs_of(network, samples).softmax(1), self._loo(network, samples), epoch)

    def _loo(self, network: nn.Module, samples: Samples) -> Float[Tensor, "n k"]:
        """Return the LOO predictions, computed now if there was no network before training."""
        if self._predictions is None:
            self.begin(network, samples)
        assert self._predictions is not None
        return self._predictions

    def update(
        self, probabilities: Float[Tensor, "n k"], predictions: Float[Tensor, "n k"], epoch: int
    ) -> dict[str, float]:
        """Update with one observation; return the agreement and the alarm's state."""
        value = agreement(probabilities, predictions)
        self.follow(value, epoch)
        return {"alarm.agreement": value, "alarm.raised": float(self.raised)}
