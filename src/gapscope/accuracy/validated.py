r"""Validation accuracy with control variates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from gapscope.accuracy.forecast import count_duplicates
from gapscope.accuracy.scores import constant_targets_note, scales_of, scores_of_predictions
from gapscope.accuracy.subset_problems import sample_scores
from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import Samples
from gapscope.base.second_data import join_samples
from gapscope.base.targets import require_targets
from gapscope.inspection.validation import ready
from gapscope.results.answer import Answer
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.result import axes_or_new
from gapscope.statistics.baselines import rbf_ridge, sample_features
from gapscope.statistics.intervals import (
    paired_difference_interval,
    student_quantile,
    wilson_interval,
)

if TYPE_CHECKING:
    import pandas

# by judgment: Fisher's standard error is 0.38 there
MIN_SAMPLES = 10
# false alarms of the comparison of both parts, at most 1 in 100; and its relabellings of the samples
LEVEL, PERMUTATIONS = 0.01, 999
OTHER_TASKS = (
    "gs.check(network, train, test=validation) judges these, from the validation samples alone."
)


@dataclass(frozen=True, repr=False, kw_only=True)
class ValidatedAccuracy(Answer):
    """Result of `validated_accuracy`: an `Answer` with control variates, and what it compares with.

    Attributes:
        task: "classification", "multi-label", "positions" or "regression".
        score: Mean accuracy of the validation samples (of single labels for several per sample), or R^2, with control
            variates.
        samples: Number of validation samples.
        low: Lower end of its 90 % interval; NaN without one.
        high: Upper end; NaN without one.
        level: Nominal coverage of the interval.
        score_name: "accuracy" or "R^2", with the unit that it counts if that is not the sample.
        abstained_because: Why there is no answer; empty if there is one.
        notes: Sentences about the data, approximations, and what was omitted.
        interrupted: Whether Ctrl-C ended it, so that a part is missing.
        plain: Mean over the validation samples alone, with its 90 % interval.
        correlation: Correlation of the network's results with the leave-one-out results, on the validation samples.
        effective_samples: Number of validation samples that would give this interval without control variates.
        difference: Paired difference to the baseline's score on the validation samples, with a 90 % interval; None
            without a baseline.
        duplicates: Number of validation samples that repeat another validation sample or a training sample.
    """

    plain: IntervalEstimate
    correlation: float
    effective_samples: float
    difference: IntervalEstimate | None = None
    duplicates: int = 0

    _title = "Validated"

    @property
    def _repeats(self) -> tuple[int, str]:
        verb = "repeats" if self.duplicates == 1 else "repeat"
        return (
            self.duplicates,
            f"{self.duplicates} of {self.samples} validation samples {verb} a training sample or another one.",
        )

    @property
    def _details(self) -> tuple[str, ...]:
        if math.isnan(self.plain.value):
            return ()
        lines = [
            f"  validation samples alone: {self._format_estimate(self.plain)}",
            f"  {self.samples} samples, equal to {self.effective_samples:.0f} (correlation {self.correlation:.2f})",
        ]
        if self.difference is not None:
            d = self.difference
            lines.append(f"  minus the baseline: {d.value:+.3f} ({d.low:+.3f} to {d.high:+.3f})")
        return tuple(lines)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per estimate, with the columns estimate, score, low and high."""
        import pandas

        rows = [
            ("with control variates", self.score, self.low, self.high),
            ("validation samples alone", self.plain.value, self.plain.low, self.plain.high),
        ]
        if self.difference is not None:
            rows.append(
                (
                    "minus the baseline",
                    self.difference.value,
                    self.difference.low,
                    self.difference.high,
                )
            )
        return pandas.DataFrame(rows, columns=["estimate", "score", "low", "high"])

    def plot(self, axes: Any = None) -> Any:
        """Plot both estimates with their 90 % intervals, and return the axes.

        Args:
            axes: Matplotlib axes; None for a new figure.
        """
        axes = axes_or_new(axes, height=1.6)
        table = self.to_pandas().iloc[1::-1]
        errors = [table["score"] - table["low"], table["high"] - table["score"]]
        axes.errorbar(table["score"], table["estimate"], xerr=errors, fmt="o", capsize=4)
        axes.set_xlabel(f"{self.score_name}, 90 % interval")
        axes.margins(y=0.5)
        return axes


