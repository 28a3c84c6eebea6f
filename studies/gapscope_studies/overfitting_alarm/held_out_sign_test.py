"""Training samples that are kept out until an alarm whose rate of false alarms is known."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples
from gapscope.inspection.losses import sample_losses
from gapscope.training.alarms.base import Alarm, outputs_of, register_alarm


def sign_test(worse: int, better: int) -> float:
    r"""One-sided exact paired test: chance of `worse` or more of `worse + better` fair coins.

    McNemar's test in its exact form, where "worse" counts the samples that were right before and are wrong now.

    Args:
        worse: Samples that got worse.
        better: Samples that got better; samples that stayed do not count.

    Returns:
        $2^{-d} \sum_{k=w}^{d} \binom dk$ with d = worse + better.

    >>> sign_test(5, 0), sign_test(3, 1)
    (0.03125, 0.3125)
    """
    total = worse + better
    return sum(math.comb(total, k) for k in range(worse, total + 1)) / 2**total


@register_alarm("late_joiners")
class HeldOutSignTest(Alarm):
    r"""Raised when samples kept out of training are predicted worse than at an earlier observation, significantly.

    A part of the training samples is kept out (`keep_out`), watched, and joins the training when the alarm is raised
    or the training ends. Nothing was fitted to them, so that the exact paired test between two observations holds: if
    accuracy never fell, the chance of a false alarm in the *whole* training is at most `level`, whatever network, data
    and noise. For that, every one of the `looks` (looks - 1) / 2 pairs of observations is tested at
    $level / \binom{looks}{2}$; `looks` must therefore be fixed beforehand, and `every` of the monitor chosen by it.
    Observations beyond `looks` are not tested.

    The price is power: a fall of four points is found with probability .8 from about 1,000 kept-out samples on
    (`samples_needed`); below 300 hardly any fall is. So this is for training sets from about 9,000 samples on.
    Classification counts samples that were right and are wrong; regression counts samples whose squared error grew, and
    so guards the typical sample, not the mean error.

    Args:
        looks: Observations of the training at most.
        level: Largest chance of a false alarm.

    Raises:
        InvalidInput: An argument is out of range.

    >>> alarm = HeldOutSignTest(looks=2)
    >>> right = torch.zeros(20)
    >>> wrong = torch.tensor([1.0] * 5 + [0.0] * 15)
    >>> for epoch, errors in enumerate([right, wrong], start=1):
    ...     numbers = alarm.update(errors, epoch)
    >>> numbers["alarm.p_value"], alarm.raised_at, alarm.peak
    (0.03125, 2, 1)
    """

    classes_only: ClassVar[bool] = False
    description: ClassVar[str] = "samples that are not trained on are predicted worse"
    state_fields: ClassVar[tuple[str, ...]] = ("_errors", "_epochs")

    def __init__(self, *, looks: int = 10, level: float = 0.05) -> None:
        check_range("looks", looks, 2)
        check_range("level", level, 0, 1, low_open=True, high_open=True)
        self.looks, self.level = looks, level
        self.reset()

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self._errors: Tensor | None = None
        self._epochs: list[int] = []

    @property
    def level_of_a_pair(self) -> float:
        """Level of the test of one pair of observations."""
        return self.level / math.comb(self.looks, 2)

    def samples_needed(self, fall: float = 0.04, *, discordant: float = 0.1, power: float = 0.8) -> int:
        r"""Kept-out samples that find a fall of accuracy with a given probability.

        From the normal approximation, $m = (z_{1-\alpha} \sqrt q + z_{power} \sqrt{q - \delta^2})^2 / \delta^2$ with
        the share q of samples predicted rightly at one of two observations alone and the fall $\delta$ (Connor 1987).

        Args:
            fall: $\delta$.
            discordant: q; larger than the fall.
            power: Probability of finding it in one pair.

        Returns:
            m, rounded up.

        Raises:
            InvalidInput: An argument is out of range.
        """
        check_range("fall", fall, 0, 1, low_open=True)
        check_range("discordant", discordant, fall, 1)
        check_range("power", power, 0, 1, low_open=True, high_open=True)
        normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
        first, second = normal.icdf(torch.tensor([1 - self.level_of_a_pair, power], dtype=torch.float64)).tolist()
        spread = first * discordant**0.5 + second * (discordant - fall**2) ** 0.5
        return math.ceil((spread / fall) ** 2)

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Take the errors of the kept-out samples, one forward pass. See `Alarm.observe`."""
        if samples.targets is None:
            raise InvalidInput("late_joiners needs targets of the samples that are kept out. Pass data as (x, y).")
        outputs, targets = outputs_of(network, samples), samples.targets.cpu()
        if samples.is_classification:
            return self.update((outputs.argmax(1) != targets).double(), epoch)
        return self.update(sample_losses(outputs, targets), epoch)

    def update(self, errors: Float[Tensor, " m"], epoch: int) -> dict[str, float]:
        """Take the errors of the same kept-out samples, in the same order.

        Args:
            errors: 0 where a sample is predicted rightly and 1 where wrongly, or squared errors.
            epoch: Finished epochs.

        Returns:
            Mean error, smallest p-value of the test against an earlier observation (1 the first time), and whether the
            alarm has been raised.

        Raises:
            InvalidInput: So few samples are kept out that no result could ever raise the alarm.
        """
        errors = errors.double()
        least = math.ceil(-math.log2(self.level_of_a_pair))
        if len(errors) < least:
            raise InvalidInput(
                f"late_joiners needs {least} kept-out samples or more for {self.looks} looks at level {self.level:g}; "
                f"got {len(errors)}. Keep out more samples, or look less often."
            )
        p_value = 1.0
        if self._errors is not None and len(self._epochs) < self.looks:
            pairs = [(int((errors > old).sum()), int((errors < old).sum())) for old in self._errors]
            p_value = min(sign_test(*pair) for pair in pairs)
        if len(self._epochs) < self.looks:
            new = errors[None]
            self._errors = new if self._errors is None else torch.cat([self._errors, new])
            self._epochs = [*self._epochs, epoch]
            self.peak = self._epochs[int(self._errors.mean(1).argmin())]
        if p_value <= self.level_of_a_pair:
            self._raise(epoch)
        return {
            "alarm.error": float(errors.mean()),
            "alarm.p_value": p_value,
            "alarm.raised": float(self.raised),
        }
