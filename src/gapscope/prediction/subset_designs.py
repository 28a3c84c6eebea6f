"""Designs of subset runs, and the learning curve fitted to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.results.result import Result, axes_or_new

if TYPE_CHECKING:
    import pandas


GROWTH_FRACTION = 0.5
UNKNOWN_GROWTH_FRACTION = 0.25
BETWEEN_NETWORKS = 0.01
# Standard deviation of networks around the score of continued runs, at an accuracy of 50 %: chosen for a coverage of
# 90 % on the networks that the rule was chosen on, before those that evaluate it were trained.
CONTINUED_ERROR = 0.045
# 5 % beyond it on either side
NORMAL_QUANTILE = 1.6448536269514722
# the standard error of a tenth of these samples is at most 0.01, and the network of the other nine tenths is usable
LARGE = 20_000
HELD_OUT = 0.1


@dataclass(frozen=True)
class Design:
    """Training runs of one design, by the fractions of samples for training and scoring."""

    name: str
    trained_fraction: float
    scored_fraction: float
    cost: float  # optimizer steps of all runs, in multiples of a training run on all samples
    folds: int = 0
    is_continued: bool = False  # whether both halves are continued (`gapscope.prediction.subset_runs`)


# cheapest first
LADDER = (
    Design("half and quarter", 0.5, 0.5, 2),
    Design("two halves and quarter", 0.5, 1.0, 3),
    Design("five folds and quarter", 0.8, 1.0, 6, folds=5),
    Design("ten folds and quarter", 0.9, 1.0, 11, folds=10),
)
HOLD_OUT = Design("hold-out", 1 - HELD_OUT, HELD_OUT, 1)
CONTINUED = Design("continued halves", 0.5, 1.0, 2, is_continued=True)
SHORT_CONTINUED = Design("short continued halves", 0.5, 1.0, 0.5, is_continued=True)
DESIGNS = {design.name: design for design in (SHORT_CONTINUED, CONTINUED, *LADDER, HOLD_OUT)}


@dataclass(frozen=True)
class SizedScore:
    """Mean score of unseen samples, its variance, and the number of training samples."""

    trained_on: int
    mean: float
    variance: float


@dataclass(frozen=True)
class Expectation:
    """Predicted score with all samples."""

    value: float
    standard_error: float

    @property
    def width(self) -> float:
        """Width of the 90 % interval."""
        return 2 * NORMAL_QUANTILE * self.standard_error


def variance_of_mean(scores: np.ndarray, groups: np.ndarray) -> float:
    r"""Return the variance of the mean of scores with independent groups.

    $\frac{G}{G-1} \sum_g \left(\sum_{i \in g} (s_i - \bar s)\right)^2 / n^2$ over $G$ groups; with one sample per group
    the squared standard error of a mean. Scores that are all 0 or 1 (wrong or correct) have at least the variance of a
    fraction with two correct and two wrong samples added (Agresti and Coull 1998), so that a few correct samples alone
    do not give a variance of 0.
    """
    n, groups = len(scores), np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(groups, weights=scores - scores.mean())
    if len(sums) < 2:
        return math.inf
    variance = float((sums**2).sum()) / n**2 * len(sums) / (len(sums) - 1)
    if set(np.unique(scores)) <= {0.0, 1.0}:
        fraction = (scores.sum() + 2) / (n + 4)
        variance = max(variance, float(fraction * (1 - fraction)) / n)
    return variance


def extrapolate(large: SizedScore, small: SizedScore | None, samples: int) -> Expectation:
    """Extrapolate the score from subsets of two sizes to all samples."""
    if small is None:
        return Expectation(large.mean, math.sqrt(large.variance + BETWEEN_NETWORKS**2))
    ratio = math.log(samples / large.trained_on) / math.log(large.trained_on / small.trained_on)
    growth, weight = large.mean - small.mean, GROWTH_FRACTION * ratio
    variance = (
        (1 + weight) ** 2 * large.variance
        + weight**2 * small.variance
        + (UNKNOWN_GROWTH_FRACTION * ratio * max(growth, 0.0)) ** 2
        + BETWEEN_NETWORKS**2
    )
    return Expectation(large.mean + weight * growth, math.sqrt(variance))


def predicted_width(design: Design, quarter: SizedScore, growth_per_doubling: float, samples: int) -> float:
    """Return the expected width of a design's interval, from the training on a quarter."""
    trained_on = round(design.trained_fraction * samples)
    variance = quarter.variance * 0.75 / design.scored_fraction
    mean = quarter.mean + growth_per_doubling * math.log2(trained_on / quarter.trained_on)
    return extrapolate(SizedScore(trained_on, mean, variance), quarter, samples).width


@dataclass(frozen=True, eq=False)
class Split:
    """Training run of a design: indices of its training samples and of the scored samples."""

    name: str
    trained: np.ndarray
    scored: np.ndarray
    steps: float = 1.0  # optimizer steps, in multiples of a training run on all samples
    is_continued: bool = False  # whether it is scored by `gapscope.prediction.subset_runs`


