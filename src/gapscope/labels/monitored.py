"""Label noise from a monitored run with canaries, and tests with pairs of canaries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import Dataset

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.user_data import read_sample
from gapscope.labels.canary_data import (
    DataWithCanaries,
    check_data,
    class_of,
    label_key,
    with_values,
)
from gapscope.labels.canary_ranking import rank_label_issues
from gapscope.labels.canary_sequences import RandomSequences
from gapscope.labels.error_model import wilson_high
from gapscope.labels.noise_rate import CanaryMargins, clean_accuracy, noise_rate_interval
from gapscope.labels.results import RECALL, LabelIssues, LabelNoiseEstimate
from gapscope.results.formatting import pluralize
from gapscope.statistics.baselines import sample_features
from gapscope.statistics.canonical_order import mean_over_ties


@dataclass(frozen=True)
class MonitoredLabels:
    """Labels and margins of the monitored samples of one training run.

    Attributes:
        indices: Row numbers in the training data.
        given_labels: Original labels, also of the canaries.
        runner_up: Class, other than the label trained on, that most often has the largest logit.
        margins: Mean margin of the label trained on, in units of the logits.
        is_canary: Whether the sample is a canary.
        n_classes: Number of classes C.
    """

    indices: Int[Tensor, " n"]
    given_labels: Int[Tensor, " n"]
    runner_up: Int[Tensor, " n"]
    margins: Float[Tensor, " n"]
    is_canary: Bool[Tensor, " n"]
    n_classes: int

    def noise(self, generator: torch.Generator) -> LabelNoiseEstimate:
        """Estimate the label noise of the samples that are not canaries.

        Args:
            generator: Source of the resamples of the interval.
        """
        canaries = self.is_canary
        n_classes = self.n_classes
        # canaries show how often the network predicts a label that it does not train on
        accuracy = float((self.runner_up == self.given_labels)[canaries].double().mean())
        margins = CanaryMargins(self.margins[~canaries][None], self.margins[canaries][None])
        # the rate is the smallest ratio over the upper part of the canaries: the minimum over few canaries is
        # biased downwards.
        rate, low, high = noise_rate_interval(margins, n_classes, quantile=0.7, generator=generator)
        # below, label noise cannot be distinguished from a network that has learned little: if the rate is far too
        # high, the corrected accuracy would be as well
        if accuracy < 0.45:
            clean = accuracy
        else:
            clean = min(clean_accuracy(accuracy, rate, n_classes), 1.0)
        samples = int((~canaries).sum())
        # errors that crowd in few classes have larger margins than canaries: all labels that the run contradicts may
        # be wrong
        contradicted = float((self.margins[~canaries] < 0).double().mean())
        high = max(high, wilson_high(contradicted, samples))
        return LabelNoiseEstimate(
            rate, low, high, clean, samples, accuracy=accuracy, has_canaries=True
        ).bounded_if_hard()

    def rank(
        self, noise: LabelNoiseEstimate, kernel_margins: Float[Tensor, " n"] | None = None
    ) -> LabelIssues:
        """Rank samples other than canaries by margin, or by the mean rank of both margins.

        Args:
            noise: Result of `noise`.
            kernel_margins: Leave-one-out margins of a kernel before training; None to rank by the run alone.
        """
        ordinary = ~self.is_canary
        # labels are suggested as they are above nearly all canaries
        threshold = max(0.0, float(self.margins[self.is_canary].quantile(RECALL)))
        suggested = torch.where(self.margins > threshold, self.given_labels, self.runner_up)
        margins = self.margins
        if kernel_margins is not None:
            margins = (_ranks(self.margins) + _ranks(kernel_margins)) / 2 - 0.5
        return rank_label_issues(
            self.indices[ordinary], self.given_labels[ordinary], suggested[ordinary], margins[ordinary],
            margins[self.is_canary], noise,
        )  # fmt: skip


def _ranks(values: Tensor) -> Tensor:
    """Return ranks in [0, 1), smallest first; equal values share their mean rank."""
    return mean_over_ties(values.argsort().argsort(), values) / len(values)


def get_monitored_labels(source: Any) -> MonitoredLabels:
    """Return the labels of a monitor, its callback or its alarm, or raise InvalidInput."""
    monitor = getattr(source, "monitor", source)
    alarm = getattr(monitor, "alarm", None)
    for candidate in (monitor, alarm):
        if (monitored := getattr(candidate, "monitored_labels", None)) is not None:
            return monitored()
    got = type(monitor).__name__ + (
        "" if alarm is None else f" with the alarm {type(alarm).__name__}"
    )
    raise InvalidInput(
        "Label issues need an untrained network (or None) with data, or a Monitor whose alarm is a CanaryAlarm; "
        f"got {got}. Train with on_epoch=Monitor(..., alarm=CanaryAlarm(canaries))."
    )


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """Return the 2^m sums of the values with all patterns of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def paired_p_value(differences: Sequence[float]) -> float:
    r"""Return the one-sided p-value of the sum of differences against random signs.

    Exact for up to 32 pairs; beyond, Hoeffding's bound $e^{-T^2/2}$ with $T = \sum_i d_i / \sqrt{\sum_i d_i^2}$ (1 if T
    is not positive). A difference is positive if the trained sample of a pair has the smaller loss.

    Raises:
        InvalidInput: There is no difference, or one is not finite.

    >>> paired_p_value([1.0, 2.0, 3.0])  # one of eight patterns
    0.125
    """
    values = np.asarray(differences, dtype=np.float64)
    if not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"Differences must be finite, one or more; got {list(differences)[:5]}.")
    total = values.sum()
    # up to 32 pairs p-values are exact: the 2^32 sums are those of two halves with 2^16 each
    if len(values) > 32:
        statistic = total / math.sqrt(float((values**2).sum()) or 1.0)
        if statistic > 0:
            return math.exp(-(statistic**2) / 2)
        return 1.0
    half = len(values) // 2
    first = _signed_sums(values[:half])
    second = np.sort(_signed_sums(values[half:]))
    rounding = 1e-12 * np.abs(values).sum()
    # for each sum a of the first half, the number of sums b of the second with a + b >= total
    n_as_large = len(second) - np.searchsorted(second, total - rounding - first)
    return float(n_as_large.sum()) / 2.0 ** len(values)


