"""A ranking of samples by how likely their label is wrong, and how many labels are: results, and their front doors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.assessment.door import ready
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.random_streams import stream
from gapscope.base.results import Result
from gapscope.base.samples import as_samples
from gapscope.gradients.kernel_ridge import best_left_out
from gapscope.labels.left_out_canaries import CanaryMargins, canary_margins
from gapscope.labels.noise_rate import clean_accuracy, margins_of, noise_rate_bound
from gapscope.measures.kernel_leave_one_out import RIDGES, kernel_columns

if TYPE_CHECKING:
    import pandas

FEWEST_SAMPLES = 100
# the rate is the smallest ratio over the canaries' margins from here on
QUANTILE = 0.3
RECALL = 0.9
RESAMPLED = 200
# what predicts right labels less often than this cannot tell wrong labels from its own mistakes
LEAST_CLEAN_ACCURACY = 0.6


@dataclass(frozen=True, repr=False)
class LabelNoise(Result):
    """Share of labels that are wrong.

    Attributes:
        rate: The share; an upper bound that is tight where right labels are predicted well.
        low: Lower end of its 90 % interval (resampled samples and canaries; it knows nothing of a bound that is loose).
        high: Upper end.
        clean_accuracy: Share of *right* labels that are predicted from all other samples; the ground of the rate.
        samples: Number of samples.
    """

    rate: float
    low: float
    high: float
    clean_accuracy: float
    samples: int

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row."""
        import pandas

        return pandas.DataFrame([vars(self)])

    def __repr__(self) -> str:
        return (
            f"about {self.rate:.1%} of {self.samples} labels are wrong ({self.low:.1%} to {self.high:.1%}, 90 % "
            f"interval); right ones are predicted at {self.clean_accuracy:.0%}"
        )


@dataclass(frozen=True, repr=False)
class SuspectLabels(Result):
    """Samples ranked by how much all others speak against their label.

    Attributes:
        order: Samples, the most suspicious first, [n].
        given: Their labels, in the same order, [n].
        likelier: The class that the others say instead (the given one where they agree with it), [n].
        margin: Left-out score of the given label less the largest other score, in units of one-hot targets, [n].
        flagged: How many of the first have a margin like that of 90 % of labels made wrong on purpose.
        expected_precision: Share of these that are expected to be wrong; NaN where the noise is not known.
        noise: How many labels are wrong; None where the network is too weak to tell.
        note: Why noise is None, or empty.
    """

    order: Int[Tensor, " n"]
    given: Int[Tensor, " n"]
    likelier: Int[Tensor, " n"]
    margin: Float[Tensor, " n"]
    flagged: int
    expected_precision: float
    noise: LabelNoise | None
    note: str = ""

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row a sample, the most suspicious first."""
        import pandas

        return pandas.DataFrame(
            {
                "sample": self.order.tolist(),
                "given": self.given.tolist(),
                "likelier": self.likelier.tolist(),
                "margin": self.margin.tolist(),
                "flagged": [rank < self.flagged for rank in range(len(self.order))],
            }
        )

    def __repr__(self) -> str:
        lines = [self.note if self.noise is None else repr(self.noise)]
        if not math.isnan(self.expected_precision):
            lines.append(f"{self.flagged} are flagged; {self.expected_precision:.0%} of them are expected to be wrong")
        table = self.to_pandas().head(8).to_string(index=False, float_format="{:.3f}".format)
        return "\n".join([*lines, "", table])


def _rate(margins: CanaryMargins, n_classes: int) -> float:
    bound = noise_rate_bound(margins.ordinary.flatten(), margins.canaries.flatten(), n_classes, quantile=QUANTILE)
    return min(bound, 1.0)


def _interval(margins: CanaryMargins, n_classes: int, generator: torch.Generator) -> tuple[float, float]:
    """Resampled rates; the rounds share their samples, so that one round's worth of samples is drawn of them."""
    ordinary, canaries, drawn = margins.ordinary, margins.canaries.flatten(), []
    for _ in range(RESAMPLED):
        number = int(torch.randint(len(ordinary), (), generator=generator))
        rows = torch.randint(ordinary.shape[1], (ordinary.shape[1],), generator=generator)
        columns = torch.randint(len(canaries), (len(canaries),), generator=generator)
        drawn.append(noise_rate_bound(ordinary[number][rows], canaries[columns], n_classes, quantile=QUANTILE))
    low, high = torch.tensor(drawn).quantile(torch.tensor([0.05, 0.95])).tolist()
    return low, high


def _noise(
    margins: CanaryMargins, accuracy: float, n_classes: int, samples: int, generator: torch.Generator
) -> LabelNoise:
    rate = _rate(margins, n_classes)
    low, high = _interval(margins, n_classes, generator)
    clean = clean_accuracy(accuracy, rate, n_classes)
    return LabelNoise(rate, min(low, rate), max(high, rate), min(clean, 1.0), samples)


