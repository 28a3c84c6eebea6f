"""Canaries: deliberately mislabelled training samples that show memorization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED, check_labels, require_labels
from gapscope.labels.monitored import MonitoredLabels
from gapscope.labels.noise_rate import margins_of, noise_rate_bound
from gapscope.training.alarms.base import PeakAlarm, outputs_of, register_alarm

# the standard error of a fraction of 24 canaries is about .1; the part of the labels is by judgment
MIN_CANARIES, MIN_FRACTION = 24, 0.005
# a quantile of the canaries' margins needs two
MIN_NUMBER = 2


class Canaries:
    r"""Training samples with a label sampled at random from the other classes.

    By default max(24, 0.005 n) of n samples. Train on `labels`, or on a Dataset that reads them, and monitor with a
    `CanaryAlarm`, which calls `restore()` when it is raised. This changes `labels` in place. `gapscope.train` with the
    monitor as `on_epoch` then continues with the original labels, whatever the form of its data. Another loop does if
    it reads `labels` itself, and no copy of them (persistent workers of a loader hold one).

    Args:
        labels: Class labels [n], which may have errors; left unchanged.
        n_classes: Number of classes; None for the largest label plus one.
        number: Number of canaries; None for the default.
        seed: Seed of the choice of samples and of their labels.

    Attributes:
        labels: Labels to train on [n].
        given: Original labels [n].
        positions: Sorted indices of the canaries [m].
        n_classes: Number of classes.

    >>> canaries = Canaries(torch.zeros(100, dtype=torch.int64), n_classes=2)
    >>> int(canaries.labels.sum())
    24
    >>> canaries.restore()
    >>> int(canaries.labels.sum())
    0
    """

    @check_arguments
    def __init__(
        self,
        labels: Int[Tensor, " n"],
        *,
        n_classes: int | None = None,
        number: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(labels, Tensor):
            raise InvalidInput(
                f"labels must be a tensor; got {type(labels).__name__}. Use torch.as_tensor(labels)."
            )
        require_labels(labels, "Canaries")
        n = len(labels)
        if n < 2 * MIN_NUMBER:
            raise InvalidInput(
                f"Got {n} labels; canaries need at least {2 * MIN_NUMBER}. Pass more samples."
            )
        if int(labels.min()) < 0:
            raise InvalidInput(
                f"Got the label {int(labels.min())}; canaries need classes 0, 1, 2, ... Number the classes, and drop "
                f"samples without a label ({IGNORED}): x[y >= 0], y[y >= 0]."
            )
        classes = int(labels.max()) + 1 if n_classes is None else n_classes
        if number is None:
            number = max(MIN_CANARIES, math.ceil(MIN_FRACTION * n))
        if classes < 2:
            raise InvalidInput(f"Got {classes} class; canaries need two or more. Pass n_classes.")
        if not MIN_NUMBER <= number <= n // 2:
            raise InvalidInput(
                f"Got number={number}; needed are two or more canaries, at most half of the {n} samples. Pass another "
                "number."
            )
        check_labels(labels, classes)
        generator = torch.Generator().manual_seed(derive_seed(seed, "canaries"))
        self.positions = torch.randperm(n, generator=generator)[:number].sort().values
        self.n_classes = classes
        self.given = labels.clone()
        self.labels = labels.clone()
        shift = torch.randint(1, classes, (number,), generator=generator).to(labels)
        self.labels[self.positions] = (labels[self.positions] + shift) % classes
        self._false = self.labels.clone()

    def __repr__(self) -> str:
        k = len(self.positions)
        n = len(self.labels)
        if self.is_restored:
            state = "were replaced and are restored"
        else:
            state = "are replaced"
        return (
            f"Canaries({k} of {n} labels ({100 * k / n:.1f} %) of {self.n_classes} classes {state})"
        )

    def restore(self) -> None:
        """Restore every original label, in place."""
        self.labels.copy_(self.given)

    @property
    def is_restored(self) -> bool:
        """True if all samples have their original labels."""
        return torch.equal(self.labels, self.given)


@register_alarm("canaries")
class CanaryAlarm(PeakAlarm):
    r"""Alarm on label errors that are learned faster than all other labels.

    It tracks the mean probability of the labels of ordinary samples minus that of the canaries' false labels. This
    difference rises while the network learns what samples have in common. It is raised only if at least a fraction
    `smallest_noise` of the labels may be errors, because memorization of few errors hardly lowers the accuracy. This
    fraction is the `noise_rate_bound` of the margins averaged over the observations,
    $AUM_i = \operatorname{mean}_t (z_{y_i} - \max_{c \ne y_i} z_c)$ (Pleiss et al. 2020, arXiv:2001.10528, eq. 1, there
    over the whole training). The rule is our own.

    The canaries must be among the monitored samples; a `Monitor` adds them. `observe` costs one forward pass. Margins
    are averaged until the canaries' labels are restored.

    If all samples are monitored (`Monitor(..., n_samples=n)`), `gs.estimate_label_noise` and `gs.find_label_issues`
    accept the monitor.

    Args:
        canaries: Canaries of the training data.
        window: Number of observations of which the mean is followed.
        fall: Tolerated fall, a probability.
        patience: Number of consecutive observations below the tolerated fall that raise the alarm.
        smallest_noise: Smallest bound of the noise rate, a fraction.
        restore: Whether to restore the canaries' labels when the alarm is raised.
    """

    description: ClassVar[str] = "label errors are learned faster than all other labels"
    state_fields: ClassVar[tuple[str, ...]] = (
        *PeakAlarm.state_fields,
        "_sums",
        "_looks",
        "_is_canary",
        "_rivals",
        "_leads",
    )

    @check_arguments
    def __init__(
        self,
        canaries: Canaries,
        *,
        window: int = 3,
        fall: float = 0.02,
        patience: int = 2,
        smallest_noise: float = 0.1,
        restore: bool = True,
    ) -> None:
        check_range("smallest_noise", smallest_noise, 0, 1)
        self.canaries = canaries
        self.smallest_noise = smallest_noise
        self.restore = restore
        self._is_canary: Tensor | None = None
        self._indices: Tensor | None = None
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run, keeping the monitored samples."""
        super().reset()
        self._sums: Tensor | None = None
        self._rivals: Tensor | None = None
        self._leads: Tensor | None = None
        self._looks = 0

    @property
    def required_indices(self) -> Tensor:
        """Indices of the canaries in the training data."""
        return self.canaries.positions

    def set_indices(self, indices: Tensor) -> None:
        """Mark the canaries among the monitored samples.

        Args:
            indices: Indices [n] of the monitored samples in the training data.
        """
        self._indices = indices
        self._is_canary = torch.isin(indices, self.canaries.positions)

    def check_targets(self, indices: Tensor, targets: Tensor | None) -> None:
        """Check that these are the labels of the canaries (see `Alarm.check_targets`).

        Args:
            indices: Row numbers in the training data, [n].
            targets: Targets of these samples, as passed.

        Raises:
            InvalidInput: They are other labels, or of another number of samples.
        """
        canaries = self.canaries
        labels = require_labels(targets, type(self).__name__).cpu()
        n = len(canaries.given)
        n_other = len(labels)
        has_all = bool(torch.isin(canaries.positions, indices).all())
        if has_all and len(labels) == len(indices) and int(indices.max()) < n:
            expected = [canaries._false[indices].cpu()]
            if canaries.is_restored:
                expected.append(canaries.given[indices].cpu())
            n_other = min(int((labels != each).sum()) for each in expected)
        if n_other:
            raise InvalidInput(
                f"Got labels that are not canaries.labels at {n_other} of {len(labels)} samples (canaries: {n} "
                "samples). Pass the samples with canaries.labels, in this order, to the monitor and to the training."
            )

    def training_samples(self, samples: Samples, *, at_start: bool = False) -> Samples:
        """Return the training samples with the canaries' false labels, or the original ones after `restore`.

        Args:
            samples: All training samples, as checked by `check_training`; they may hold copies of the labels.
            at_start: Whether to return them with the false labels in any case.
        """
        canaries = self.canaries
        restored = canaries.is_restored and not at_start
        labels = canaries.given if restored else canaries._false
        rows = samples.original(torch.arange(len(samples)))
        return replace(samples, targets=labels[rows.to(labels.device)].to(samples.y))

    @property
    def margins(self) -> Tensor:
        """Mean margin per monitored sample, empty before the first observation."""
        if self._sums is None:
            return torch.empty(0)
        return self._sums / self._looks

    @property
    def noise_rate(self) -> float:
        """Upper bound of the label noise rate, NaN before the first observation."""
        if self._sums is None or self._is_canary is None:
            return math.nan
        return noise_rate_bound(self.margins[~self._is_canary], self.margins[self._is_canary])

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Record margins and probabilities of the monitored samples (see `Alarm.observe`).

        Args:
            network: The network in training.
            samples: The monitored samples, canaries with their false labels.
            epoch: Number of epochs trained.

        Raises:
            InvalidInput: A part of the training samples is monitored, and `set_indices` was not called.
        """
        labels = self._labels(samples)
        if self._is_canary is None:
            if len(samples) != len(self.canaries.labels):
                raise InvalidInput(
                    f"Got {len(samples)} of {len(self.canaries.labels)} samples without their indices. Use a Monitor, "
                    "or call set_indices first."
                )
            self.set_indices(torch.arange(len(samples)))
            self.check_targets(torch.arange(len(samples)), labels)
        assert self._is_canary is not None
        return self.update(outputs_of(network, samples), labels, self._is_canary, epoch)

    def update(
        self,
        outputs: Float[Tensor, "n k"],
        labels: Int[Tensor, " n"],
        is_canary: Bool[Tensor, " n"],
        epoch: int,
    ) -> dict[str, float]:
        """Update with the logits of the monitored samples, and return the numbers by name.

        `labels` are those that are trained on, the canaries' false ones included.

        Args:
            outputs: Logits [n, k] of the monitored samples.
            labels: Labels [n] that are trained on, the canaries' false ones included.
            is_canary: Whether each sample is a canary, [n].
            epoch: Number of epochs trained.
        """
        self._is_canary = is_canary
        if not self.canaries.is_restored:
            self._add_margins(outputs, labels)
        probabilities = outputs.softmax(1).gather(1, labels[:, None]).squeeze(1)
        ordinary = float(probabilities[~is_canary].mean())
        canaries = float(probabilities[is_canary].mean())
        was_raised = self.raised
        self.follow(ordinary - canaries, epoch, allowed=self.noise_rate >= self.smallest_noise)
        if self.restore and self.raised and not was_raised:
            self.canaries.restore()
        return {
            "alarm.ordinary": ordinary,
            "alarm.canaries": canaries,
            "alarm.noise_rate": self.noise_rate,
            "alarm.raised": float(self.raised),
        }

    def _add_margins(self, outputs: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> None:
        """Add margins, and update the runner-up class of each sample by Boyer-Moore majority vote."""
        margins = margins_of(outputs, labels)
        runner_ups = outputs.scatter(1, labels[:, None], -torch.inf).argmax(1)
        self._looks += 1
        if self._sums is None or self._rivals is None or self._leads is None:
            self._sums = margins
            self._rivals = runner_ups
            self._leads = torch.ones_like(runner_ups)
            return
        self._sums = self._sums + margins
        # a candidate whose lead is used up is replaced; then equal classes add to the lead, and others reduce it
        self._rivals = torch.where(self._leads == 0, runner_ups, self._rivals)
        self._leads = self._leads + torch.where(self._rivals == runner_ups, 1, -1)

    def monitored_labels(self) -> MonitoredLabels:
        """Return labels, margins and runner-up classes of the monitored samples."""
        if self._rivals is None or self._indices is None or self._is_canary is None:
            raise InvalidInput(
                "Got a CanaryAlarm without observations; label errors are estimated after a monitored training run. "
                "Train first, with the monitor as on_epoch or in a callback."
            )
        original = self.canaries.given[self._indices].cpu()
        return MonitoredLabels(
            self._indices,
            original,
            self._rivals,
            self.margins,
            self._is_canary,
            self.canaries.n_classes,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state, and restore the canaries' labels if it was saved after the alarm.

        Args:
            state: What `state_dict` returned.
        """
        super().load_state_dict(state)
        if self.restore and self.raised:
            self.canaries.restore()