@dataclass(frozen=True)
class AdjustedMean:
    """Mean that control variates adjust, see `adjusted_mean`."""

    value: float
    variance: float
    # to the variance without control variates; 1 if these add nothing
    variance_ratio: float
    correlation: float


def adjusted_mean(values: np.ndarray, control: np.ndarray, rest: np.ndarray) -> AdjustedMean:
    r"""Return the mean of m values, adjusted by a control variate that n more samples have.

    $\bar v - c\,(\bar u_m - \bar u_n)$ with $c = \frac{n}{m + n}\,\beta\,s$, $\beta$ the least-squares slope of the
    values on the control and s its shrinkage, adjusted over plain R2 (not below 0). Its variance is
    $\mathrm{Var}(v - c u) / m + c^2\,\mathrm{Var}(u) / n$.
    """
    m = len(values)
    n = len(rest)
    unadjusted = float(values.var(ddof=1)) / m
    spread = float(control.var(ddof=1))
    if unadjusted == 0 or spread == 0:
        return AdjustedMean(float(values.mean()), unadjusted, 1.0, 0.0)
    covariance = float(np.cov(values, control)[0, 1])
    explained = covariance**2 / (spread * unadjusted * m)
    adjusted = 1 - (1 - explained) * (m - 1) / (m - 2)
    if explained > 0:
        shrinkage = max(0.0, adjusted / explained)
    else:
        shrinkage = 0.0
    slope = n / (m + n) * covariance / spread * shrinkage
    variance = (
        float((values - slope * control).var(ddof=1)) / m + slope**2 * float(rest.var(ddof=1)) / n
    )
    value = float(values.mean() - slope * (control.mean() - rest.mean()))
    correlation = covariance / math.sqrt(spread * unadjusted * m)
    return AdjustedMean(value, variance, variance / unadjusted, correlation)


def differ_beyond_chance(control: np.ndarray, rest: np.ndarray) -> bool:
    r"""Return whether the means of a control variate differ more than those of random parts of one data set.

    A permutation test at the level 0.01: it is exact, because the control variate is fitted to all samples and treats
    all alike. In 1,000 simulations per cell without a difference (20 to 200 validation samples, accuracies of 60 to
    99 %, targets with normal and with heavy tails), 0.1 to 1.4 % (0.7 % on average) were reported.

    Args:
        control: Results on the m validation samples.
        rest: Results on the n training samples.
    """
    m = len(control)
    both = np.concatenate([control, rest])
    center = both.mean()
    # a permutation changes the sum over m of the samples
    distance = abs(float((control - center).sum()))
    # below 2 standard errors nothing is beyond chance
    if distance <= 2 * both.std() * math.sqrt(m * len(rest) / len(both)):
        return False
    random = np.random.default_rng(0)
    sums = np.array([random.choice(both, m, replace=False).sum() for _ in range(PERMUTATIONS)])
    # ties of equal sums differ by rounding
    is_as_far = np.abs(sums - m * center) >= distance * (1 - 1e-9)
    return 1 + int(is_as_far.sum()) <= LEVEL * (PERMUTATIONS + 1)


def effective_samples(item: AdjustedMean, samples: int, rest: int) -> float:
    r"""Return the number of samples whose plain mean has the variance of the adjusted one.

    Control variates divide the variance by $1 - \rho^2 n / (m + n)$. A correlation that is estimated on few samples
    promises too much, so that $\rho$ is taken one standard error below it on Fisher's scale, $1 / \sqrt{m - 3}$. This
    gives intervals a coverage of 0.87 to 0.92 in all of 16 simulated cells (nominal 0.90); with the estimated
    correlation itself 0.84 to 0.91.
    """
    gain = max(0.0, 1 - item.variance_ratio)
    # Fisher's transform of 1 is infinite
    correlation = min(math.sqrt(gain * (samples + rest) / rest), 0.999)
    cautious = max(0.0, math.tanh(math.atanh(correlation) - 1 / math.sqrt(samples - 3)))
    return samples / (1 - cautious**2 * rest / (samples + rest))


