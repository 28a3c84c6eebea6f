"""Evidence of the loss gradient against the noise of a finite number of samples."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples, slices
from gapscope.gradients.tape import record_forward
from gapscope.gradients.verification import verify
from gapscope.inspection.losses import sample_losses
from gapscope.inspection.outputs import inspection_mode, prepare_inputs
from gapscope.training.alarms.base import Alarm, register_alarm

# Samples whose gradients are held at a time, layer by layer.
_CHUNK = 16


def _moments(network: nn.Module, x: Tensor, targets: Tensor) -> dict[tuple[int, ...], tuple[Tensor, Tensor]]:
    """Sums over samples of the loss gradient and of its square, entry by entry, for each group of parameters."""
    tape, outputs = record_forward(network, x)
    verify(tape, outputs)
    loss = sample_losses(outputs, targets.to(x.device)).sum()
    (by_outputs,) = torch.autograd.grad(loss, outputs, retain_graph=True)
    sums = {}
    for key, part in tape.contributions(outputs, by_outputs[None]).items():
        rows = torch.cat([values[0].flatten(1) for values in part.dense()], dim=1).double()
        sums[key] = (rows.sum(0), rows.square().sum(0))
    return sums


def evidence_criterion(network: nn.Module, samples: Samples) -> float:
    r"""Evidence-based criterion of Mahsereci et al. 2017 (arXiv:1703.09580, Sec. 3). Positive says stop.

    With $\bar g$ the mean of the loss gradients of m samples and $\hat\Sigma$ their variance (over m - 1), entry by
    entry, and D the number of weights,

    .. math:: 1 - \frac{m}{D} \sum_{k=1}^{D} \frac{\bar g_k^2}{\hat\Sigma_k}.

    If the gradient of the true loss is zero, every quotient has the expectation 1 (up to 1/m) and the criterion 0.
    Weights whose gradient is the same at all samples (such as those of dead units) are left out of the sum and of D.
    Exact per-sample gradients in evaluation mode.

    Args:
        network: The network; it is left as it was.
        samples: Training samples, two or more, with class labels or regression targets.

    Returns:
        The criterion, at most 1.

    Raises:
        InvalidInput: There are fewer than two samples, or no targets.
    """
    if len(samples) < 2 or samples.targets is None:
        raise InvalidInput(f"evidence_criterion needs two samples or more with targets; got {len(samples)} samples.")
    totals: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
    with inspection_mode(network):
        x = prepare_inputs(network, samples.inputs)
        for part in slices(len(x), _CHUNK):
            for key, (first, second) in _moments(network, x[part], samples.targets[part]).items():
                before = totals.get(key)
                totals[key] = (first, second) if before is None else (before[0] + first, before[1] + second)
    m, quotients, counted = len(samples), 0.0, 0
    for first, second in totals.values():
        variance = (second - first.square() / m) / (m - 1)
        alive = variance > 1e-12 * second / m
        quotients += float(((first[alive] / m).square() / variance[alive]).sum())
        counted += int(alive.sum())
    return 1 - m * quotients / counted if counted else 1.0


@register_alarm("evidence")
class EvidenceAlarm(Alarm):
    """Raised when the loss gradient of the watched samples is no larger than chance alone would make it.

    See `evidence_criterion`. The alarm is raised when it has been larger than `threshold` for `patience` observations
    in a row. `peak` is the epoch before these. Classification and regression. `observe` costs one backward pass of the
    watched samples and holds the gradients of 16 of them, layer by layer; most of the cost is theirs.

    Args:
        threshold: Smaller than 1; the paper's is 0.
        patience: Observations in a row.
        n_samples: Watched samples that are taken, the first ones.

    Raises:
        InvalidInput: An argument is out of range.

    >>> alarm = EvidenceAlarm(patience=2)
    >>> for epoch, criterion in enumerate([-3.0, 0.1, -0.1, 0.1, 0.2], start=1):
    ...     numbers = alarm.update(criterion, epoch)
    >>> alarm.raised_at, alarm.peak
    (5, 3)
    """

    classes_only: ClassVar[bool] = False
    description: ClassVar[str] = "the loss gradient is no larger than chance alone makes it"
    state_fields: ClassVar[tuple[str, ...]] = ("_above",)

    def __init__(self, *, threshold: float = 0.0, patience: int = 1, n_samples: int = 128) -> None:
        check_range("threshold", threshold, high=1, high_open=True)
        check_range("patience", patience, 1)
        check_range("n_samples", n_samples, 2)
        self.threshold, self.patience, self.n_samples = threshold, patience, n_samples
        self.reset()

    def reset(self) -> None:
        """Forget everything seen, for another training."""
        super().reset()
        self._above = 0

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Take the per-sample gradients of the first watched samples. See `Alarm.observe`."""
        first = torch.arange(min(self.n_samples, len(samples)))
        return self.update(evidence_criterion(network, samples.subset(first)), epoch)

    def update(self, criterion: float, epoch: int) -> dict[str, float]:
        """Take the next value of the criterion.

        Args:
            criterion: As `evidence_criterion` gives it.
            epoch: Finished epochs.

        Returns:
            The criterion, and whether the alarm has been raised.
        """
        self._above = self._above + 1 if criterion > self.threshold else 0
        if not self._above and not self.raised:
            self.peak = epoch
        if self._above >= self.patience:
            self._raise(epoch)
        return {"alarm.evidence": criterion, "alarm.raised": float(self.raised)}
