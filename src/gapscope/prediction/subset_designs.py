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


SHARE_OF_GROWTH = 0.5
UNKNOWN_SHARE_OF_GROWTH = 0.25
BETWEEN_NETWORKS = 0.01
# How far networks are from continued subset runs, at an accuracy of 50 %: chosen for a coverage of 90 % on the networks
# that the rule was chosen on, before those that evaluate it were trained.
CONTINUED_ERROR = 0.045
# 5 % beyond it on either side
NORMAL_QUANTILE = 1.6448536269514722
# a tenth of so many samples errs by 0.01 at most, and its network can be kept
LARGE = 20_000
HELD_OUT = 0.1


@dataclass(frozen=True)
class Design:
    """Training runs of one design, by the fractions of samples that they see and score."""

    name: str
    trained_share: float
    scored_share: float
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
    """Mean score of unseen samples after training on so many, with the variance of the mean."""

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

    $\frac{G}{G-1} \sum_g \left(\sum_{i \in g} (s_i - \bar s)\right)^2 / n^2$ over $G$ groups; with one sample a group
    the squared standard error of a mean. Scores that are all 0 or 1 (right or wrong) have at least the variance of a
    share to which two right and two wrong samples are added (Agresti and Coull 1998), so that no wrong one among a few
    does not pass for certainty.
    """
    n, groups = len(scores), np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(groups, weights=scores - scores.mean())
    if len(sums) < 2:
        return math.inf
    variance = float((sums**2).sum()) / n**2 * len(sums) / (len(sums) - 1)
    if set(np.unique(scores)) <= {0.0, 1.0}:
        share = (scores.sum() + 2) / (n + 4)
        variance = max(variance, float(share * (1 - share)) / n)
    return variance


def extrapolate(large: SizedScore, small: SizedScore | None, samples: int) -> Expectation:
    """Extrapolate the score from parts of two sizes to all samples."""
    if small is None:
        return Expectation(large.mean, math.sqrt(large.variance + BETWEEN_NETWORKS**2))
    further = math.log(samples / large.trained_on) / math.log(large.trained_on / small.trained_on)
    growth, weight = large.mean - small.mean, SHARE_OF_GROWTH * further
    variance = (
        (1 + weight) ** 2 * large.variance
        + weight**2 * small.variance
        + (UNKNOWN_SHARE_OF_GROWTH * further * max(growth, 0.0)) ** 2
        + BETWEEN_NETWORKS**2
    )
    return Expectation(large.mean + weight * growth, math.sqrt(variance))


def predicted_width(design: Design, quarter: SizedScore, growth_a_doubling: float, samples: int) -> float:
    """Return the expected width of a design's interval, from the training on a quarter."""
    trained_on = round(design.trained_share * samples)
    variance = quarter.variance * 0.75 / design.scored_share
    mean = quarter.mean + growth_a_doubling * math.log2(trained_on / quarter.trained_on)
    return extrapolate(SizedScore(trained_on, mean, variance), quarter, samples).width


@dataclass(frozen=True, eq=False)
class Split:
    """Training run of a design: indices of the samples it sees, and of those that score it."""

    name: str
    trained: np.ndarray
    scored: np.ndarray
    steps: float = 1.0  # optimizer steps, in multiples of a training run on all samples
    is_continued: bool = False  # whether it is scored by `gapscope.prediction.subset_runs`


def group_numbers(groups: Any, samples: int) -> np.ndarray:
    """Return the group of each sample as 0, 1, ... (its own without groups)."""
    if groups is None:
        return np.arange(samples)
    labels = np.asarray(groups)
    if labels.ndim != 1:
        raise InvalidInput(f"groups must hold one label per sample, shape [n]; got shape {list(labels.shape)}.")
    check_same_length("groups", len(labels), "samples", samples)
    return np.unique(labels, return_inverse=True)[1]


def random_partition(groups: np.ndarray, shares: Sequence[float], random: np.random.Generator) -> list[np.ndarray]:
    """Cut the samples into random parts of about the given fractions, groups whole."""
    sizes = np.bincount(groups)
    order = random.permutation(len(sizes))
    # a group belongs to the part that holds its middle
    middle = sizes[order].cumsum() - sizes[order] / 2
    part_of_group = np.empty(len(sizes), dtype=int)
    part_of_group[order] = np.searchsorted(np.cumsum(shares)[:-1] * len(groups), middle, side="right")
    parts = part_of_group[groups]
    return [np.flatnonzero(parts == number) for number in range(len(shares))]


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


def hold_out(groups: np.ndarray, share: float, random: np.random.Generator) -> Split:
    """Return one training that leaves a fraction of the samples out and is scored on it."""
    held, kept = random_partition(groups, (share, 1 - share), random)
    return Split("hold-out", kept, held)


@dataclass(frozen=True)
class SubsetRun:
    """One training run on a subset, with mean scores of the samples it did not see and saw."""

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
        score: Predicted score with all samples, on new samples like them.
        low: Lower end of the 90 % interval.
        high: Upper end.
        standard_error: Standard error of the score.
        samples: Number of all samples.
        design: Name of the design.
        cost: Optimizer steps of all training runs, in multiples of one on all samples.
        trainings: The training runs, the quarter first if there is one.
        unreliable_because: Why the score is no prediction: networks on subsets were under-trained; else empty.
        note: What the user should know: a cheaper or better way, an interval that was not reached; or empty.
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