# Canaries replace at most this fraction of the labels by default: 6 % cost a fine-tuned sentence encoder 3 to 4 points.
MAX_REPLACED, MAX_PAIRS = 0.02, 24
# one pair alone has no p-value below 0.5
MIN_PAIRS = 2


class PairedCanaries:
    """Pairs of exchangeable canaries: `trained` are in the data `dataset`, `others` are not.

    Args:
        dataset: Data with the canaries that are trained on.
        trained: These canaries.
        others: The other one of each pair.
        replaced: Number of samples whose label was replaced.
    """

    def __init__(
        self,
        dataset: Dataset,
        trained: Sequence[Any],
        others: Sequence[Any],
        replaced: int = 0,
    ) -> None:
        self.dataset = dataset
        self.trained = list(trained)
        self.others = list(others)
        self.replaced = replaced

    def __len__(self) -> int:
        return len(self.trained)

    def __repr__(self) -> str:
        n = len(self.dataset)  # type: ignore[arg-type]
        price = f"{len(self)} of {n} samples are random additions"
        if self.replaced:
            price = f"the labels of {self.replaced} of {n} samples ({100 * self.replaced / n:.1f} %) are replaced"
        return f"PairedCanaries({pluralize(len(self), 'pair')}; {price})"

    @property
    def smallest_p_value(self) -> float:
        """Smallest p-value that these pairs can give."""
        return 2.0 ** -len(self)

    @classmethod
    @check_arguments
    def of_labels(
        cls, dataset: Any, *, n_classes: int, number: int | None = None, seed: int = 0
    ) -> PairedCanaries:
        """Return pairs of a sample with two random labels, one of which is trained on.

        With three classes or more both labels are errors; with two, about half of the samples keep their label. Each
        replaced label is a label error to the network: keep them few. A flag at the level 0.01 in ten epochs needs ten
        pairs or more. Samples with the label -100 do not count and are not drawn.

        Args:
            dataset: Mappings with a class label (`labels` or `label`), or pairs (x, y); with a length.
            n_classes: Number of classes; labels lie in [0, n_classes).
            number: Number of pairs; the original labels of these samples are not trained on. None for 2 % of the
                samples, at least 2 and at most 24.
            seed: Seed of the samples and classes.

        Raises:
            InvalidInput: A sample has no class in [0, n_classes), or there are too few samples.
        """
        check_data(dataset, 2 * MIN_PAIRS)
        if number is None:
            number = min(MAX_PAIRS, max(MIN_PAIRS, int(MAX_REPLACED * len(dataset))))
        check_range("number", number, MIN_PAIRS, len(dataset) // 2)
        check_range("n_classes", n_classes, 2)
        generator = make_generator(seed, "paired canaries")
        trained = {}
        others = []
        for index in torch.randperm(len(dataset), generator=generator).tolist():
            if len(others) == number:
                break
            sample = read_sample(dataset, index)
            label = class_of(sample, n_classes)
            if label is None:
                continue
            classes = [item for item in range(n_classes) if item != int(label) or n_classes == 2]
            first, second, *_ = (
                classes[item] for item in torch.randperm(len(classes), generator=generator).tolist()
            )
            key = label_key(sample)
            trained[index] = with_values(sample, {key: torch.full_like(label, first)})
            others.append(with_values(sample, {key: torch.full_like(label, second)}))
        if len(others) < number:
            raise InvalidInput(
                f"Got {len(others)} samples with a label (the others are -100); {number} pairs need as many. Pass a "
                "smaller number, or more samples."
            )
        return cls(
            DataWithCanaries(dataset, trained, []), list(trained.values()), others, replaced=number
        )

    @classmethod
    @check_arguments
    def of_tokens(cls, dataset: Any, *, number: int = 24, seed: int = 0) -> PairedCanaries:
        """Return pairs of random token sequences, one of which is appended to the data.

        They are as long as the first sample, with tokens that occur in the data. Labels are the tokens themselves, or
        the next ones, if those of the data are. Else (such as one tag per token) they are random labels that occur in
        the data. Values have the types of the first sample, and its other columns are copied.

        Args:
            dataset: Mappings with `input_ids` and `labels` of the same shape.
            number: Number of pairs.
            seed: Seed of the tokens and labels.

        Raises:
            InvalidInput: The samples are not token sequences with labels.
        """
        check_range("number", number, MIN_PAIRS)
        check_data(dataset, 1)
        generator = make_generator(seed, "paired canaries")
        sample = read_sample(dataset, 0)
        sequences = RandomSequences(dataset, generator)
        pairs = [(sequences.like(sample), sequences.like(sample)) for _ in range(number)]
        trained = [pair[0] for pair in pairs]
        return cls(DataWithCanaries(dataset, {}, trained), trained, [pair[1] for pair in pairs])


def trained_samples(monitor: Any, monitored: MonitoredLabels) -> Samples | None:
    """Return the monitored samples with the labels trained on (None if unknown).

    Args:
        monitor: The monitor of the run.
        monitored: Its labels.
    """
    samples = getattr(monitor, "samples", None)
    if (
        not isinstance(samples, Samples)
        or samples.targets is None
        or len(samples) != len(monitored.given_labels)
    ):
        return None
    is_restored = bool((samples.targets.cpu() == monitored.given_labels)[monitored.is_canary].any())
    if is_restored or not sample_features(samples).shape[1]:
        return None
    return Samples(samples.inputs.cpu(), samples.targets.cpu(), form=samples.form, notes=())
