"""Alarms that did not earn a place in the library, as baselines: `update` alone, for the replay of recorded runs."""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.training.alarms.base import PeakAlarm
from gapscope.training.alarms.joint import agreement

# excess kurtosis of the uniform distribution, with the other sign
_UNIFORM = 1.2


class _Replayed(PeakAlarm):
    """Alarm that is updated with recorded numbers and observes no network."""

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Raise an error: call `update`."""
        raise NotImplementedError(f"{type(self).__name__} is replayed from records: call update.")


class LeftOutAgreement(_Replayed):
    r"""Alarm on a fall of $\frac1n \sum_i \sum_c p_{ic} b_{ic}$, the first of the three signals of `JointAlarm`."""

    def update(
        self, probabilities: Float[Tensor, "n k"], predictions: Float[Tensor, "n k"], epoch: int
    ) -> dict[str, float]:
        """Update with one observation."""
        return self.follow(agreement(probabilities, predictions), epoch)


class GradientWeightAlignment(_Replayed):
    r"""Alarm on a falling alignment of per-sample loss gradients with the last layer's weight.

    With the cosines $\gamma_i$ (the second signal of `JointAlarm`) the alarm follows

    .. math:: GWA = \frac{\operatorname{mean}_i \gamma_i}{\operatorname{kurtosis}_i \gamma_i + 1.2}

    with the excess kurtosis, -1.2 for a uniform distribution (Hoelzl, Rueckert and Kaissis, NeurIPS 2025,
    arXiv:2510.25480, Sec. 4 and their code). Their rule takes the maximum after the first tenth of the training;
    `skip` ignores the first observations. A distribution with two modes has an excess kurtosis below -1.2, where the
    quotient changes its sign: `smallest` bounds the denominator from below, which the authors do not do, and
    `kurtosis=False` follows the mean alone.
    """

    def __init__(
        self, *, window: int, fall: float, patience: int, skip: int, kurtosis: bool = True, smallest: float = 0.05
    ) -> None:
        super().__init__(window=window, fall=fall, patience=patience)
        self.skip, self.kurtosis, self.smallest = skip, kurtosis, smallest
        self._looks = 0

    def update(self, cosines: Float[Tensor, " n"], epoch: int) -> dict[str, float]:
        """Update with one cosine per sample."""
        self._looks += 1
        value = float(cosines.mean())
        if self.kurtosis:
            value /= max(excess_kurtosis(cosines) + _UNIFORM, self.smallest)
        if self._looks > self.skip:
            self.follow(value, epoch)
        return {"alarm.value": value, "alarm.raised": float(self.raised)}


def excess_kurtosis(values: Float[Tensor, " n"]) -> float:
    """Return the excess kurtosis (0 if all values are equal)."""
    square = (values - values.mean()).square()
    variance = float(square.mean())
    return float(square.square().mean()) / variance**2 - 3 if variance > 0 else 0.0


class LabelWave(_Replayed):
    r"""Alarm on a renewed rise of the fraction of training samples whose predicted class changed in an epoch.

    .. math:: PC_t = \frac1n \sum_i 1[\hat y_i^t \ne \hat y_i^{t-1}].

    It falls while the network learns what samples have in common, and rises when it begins to fit label errors. The
    alarm is raised at the first local minimum of the mean over `window` observations (Yuan, Feng and Liu, ICLR 2024,
    arXiv:2502.07551, Sec. 3, with 3 observations). On clean labels it is raised by chance ("not applicable in very low
    or no label noise", as its authors state).
    """

    def __init__(self, *, window: int, fall: float, patience: int) -> None:
        super().__init__(window=window, fall=fall, patience=patience)
        self._before: Tensor | None = None

    def update(self, predicted: Int[Tensor, " n"], epoch: int) -> dict[str, float]:
        """Update with the predicted classes of the same samples, in the same order, once per epoch."""
        changes = math.nan if self._before is None else float((predicted != self._before).double().mean())
        self._before = predicted
        self.follow(-changes, epoch)
        return {"alarm.prediction_changes": changes, "alarm.raised": float(self.raised)}