def _too_weak(noise: LabelNoise) -> str:
    if noise.clean_accuracy >= LEAST_CLEAN_ACCURACY:
        return ""
    return (
        f"How many labels are wrong cannot be told: right ones must be predicted from the others at "
        f"{LEAST_CLEAN_ACCURACY:.0%} or more, here it is {max(noise.clean_accuracy, 0):.0%}. Use more samples, or an "
        "architecture that suits the data better."
    )


@dataclass(frozen=True)
class _LeftOut:
    labels: Int[Tensor, " n"]
    predicted: Int[Tensor, " n"]
    margins: Float[Tensor, " n"]
    changed: CanaryMargins
    noise: LabelNoise
    flagged: Bool[Tensor, " n"]


def _left_out(
    network: nn.Module, data: Any, max_exact: int, landmarks: int, chunk_size: int | None, seed: int
) -> _LeftOut:
    """Left-out margins with the labels as given, and with canaries among them."""
    found = ready(network, as_samples(data))
    samples = found.samples
    if not samples.is_classification or samples.targets is None:
        raise InvalidInput("Wrong labels need class labels, int64 targets [n]. Pass data as (x, y).")
    if len(samples) < FEWEST_SAMPLES:
        raise InvalidInput(f"Wrong labels need {FEWEST_SAMPLES} samples or more; got {len(samples)}. Pass more.")
    labels = samples.targets.cpu()
    n_classes = max(found.n_outputs, int(labels.max()) + 1)
    kernel = kernel_columns(
        found.network, samples.inputs, max_exact, landmarks, stream(seed, "landmarks"), chunk_size
    ).spectrum()
    labels = labels.to(kernel.vectors.device)
    ridge, best = best_left_out(kernel, torch.nn.functional.one_hot(labels, n_classes).double(), RIDGES)
    predicted, margins = best.predictions.argmax(1), margins_of(best.predictions, labels)
    changed = canary_margins(kernel, labels, predicted, ridge, n_classes, stream(seed, "canaries"))
    accuracy = float((predicted == labels).double().mean())
    noise = _noise(changed, accuracy, n_classes, len(labels), stream(seed, "resampling"))
    flagged = margins <= changed.canaries.flatten().quantile(RECALL).to(margins.device)
    return _LeftOut(labels.cpu(), predicted.cpu(), margins.cpu(), changed, noise, flagged.cpu())


def label_noise(
    network: nn.Module,
    data: Any,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> LabelNoise:
    """Say, before training, how many labels are wrong.

    Every sample is predicted from all others by ridge regression on the gradients of the untrained network
    (`gs.kernel_leave_one_out`), in closed form. The labels of 5 % are then made wrong on purpose, in 20 rounds, and the
    rate is that of `gapscope.labels.noise_rate` from their margins: an upper bound if wrong labels are wrong in the way
    these are, that is, drawn as the confusions of the left-out predictions suggest. No training.

    Args:
        network: The network with its initial weights; trained ones have learnt the labels they would judge.
        data: Training data with class labels, in any form that `gs.measure` takes; 100 samples or more.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: Seed of canaries, resampling and landmarks.

    Returns:
        The share with its interval.

    Raises:
        InvalidInput: There are no class labels, or fewer than 100 samples.
        NotMeasurable: Right labels are predicted at less than 60 %: the network cannot tell.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> label_noise(nn.Linear(2, 2), (x, y)).rate < 0.05
    True
    """
    noise = _left_out(network, data, max_exact, landmarks, chunk_size, seed).noise
    if weak := _too_weak(noise):
        raise NotMeasurable(weak)
    return noise


def suspect_labels(
    network: nn.Module,
    data: Any,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> SuspectLabels:
    """Rank samples, before training, by how much all others speak against their label.

    As for `label_noise`; the rank is by the left-out margin of the given label. Flagged are the samples whose margin is
    no larger than that of 90 % of the canaries: of errors like the canaries' about 90 % are among them, and of those
    flagged a share of about `expected_precision` is wrong.

    Args:
        network: As for `label_noise`.
        data: As for `label_noise`.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: As for `label_noise`.

    Returns:
        The ranking, the cut, and the noise; where the network is too weak to tell the noise, the ranking alone.

    Raises:
        InvalidInput: There are no class labels, or fewer than 100 samples.

    >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> y[17] = 1 - y[17]
    >>> 17 in suspect_labels(nn.Linear(2, 2), (x, y)).order[:20]
    True
    """
    found = _left_out(network, data, max_exact, landmarks, chunk_size, seed)
    order = found.margins.argsort(stable=True)
    weak, flagged = _too_weak(found.noise), int(found.flagged.sum())
    expected = math.nan if weak or not flagged else min(1.0, found.noise.rate * RECALL * len(order) / flagged)
    return SuspectLabels(
        order=order,
        given=found.labels[order],
        likelier=found.predicted[order],
        margin=found.margins[order],
        flagged=flagged,
        expected_precision=expected,
        noise=None if weak else found.noise,
        note=weak,
    )