def group_numbers(groups: Any, samples: int) -> np.ndarray:
    """Return the group of each sample as 0, 1, ... (one group per sample without groups)."""
    if groups is None:
        return np.arange(samples)
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise InvalidInput(f"groups must hold one label per sample, shape [n]; got shape {list(labels.shape)}.")
    check_same_length("groups", len(labels), "samples", samples)
    return np.unique(labels, return_inverse=True)[1]


def random_partition(groups: np.ndarray, fractions: Sequence[float], random: np.random.Generator) -> list[np.ndarray]:
    """Divide the samples at random into about these fractions, without dividing groups."""
    sizes = np.bincount(groups)
    order = random.permutation(len(sizes))
    # a group belongs to the part that holds its middle
    middle = sizes[order].cumsum() - sizes[order] / 2
    part_of_group = np.empty(len(sizes), dtype=int)
    part_of_group[order] = np.searchsorted(np.cumsum(fractions)[:-1] * len(groups), middle, side="right")
    parts = part_of_group[groups]
    return [np.flatnonzero(parts == number) for number in range(len(fractions))]


def _rest(samples: int, part: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(samples), part)


def quarter_and_halves(groups: np.ndarray, random: np.random.Generator) -> tuple[Split, Split, Split]:
    """Return the runs on a quarter, on the half that holds it, and on the other half."""
    first, second, third = random_partition(groups, (0.25, 0.25, 0.5), random)
    half = np.sort(np.concatenate([first, second]))
    return (
        Split("quarter", first, _rest(len(groups), first)),
        Split("half", half, third),
        Split("other half", third, half),
    )


def continued_halves(groups: np.ndarray, steps: float, random: np.random.Generator) -> list[Split]:
    """Return the runs on two random halves, each scored and continued on the other."""
    first, second = random_partition(groups, (0.5, 0.5), random)
    name = "continued half" if steps == 1 else "short continued half"
    return [Split(f"{name} 1", first, second, steps, True), Split(f"{name} 2", second, first, steps, True)]


def folds(groups: np.ndarray, number: int, random: np.random.Generator) -> list[Split]:
    """Return the runs of a cross-validation with `number` folds."""
    parts = random_partition(groups, [1 / number] * number, random)
    return [
        Split(f"fold {index} of {number}", _rest(len(groups), part), part) for index, part in enumerate(parts, start=1)
    ]


def hold_out(groups: np.ndarray, fraction: float, random: np.random.Generator) -> Split:
    """Return one run that is scored on a held-out fraction of the samples."""
    held_out, rest = random_partition(groups, (fraction, 1 - fraction), random)
    return Split("hold-out", rest, held_out)


@dataclass(frozen=True)
class SubsetRun:
    """One training run on a subset, with mean scores of unseen and of training samples."""

    name: str
    trained_on: int
    scored_on: int
    score: float
    training_score: float
    steps: float = 1.0  # optimizer steps, in multiples of a training run on all samples


@dataclass(frozen=True, repr=False)
class LearningCurve(Result):
    """Result of `learning_curve`, with its training runs.

    Attributes:
        task: "classification" (scores are accuracies) or "regression" (explained fractions of the variance, R2).
        score: Predicted score with all samples, on new samples with the same label noise.
        low: Lower end of the 90 % interval.
        high: Upper end.
        standard_error: Standard error of the score.
        samples: Number of all samples.
        design: Name of the design.
        cost: Optimizer steps of all training runs, in multiples of one on all samples.
        trainings: The training runs, the quarter first if there is one.
        unreliable_because: Why the score is no prediction: networks on subsets were under-trained; else empty.
        note: A better design, or an interval width that was not reached; empty if there is nothing to note.
        is_interrupted: Whether training runs are missing because of Ctrl-C.
    """

    task: str
    score: float
    low: float
    high: float
    standard_error: float
    samples: int
    design: str
    cost: float
    trainings: tuple[SubsetRun, ...]
    unreliable_because: str = ""
    note: str = ""
    is_interrupted: bool = False

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per training run."""
        import pandas

        return pandas.DataFrame([vars(item) for item in self.trainings])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The prediction with its interval, the design with its cost, and a note if there is one."""
        what = "accuracy" if self.task == "classification" else "R^2"
        headline = (
            f"Predicted {what} with all {self.samples:,} samples: {self.score:.3f} ({self.low:.3f} to {self.high:.3f}, "
            "90 % interval)"
        )
        return (
            f"No prediction: {self.unreliable_because}" if self.unreliable_because else headline,
            f"  design {self.design}; cost {self.cost:.2f} full-training equivalents",
            *([self.note] if self.note else []),
        )

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, "", self.to_pandas().to_string(index=False, float_format="{:.3f}".format)])

    def plot(self, axes: Any = None) -> Any:
        """Plot the scores of the runs and the prediction with its interval, and return the axes."""
        axes = axes_or_new(axes, height=3.0)
        axes.plot([run.trained_on for run in self.trainings], [run.score for run in self.trainings], "o", label="runs")
        error = [[self.score - self.low], [self.high - self.score]]
        axes.errorbar(self.samples, self.score, yerr=error, fmt="s", capsize=4, label="prediction, 90 % interval")
        axes.set(xlabel="training samples", ylabel="accuracy" if self.task == "classification" else "R^2")
        axes.legend(fontsize=8)
        return axes
