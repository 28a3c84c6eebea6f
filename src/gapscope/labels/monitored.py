"""Label noise from a monitored training with canaries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.containers import LABEL_NAMES
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import make_generator
from gapscope.labels.noise_rate import CanaryMargins, clean_accuracy, noise_rate_interval
from gapscope.labels.results import RECALL, LabelIssues, LabelNoiseEstimate, rank_label_issues

# The rate is the smallest ratio over the upper part of the canaries: the minimum over few canaries is biased downwards.
QUANTILE = 0.7
# Below this accuracy, many label errors look the same as a network that has learned little.
MIN_ACCURACY = 0.45


@dataclass(frozen=True)
class MonitoredLabels:
    """Labels and margins of the monitored samples of one training run."""

    # indices in the training data
    positions: Int[Tensor, " n"]
    # labels as given, also of the canaries
    given: Int[Tensor, " n"]
    # the class, other than the trained label, most often with the largest logit
    runner_up: Int[Tensor, " n"]
    # mean margin of the trained label
    margins: Float[Tensor, " n"]
    # samples that were trained on with a corrupted label
    is_canary: Bool[Tensor, " n"]
    n_classes: int

    def noise(self, generator: torch.Generator) -> LabelNoiseEstimate:
        """Return the estimated label noise of the samples that are not canaries.

        The accuracy on clean labels is not corrected for noise where fewer than 45 % of the canaries' original labels
        are predicted.
        """
        canaries, n_classes = self.is_canary, self.n_classes
        accuracy = float((self.runner_up == self.given)[canaries].double().mean())
        margins = CanaryMargins(self.margins[~canaries][None], self.margins[canaries][None])
        rate, low, high = noise_rate_interval(margins, n_classes, quantile=QUANTILE, generator=generator)
        # a rate that is far too high would make the accuracy on clean labels look high too
        clean = accuracy if accuracy < MIN_ACCURACY else min(clean_accuracy(accuracy, rate, n_classes), 1.0)
        samples = int((~canaries).sum())
        return LabelNoiseEstimate(rate, low, high, clean, samples, accuracy=accuracy).bounded_if_hard()

    def ranked(self, noise: LabelNoiseEstimate, kernel: Float[Tensor, " n"] | None = None) -> LabelIssues:
        """Rank the samples that are not canaries by margin.

        With `kernel`, the leave-one-out margins of the trained labels by a kernel of the inputs, samples are ranked by
        the mean of both ranks (less 0.5).
        """
        ordinary = ~self.is_canary
        cut = float(self.margins[self.is_canary].quantile(RECALL))
        agreed = (self.margins > 0) & (self.margins > cut)
        suggested = torch.where(agreed, self.given, self.runner_up)
        margins = self.margins
        if kernel is not None:
            margins = (_ranks(self.margins) + _ranks(kernel)) / 2 - 0.5
        return rank_label_issues(
            self.positions[ordinary], self.given[ordinary], suggested[ordinary], margins[ordinary],
            margins[self.is_canary], noise,
        )  # fmt: skip


def _ranks(values: Tensor) -> Tensor:
    """Return ranks in [0, 1), smallest first, ties in the order of the samples."""
    return values.argsort(stable=True).argsort().double() / len(values)


def get_monitored_labels(source: Any) -> MonitoredLabels:
    """Return the labels of a monitor, its callback or its alarm, or raise InvalidInput."""
    monitor = getattr(source, "monitor", source)
    alarm = getattr(monitor, "alarm", None)
    for candidate in (monitor, alarm):
        if (monitored := getattr(candidate, "monitored_labels", None)) is not None:
            return monitored()
    what = type(monitor).__name__ + ("" if alarm is None else f" with the alarm {type(alarm).__name__}")
    raise InvalidInput(
        "Label issues need an untrained network (or None) with its data, or a Monitor whose alarm is a CanaryAlarm; "
        f"got {what}. Train on canaries.labels of canaries = Canaries(y), with "
        "on_epoch=Monitor((x, canaries.labels), [], n_samples=len(x), alarm=CanaryAlarm(canaries))."
    )


# Number of pairs up to which all patterns of signs are counted: two halves of 2^16 sums.
MAX_COUNTED = 32


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """Return all 2^m sums of the values with signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def paired_p_value(differences: Sequence[float]) -> float:
    r"""Return the exact p-value of the sum of differences against random signs (one-sided).

    Exact for up to 32 pairs (all $2^m$ patterns are counted). Beyond, the bound $e^{-T^2/2}$ for T > 0, else 1.

    Differences are positive where the trained sample of a pair has the smaller loss.

    Raises:
        InvalidInput: There is no difference, or one is not finite.

    >>> paired_p_value([1.0, 2.0, 3.0])  # one of eight patterns
    0.125
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"Differences must be finite, one or more; got {list(differences)[:5]}.")
    total = values.sum()
    if len(values) > MAX_COUNTED:
        statistic = total / math.sqrt(float((values**2).sum()) or 1.0)
        return math.exp(-(statistic**2) / 2) if statistic > 0 else 1.0
    half = len(values) // 2
    first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    rounding = 1e-12 * np.abs(values).sum()
    as_large = len(second) - np.searchsorted(second, total - rounding - first)
    return float(as_large.sum()) / 2.0 ** len(values)


class _WithCanaries(Dataset):
    """Data set with some samples replaced and others appended."""

    def __init__(self, dataset: Any, replaced: Mapping[int, Any], added: Sequence[Any]) -> None:
        self.dataset, self.replaced, self.added = dataset, replaced, added

    def __len__(self) -> int:
        return len(self.dataset) + len(self.added)

    def __getitem__(self, index: int) -> Any:
        index = int(index)
        if index >= len(self.dataset):
            return self.added[index - len(self.dataset)]
        return self.replaced.get(index, self.dataset[index])


def _label_name(sample: Mapping[str, Any]) -> str:
    name = next((name for name in LABEL_NAMES if name in sample), None)
    if name is None:
        raise InvalidInput(f"Samples must be mappings with labels; got the names {', '.join(sample)}. Add 'labels'.")
    return name


class PairedCanaries:
    """Pairs of canaries of which one, `trained`, is in the training data."""

    def __init__(self, dataset: Dataset, trained: Sequence[Mapping[str, Any]], others: Sequence[Any]) -> None:
        self.dataset, self.trained, self.others = dataset, list(trained), list(others)

    def __len__(self) -> int:
        return len(self.trained)

    @classmethod
    def of_labels(cls, dataset: Any, *, n_classes: int, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Return canaries that are samples with one of two random classes as label.

        With three classes or more both labels are errors; with two, about half of the canaries keep their label.

        Args:
            dataset: Mappings with a class label (`labels` or `label`).
            n_classes: Number of classes.
            number: Number of canaries; their own labels are not trained on.
            seed: Seed of the samples and classes.
        """
        check_range("number", number, 2, len(dataset) // 2)
        check_range("n_classes", n_classes, 2)
        random = make_generator(seed, "paired canaries")
        replaced, others = {}, []
        for position in torch.randperm(len(dataset), generator=random)[:number].tolist():
            sample = dataset[position]
            name = _label_name(sample)
            given = int(sample[name])
            classes = [item for item in range(n_classes) if item != given or n_classes == 2]
            pair = [classes[item] for item in torch.randperm(len(classes), generator=random)[:2].tolist()]
            kind = torch.as_tensor(sample[name])
            replaced[position] = {**sample, name: torch.full_like(kind, pair[0])}
            others.append({**sample, name: torch.full_like(kind, pair[1])})
        return cls(_WithCanaries(dataset, replaced, []), list(replaced.values()), others)

    @classmethod
    def of_tokens(cls, dataset: Any, *, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Return canaries that are random token sequences, appended to a language model's data.

        They are as long as the first sample, and their tokens occur in the data.

        Args:
            dataset: Mappings with `input_ids` and `labels` of the same shape.
            number: Number of pairs.

        Raises:
            InvalidInput: The samples are not token sequences with labels.
        """
        check_range("number", number, 2)
        sample = dataset[0]
        name, ids = _label_name(sample), torch.as_tensor(sample.get("input_ids", ()))
        if ids.ndim != 1 or torch.as_tensor(sample[name]).shape != ids.shape:
            raise InvalidInput("of_tokens needs samples with input_ids and labels of one shape [length]; got others.")
        seen = [torch.as_tensor(dataset[i]["input_ids"])[torch.as_tensor(dataset[i][name]) >= 0]
                for i in range(min(len(dataset), 256))]  # fmt: skip
        tokens, random = torch.cat(seen).unique(), make_generator(seed, "paired canaries")

        def random_sequence() -> dict[str, Any]:
            row = tokens[torch.randint(len(tokens), ids.shape, generator=random)]
            extra = {"attention_mask": torch.ones_like(row)} if "attention_mask" in sample else {}
            return {**extra, "input_ids": row, name: row.clone()}

        pairs = [(random_sequence(), random_sequence()) for _ in range(number)]
        trained = [pair[0] for pair in pairs]
        return cls(_WithCanaries(dataset, {}, trained), trained, [pair[1] for pair in pairs])