def _interval(
    is_fraction: bool, item: AdjustedMean, samples: int, effective: float
) -> tuple[float, float]:
    """90 % interval: Wilson (effective number of samples); Student for regression."""
    if is_fraction:
        return wilson_interval(item.value, effective)
    plain_variance = item.variance / item.variance_ratio
    reach = student_quantile(0.9, samples - 1) * math.sqrt(plain_variance * samples / effective)
    return item.value - reach, item.value + reach


def labels_per_sample(scores: np.ndarray, n_labels: int) -> float:
    """Return how many independent labels a sample counts for, between 1 and the number of its labels.

    Args:
        scores: Fraction of right labels of each sample.
        n_labels: Labels per sample.
    """
    m = len(scores)
    fraction = (float(scores.sum()) + 2) / (m + 4)  # a score of 1 is no certainty
    of_one = fraction * (1 - fraction)
    return of_one / min(max(float(scores.var(ddof=1)), of_one / n_labels), of_one)


def _paired_difference(scores: np.ndarray, baseline: np.ndarray, classes: bool) -> IntervalEstimate:
    """Return the mean difference with a 90 % interval: Tango's for labels, Student's for regression."""
    difference = scores - baseline
    m = len(scores)
    value = float(difference.mean())
    if classes:
        low, high = paired_difference_interval(
            float((difference > 0).sum()), float((difference < 0).sum()), m
        )
        return IntervalEstimate(value, low, high)
    reach = student_quantile(0.9, m - 1) * float(difference.std(ddof=1)) / math.sqrt(m)
    return IntervalEstimate(value, value - reach, value + reach)


def _difference_note(samples: Samples, control: np.ndarray, rest: np.ndarray) -> str:
    """Return the sentence that says why control variates are not used."""
    if samples.kind == "regression":
        first, second = (f"{part.mean():.3f}" for part in (control, rest))
    else:
        first, second = (percent(float(part.mean())) for part in (control, rest))
    return (
        f"Control variates are not used: the leave-one-out {samples.task.score_name} of an RBF ridge is {first} on the "
        f"validation samples and {second} on the training samples, too far apart for random parts of one data set "
        "(permutation test at 1 %). Look for label errors in one part (gs.find_label_issues), or other samples."
    )


def _check(samples: Samples, what: str) -> None:
    require_targets(samples, what)
    samples.require_kind(
        "Validated accuracy", "classification", "multi-label", "regression", advice=OTHER_TASKS
    )
    if len(samples) < MIN_SAMPLES:
        raise InvalidInput(
            f"{what} must hold {MIN_SAMPLES} samples or more with one label or row of targets each; got {len(samples)} "
            f"samples with targets of shape {list(samples.y.shape)}. Pass more samples, one target each."
        )


