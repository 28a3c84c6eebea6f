"""Label Wave: number of training samples whose predicted class changed in an epoch."""

from __future__ import annotations

import math
from typing import ClassVar

from jaxtyping import Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.training.alarms.base import PeakAlarm, outputs_of
from gapscope.training.alarms.registry import register_alarm


@register_alarm("label_wave")
class LabelWave(PeakAlarm):
    r"""Alarm on a renewed rise of prediction changes on training samples.

    With $\hat y_i^t$ the predicted class of sample i at observation t, the prediction changes are

    .. math:: PC_t = \frac1n \sum_i 1[\hat y_i^t \ne \hat y_i^{t-1}].

    They fall while the network learns what samples have in common, and rise when it begins to fit label errors.
    The alarm is raised at the first local minimum of their mean over `window` observations (Yuan, Feng and Liu, ICLR
    2024, arXiv:2502.07551, Sec. 3, with 3 observations): when the mean has been more than `fall` above its minimum for
    `patience` observations in a row. On clean labels there is no such rise, and the alarm is raised by chance ("not
    applicable in very low or no label noise", as its authors state).

    The authors use the predictions of the training pass, which cost nothing: pass these to `update`. `observe` uses
    those of the monitored samples in evaluation mode, one forward pass.

    Args:
        fall: Fraction of the samples.

    >>> import torch
    >>> wave = LabelWave(window=1, patience=1)
    >>> epochs = [[0, 0, 0, 0], [0, 1, 2, 0], [0, 1, 2, 1], [1, 0, 2, 1]]  # 2, 1 and 2 of 4 change
    >>> for epoch, predicted in enumerate(epochs, start=1):
    ...     numbers = wave.update(torch.tensor(predicted), epoch)
    >>> numbers["alarm.prediction_changes"], wave.raised_at, wave.peak
    (0.5, 4, 3)
    """

    description: ClassVar[str] = "predictions of training samples change more again"
    state_fields: ClassVar[tuple[str, ...]] = (*PeakAlarm.state_fields, "_before")

    def __init__(self, *, window: int = 3, fall: float = 0.0, patience: int = 3) -> None:
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run."""
        super().reset()
        self._before: Tensor | None = None

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Predict the monitored samples in evaluation mode (see `Alarm.observe`)."""
        self._labels(samples)
        return self.update(outputs_of(network, samples).argmax(1), epoch)

    def update(self, predicted: Int[Tensor, " n"], epoch: int) -> dict[str, float]:
        """Update with the predicted classes of the same samples, in the same order, once per epoch.

        Returns:
            The fraction of predictions that changed (NaN the first time), and whether the alarm has been raised.

        Raises:
            InvalidInput: There are more or fewer samples than before.
        """
        if self._before is not None and len(self._before) != len(predicted):
            raise InvalidInput(
                f"Got predictions of {len(predicted)} samples; they must be of the same samples each time, "
                f"{len(self._before)}. Pass those of all samples, in one order."
            )
        changes = math.nan if self._before is None else float((predicted != self._before).double().mean())
        self._before = predicted.clone()
        self.follow(-changes, epoch)
        return {"alarm.prediction_changes": changes, "alarm.raised": float(self.raised)}
