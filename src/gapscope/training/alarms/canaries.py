"""Canaries: deliberately mislabelled training samples that show memorization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.data import Dataset

from gapscope.base.containers import LABEL_NAMES
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.labels.monitored import MonitoredLabels
from gapscope.labels.noise_rate import margins_of, noise_rate_bound
from gapscope.training.alarms.base import PeakAlarm, labels_of, outputs_of
from gapscope.training.alarms.registry import register_alarm

SMALLEST_NUMBER, SMALLEST_SHARE = 24, 0.005


class _Relabelled(Dataset):
    """A data set whose samples have the labels that the canaries give them at the moment."""

    def __init__(self, dataset: Any, labels: Tensor) -> None:
        self.dataset, self.labels = dataset, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        sample, label = self.dataset[index], self.labels[index]
        if isinstance(sample, Mapping):
            name = next(name for name in LABEL_NAMES if name in sample)
            return {**sample, name: label}
        return (*sample[:-1], label)


class Canaries:
    r"""Training samples with a label drawn at random from the other classes.

    By default max(24, .005 n) of n samples. Train on `labels` (or on `dataset(...)`), watch with a `CanaryAlarm`, and
    call `restore()` when it is raised, or let it do so: `labels` is changed in place, so that whatever reads it, trains
    on the labels as they were given from then on. (Workers of a loader that live longer than an epoch keep their copy.)

    Args:
        labels: Class labels as given [n], wrong ones among them; left as they are.
        n_classes: Number of classes; None for the largest label and one.
        number: How many; None as above.

    Attributes:
        labels: The labels to train on [n].
        given: The labels as they were given [n].
        positions: Which samples are canaries, in order [m].
        n_classes: Number of classes.

    Raises:
        InvalidInput: There are no class labels, fewer than two classes, or too few samples.

    >>> canaries = Canaries(torch.zeros(100, dtype=torch.int64), n_classes=2)
    >>> int(canaries.labels.sum())
    24
    >>> canaries.restore()
    >>> int(canaries.labels.sum())
    0
    """

    def __init__(
        self, labels: Int[Tensor, " n"], *, n_classes: int | None = None, number: int | None = None, seed: int = 0
    ) -> None:
        if not isinstance(labels, Tensor):
            raise InvalidInput(f"labels must be a tensor; got {type(labels).__name__}. Use torch.as_tensor(labels).")
        if labels.is_floating_point() or labels.ndim != 1:
            raise InvalidInput(
                f"Canaries must be given class labels, int64 [n]; got {labels.dtype} {list(labels.shape)}. A "
                "regression target has no class that could be wrong."
            )
        n, classes = len(labels), int(labels.max()) + 1 if n_classes is None else n_classes
        number = max(SMALLEST_NUMBER, math.ceil(SMALLEST_SHARE * n)) if number is None else number
        if classes < 2:
            raise InvalidInput(f"Canaries need two classes or more; got {classes}. Pass n_classes.")
        if not 2 <= number <= n // 2:
            raise InvalidInput(
                f"Canaries must be two or more, and at most half of the samples, here {n}; got {number}. Pass another "
                "number."
            )
        generator = torch.Generator().manual_seed(derive_seed(seed, "canaries"))
        self.positions = torch.randperm(n, generator=generator)[:number].sort().values
        self.n_classes = classes
        self.given, self.labels = labels.clone(), labels.clone()
        shift = torch.randint(1, classes, (number,), generator=generator).to(labels)
        self.labels[self.positions] = (labels[self.positions] + shift) % classes

    def restore(self) -> None:
        """Give every sample its label back, in place."""
        self.labels.copy_(self.given)

    @property
    def is_restored(self) -> bool:
        """True if all samples have their original labels."""
        return torch.equal(self.labels, self.given)

    def dataset(self, dataset: Any) -> Dataset:
        """The samples of a data set with the labels of this moment.

        Args:
            dataset: Of tuples that end with the label, or of mappings with `labels` or `label`.

        Raises:
            InvalidInput: It has another length than the labels.
        """
        if len(dataset) != len(self.labels):
            raise InvalidInput(
                f"The data set must hold as many samples as there are labels, {len(self.labels)}; got {len(dataset)}. "
                "Pass the data that the labels are of."
            )
        return _Relabelled(dataset, self.labels)


@register_alarm("canaries")
class CanaryAlarm(PeakAlarm):
    r"""Raised when label errors are learned faster than all others.

    Follows the mean probability of the training labels of ordinary samples less that of the canaries' false labels,
    which rises as long as what is learned holds for more than individual samples. It is raised only while
    `noise_rate_bound` of the mean margins along training, $AUM_i = \operatorname{mean}_t (z_{y_i} - \max_{c \ne y_i}
    z_c)$ (Pleiss et al. 2020, arXiv:2001.10528, eq. 1, there over the whole training), is at least `smallest_noise`:
    with few label errors there is little that memorizing could spoil. Our own rule from their parts.

    The canaries must be among the monitored samples; a `Monitor` sees to that. `observe` costs one forward pass, and
    the canaries' own price is theirs: a false label each until they are restored. From then on margins stay as they
    are.

    Where all samples are monitored (`Monitor(..., n_samples=n)`), `gs.estimate_label_noise` and `gs.find_label_issues`
    take the monitor and say how many labels are wrong, and which.

    Args:
        canaries: The canaries that are trained on.
        fall: A probability.
        smallest_noise: See above, a fraction.
        restore: Whether to restore the canaries' labels when the alarm is raised.
    """

    says: ClassVar[str] = "wrong labels are learned faster than all others"
    kept: ClassVar[tuple[str, ...]] = (*PeakAlarm.kept, "_sums", "_looks", "_is_canary", "_rivals", "_leads")

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
        self.canaries, self.smallest_noise, self.restore = canaries, smallest_noise, restore
        self._is_canary: Tensor | None = None
        self._positions: Tensor | None = None
        super().__init__(window=window, fall=fall, patience=patience)

    def reset(self) -> None:
        """Reset for another training run, keeping the monitored samples."""
        super().reset()
        self._sums: Tensor | None = None
        self._rivals: Tensor | None = None
        self._leads: Tensor | None = None
        self._looks = 0

    @property
    def wanted(self) -> Tensor:
        """Positions of the canaries in the training data."""
        return self.canaries.positions

    def watching(self, positions: Tensor) -> None:
        """Learn which of the monitored samples are canaries."""
        self._positions = positions
        self._is_canary = torch.isin(positions, self.canaries.positions)

    @property
    def margins(self) -> Tensor:
        """Mean margin per monitored sample so far, empty before the first observation."""
        return torch.empty(0) if self._sums is None else self._sums / self._looks

    @property
    def noise_rate(self) -> float:
        """Upper bound of the label noise rate, NaN before the first observation."""
        if self._sums is None or self._is_canary is None:
            return math.nan
        return noise_rate_bound(self.margins[~self._is_canary], self.margins[self._is_canary])

    @property
    def open(self) -> bool:
        """True if labels are noisy enough for an alarm (see `GatedAlarm`)."""
        return self.noise_rate >= self.smallest_noise

    def observe(self, network: nn.Module, samples: Samples, epoch: int) -> dict[str, float]:
        """Record margins and probabilities of the monitored samples (see `Alarm.observe`)."""
        labels = labels_of(samples, "canaries")
        if self._is_canary is None:
            if len(samples) != len(self.canaries.labels):
                raise InvalidInput(
                    f"A CanaryAlarm must know which samples are watched; got {len(samples)} of "
                    f"{len(self.canaries.labels)}. Use a Monitor, or call watching(positions) first."
                )
            self.watching(torch.arange(len(samples)))
        assert self._is_canary is not None
        return self.update(outputs_of(network, samples), labels, self._is_canary, epoch)

    def update(
        self, outputs: Float[Tensor, "n k"], labels: Int[Tensor, " n"], is_canary: Bool[Tensor, " n"], epoch: int
    ) -> dict[str, float]:
        """Take the logits of the same samples, in the same order, once an epoch.

        Args:
            labels: Labels that are trained on, false ones of the canaries among them.
            is_canary: Which are canaries.

        Returns:
            Probability of the training label at ordinary samples and at canaries, bound of the noise rate, and whether
            the alarm has been raised.
        """
        self._is_canary = is_canary
        if not self.canaries.is_restored:
            self._learn(outputs, labels)
        probabilities = outputs.softmax(1).gather(1, labels[:, None]).squeeze(1)
        ordinary, false = float(probabilities[~is_canary].mean()), float(probabilities[is_canary].mean())
        before = self.raised
        self.follow(ordinary - false, epoch, allowed=self.open)
        if self.restore and self.raised and not before:
            self.canaries.restore()
        return {
            "alarm.ordinary": ordinary,
            "alarm.canaries": false,
            "alarm.noise_rate": self.noise_rate,
            "alarm.raised": float(self.raised),
        }

    def _learn(self, outputs: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> None:
        """Add margins, and count the leading other class by majority vote in one pass."""
        margins, rivals = margins_of(outputs, labels), outputs.scatter(1, labels[:, None], -torch.inf).argmax(1)
        self._looks += 1
        if self._sums is None or self._rivals is None or self._leads is None:
            self._sums, self._rivals, self._leads = margins, rivals, torch.ones_like(rivals)
            return
        self._sums = self._sums + margins
        overtaken = self._leads == 0
        self._rivals = torch.where(overtaken, rivals, self._rivals)
        self._leads = self._leads + torch.where(self._rivals == rivals, 1, -1)

    def watched_labels(self) -> MonitoredLabels:
        """Return the learning history of the monitored labels (see `gapscope.labels.monitored`).

        Raises:
            InvalidInput: Nothing was seen yet, or it is not known which samples were.
        """
        if self._rivals is None or self._positions is None or self._is_canary is None:
            raise InvalidInput(
                "Wrong labels are told after a training that a Monitor watched; this CanaryAlarm has seen nothing yet. "
                "Train first, with the monitor as on_epoch or in a callback."
            )
        return MonitoredLabels(
            self._positions,
            self.canaries.given[self._positions].cpu(),
            self._rivals,
            self.margins,
            self._is_canary,
            self.canaries.n_classes,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state; if it was saved after the alarm, restore the canaries' labels as of then."""
        super().load_state_dict(state)
        if self.restore and self.raised:
            self.canaries.restore()