@check_arguments
def validated_accuracy(
    network: nn.Module, validation: Any, train: Any, *, baseline: nn.Module | None = None
) -> ValidatedAccuracy:
    r"""Estimate the accuracy on new data from a validation split, with control variates.

    $a_B + c\,(\ell_A - \ell_B)$, where $a_B$ is the accuracy on the validation samples B and $\ell$ the leave-one-out
    accuracy of an RBF ridge that is fitted to all samples, on B and on the training samples A (see `adjusted_mean`).
    If B happens to be easy for the ridge, it is probably easy for the network as well. The ridge does not use the
    network: the estimate is unbiased up to the estimate of c, and its variance is lower by about
    $\rho^2 n / (m + n)$, for m validation and n training samples and the correlation $\rho$ of both results on B.
    The 90 % interval is Wilson's (1927) with a cautious effective number of samples (see `effective_samples`),
    Student's for regression. With several labels per sample the score is the fraction of right labels, and the number
    of samples in Wilson's interval is the one at which single labels would vary as much. The difference to a baseline
    uses the validation samples alone, because control variates do not reduce its variance: Tango's (1998) score
    interval for paired fractions, Student's for regression and several labels.

    Validation and training samples must be random parts of one data set. If the ridge's results on both differ too much
    for that (see `differ_beyond_chance`), such as for label errors in one of them, control variates are not used, and a
    note says so. Training samples must be the original ones, without augmentation. Control variates: Angelopoulos et
    al. 2023, arXiv:2301.09633.

    Args:
        network: The network, trained without the validation samples.
        validation: Validation samples with targets.
        train: Training samples with targets, in the same form.
        baseline: Another network, or another checkpoint of the same one: its paired difference is estimated.

    Raises:
        InvalidInput: Targets are missing, there are fewer than ten samples, or the forms differ.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> network = gs.build_network("fully_connected", input_shape=(1, 8, 8), n_outputs=10, width=64)
    >>> _ = gs.train(network, train, gs.TrainingSpec(epochs=20, momentum=0.9))
    >>> validation = gs.load_dataset("digits").test.first(200)
    >>> print(gs.validated_accuracy(network, validation, train))  # doctest: +ELLIPSIS
    Validated accuracy: 9... % (90 % interval 9... to 9... %)
      validation samples alone: 9... % (9... to 9... %)
      200 samples, equal to 2... (correlation 0...)
    """
    prepared = ready(network, train, needs=("outputs",))
    trained_on = prepared.samples
    adapted = prepared.adapt(validation, "validation")
    held_out = adapted.samples
    _check(held_out, "validation")
    _check(trained_on, "train")
    scales = scales_of(held_out)
    both = join_samples(held_out, trained_on)
    result = ValidatedAccuracy(
        task=held_out.kind,
        score=math.nan,
        score_name=held_out.task.score_name,
        plain=IntervalEstimate(math.nan, math.nan, math.nan),
        correlation=math.nan,
        samples=len(held_out),
        effective_samples=math.nan,
        duplicates=count_duplicates(both)[0] - count_duplicates(trained_on)[0],
        notes=tuple(
            dict.fromkeys((*prepared.notes, *adapted.notes, *constant_targets_note(held_out)))
        ),
    )
    try:
        scores = sample_scores(network, held_out, scales)
    except NotMeasurable as error:
        return replace(result, abstained_because=str(error))
    # leave-one-out results of an RBF ridge on all samples
    features = sample_features(both)
    control = np.zeros(len(both))
    if features.shape[1]:
        control = scores_of_predictions(rbf_ridge(features, both.y).predictions, both, scales)
    m = len(held_out)
    classes = held_out.is_classification
    plain = AdjustedMean(float(scores.mean()), float(scores.var(ddof=1)) / m, 1.0, 0.0)
    item = adjusted_mean(scores, control[:m], control[m:])
    notes = result.notes
    if differ_beyond_chance(control[:m], control[m:]):
        item = plain
        notes = (*notes, _difference_note(held_out, control[:m], control[m:]))
    elif item.variance_ratio >= 1:
        # such as a few extreme training samples: the adjustment would add more variance than it removes
        item = plain
    effective = effective_samples(item, m, len(both) - m)
    difference = None
    if baseline is not None:
        try:
            ready(baseline, held_out, needs=("outputs",))
            of_baseline = sample_scores(baseline, held_out, scales)
        except (InvalidInput, NotMeasurable) as error:
            raise InvalidInput(f"baseline: {error}") from error
        difference = _paired_difference(scores, of_baseline, classes)
    is_fraction = held_out.kind != "regression"
    factor = 1.0
    if held_out.kind == "multi-label":
        factor = labels_per_sample(scores, held_out.y.shape[1])
    low, high = _interval(is_fraction, item, m, effective * factor)
    plain_ends = _interval(is_fraction, plain, m, m * factor)
    return replace(
        result,
        score=min(max(item.value, 0.0), 1.0) if is_fraction else item.value,
        low=low,
        high=high,
        plain=IntervalEstimate(plain.value, *plain_ends),
        correlation=item.correlation,
        effective_samples=effective,
        difference=difference,
        notes=notes,
    )
