"""Forecast of accuracy before training from leave-one-out rows, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import require_targets
from gapscope.inspection.interrupts import may_be_partial
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.validation import ready, unwrap_estimator
from gapscope.labels.duplicates import exact_repeats
from gapscope.measures.fitted_labels import network_before_training, paired_gain
from gapscope.prediction.loo_rows import (
    COMBINATIONS,
    NTK,
    RBF,
    add_network_rows,
    combine_rows,
    forecast_interval,
    mean_score,
    reason_to_abstain,
    with_new_head,
)
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.progress import progress
from gapscope.results.result import Result, axes_or_new, to_builtin, to_html
from gapscope.statistics.baselines import LooRow, loo_baselines, rbf_ridge, sample_features, squared_distances
from gapscope.statistics.kernel_ridge import ClassScores, are_unequal, class_scores

if TYPE_CHECKING:
    import pandas

MIN_SAMPLES, MAX_UNUSED_CLASSES = 12, 1000
SUBSET_FRACTIONS, N_SUBSETS, ONE_SUBSET_ABOVE = (0.25, 0.5), 3, 5000


@dataclass(frozen=True)
class LearningCurvePoint:
    """Mean score at one number of samples, or an extrapolation by a power law."""

    samples: int
    score: float
    extrapolated: bool = False


@dataclass(frozen=True, repr=False)
class AccuracyForecast(Result):
    """Forecast of `forecast_accuracy`.

    Attributes:
        task: "classification" or "regression".
        samples: Number of training samples.
        score: The forecast: accuracy, or R^2 for regression.
        interval: 90 % interval; None for regression.
        combined: Names of the rows whose mean is the forecast.
        rows: Leave-one-out rows, those that need no network first.
        network_gain: Score of the NTK row minus the RBF row's, with a paired 95 % interval; None without both.
        curve: Scores at a quarter, a half and all of the samples, and extrapolated to twice as many.
        abstained_because: Why there is no forecast; empty if there is one.
        duplicates: Number of samples that repeat an earlier one.
        contradicting_duplicates: Number of those with another label.
        notes: Sentences about the data and about rows that are missing.
        unequal_classes: Balanced accuracy and area under the ROC curve, means of the combined rows, if the largest
            class has twice the samples of the smallest or more; None otherwise.
    """

    task: str
    samples: int
    score: float
    interval: tuple[float, float] | None
    combined: tuple[str, ...]
    rows: tuple[LooRow, ...]
    network_gain: IntervalEstimate | None
    curve: tuple[LearningCurvePoint, ...]
    abstained_because: str = ""
    duplicates: int = 0
    contradicting_duplicates: int = 0
    notes: tuple[str, ...] = ()
    unequal_classes: ClassScores | None = None

    def row(self, method: str) -> LooRow | None:
        """Return the row of a method, None if there is none."""
        return next((row for row in self.rows if row.method.split(" (")[0] == method.split(" (")[0]), None)

    @property
    def gain_from_doubling_data(self) -> float:
        """Extrapolated score at twice the samples minus the forecast (NaN without a curve)."""
        return self.curve[-1].score - self.score if self.curve else float("nan")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows: method, score, and what it uses."""
        import pandas

        return pandas.DataFrame(
            {"method": row.method, self._score_name: row.score, "uses": row.uses} for row in self.rows
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all but the per-sample predictions as JSON-serializable values."""
        return to_builtin(replace(self, rows=())) | {"rows": self.to_pandas().to_dict("records")}

    @property
    def _score_name(self) -> str:
        return "accuracy" if self.task == "classification" else "R^2"

    def _format(self, score: float) -> str:
        return percent(score, 1) if self.task == "classification" else f"{score:.3f}"

    @property
    def warning(self) -> str:
        """A sentence on duplicated samples, empty if there are none."""
        if not self.duplicates:
            return ""
        other = f", {self.contradicting_duplicates} of them with another target" * bool(self.contradicting_duplicates)
        return describe_duplicates(self.duplicates, self.samples, other)

    @property
    def headline(self) -> str:
        """The forecast in one sentence."""
        if self.abstained_because:
            return f"No forecast: {self.abstained_because}."
        if self.interval is None:
            return f"Forecast R^2: {self.score:.2f} on new data like these {self.samples} samples"
        low, high = (f"{100 * end:.0f}" for end in self.interval)
        return (
            f"Forecast accuracy: {100 * self.score:.0f} % (90 % interval {low} to {high} %) on new data with the same "
            "label noise"
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Conclusions from the rows, one sentence each."""
        if self.abstained_because:
            return self.notes
        lines: list[str] = []
        gain, unequal = self.network_gain, self.unequal_classes
        if gain is not None:
            points = f"{gain.value:+.3f} of R^2 (95 % CI {gain.low:.3f} to {gain.high:.3f})"
            if self.task == "classification":
                points = f"{100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
            what = "adds nothing significant to" if gain.high >= 0 else "is worse than"
            what = "adds to" if gain.low > 0 else what
            lines.append(f"The network's NTK {what} the RBF kernel of the inputs: {points}.")
        if unequal is not None:
            lines.append(
                f"Classes are unequal (the largest has {self._format(unequal.largest)} of the samples): balanced "
                f"accuracy {self._format(unequal.balanced_accuracy)}, area under the ROC curve {unequal.auc:.3f}."
            )
        if self.curve:
            lines.append(f"Twice the data: about {self._format(self.curve[-1].score)}.")
        return (*lines, *self.notes)

    def __repr__(self) -> str:
        width = max(len(row.method) for row in self.rows)
        table = [f"  {'method':{width}}  {self._score_name:>8}  uses"]
        table += [f"  {row.method:{width}}  {self._format(row.score):>8}  {row.uses}" for row in self.rows]
        return "\n".join([*([self.warning] if self.warning else []), self.headline, *table, *self.sentences])

    def _repr_html_(self) -> str:
        warning = (self.warning,) if self.warning else ()
        return to_html(self, (*warning, self.headline, *self.sentences), index=False)

    def plot(self, axes: Any = None) -> Any:
        """Plot the score of every row, the forecast and its interval, and return the axes."""
        rows = self.rows[::-1]
        axes = axes_or_new(axes, height=1 + 0.35 * len(rows))
        colours = {"labels": "tab:gray", "inputs": "tab:blue", "network": "tab:orange"}
        axes.barh([row.method for row in rows], [row.score for row in rows], color=[colours[row.uses] for row in rows])
        if not self.abstained_because:
            axes.axvline(self.score, color="black", label="forecast")
            if self.interval is not None:
                axes.axvspan(*self.interval, color="black", alpha=0.1, label="90 % interval")
            axes.legend(fontsize=8)
        axes.set_xlabel(f"leave-one-out {self._score_name}")
        return axes


def extrapolate_power_law(points: Sequence[tuple[int, float]], samples: int) -> float:
    r"""Extrapolate a score by a least-squares power law $1 - s(n) \propto n^{-b}$."""
    import numpy

    last = points[-1][1]
    sizes, errors = numpy.log([n for n, _ in points]), numpy.log([max(1 - score, 1e-6) for _, score in points])
    slope = min(0.0, float(numpy.polyfit(sizes, errors, 1)[0]))
    return 1 - (1 - last) * (samples / points[-1][0]) ** slope


def _learning_curve(
    features: Tensor,
    squares: Tensor | None,
    targets: Tensor,
    n_classes: int | None,
    rbf_score: float,
    score: float,
    seed: int,
) -> tuple[LearningCurvePoint, ...]:
    """Return RBF scores on random subsets, shifted to the forecast and extrapolated."""
    n = len(features)
    points: list[tuple[int, float]] = []
    for fraction in SUBSET_FRACTIONS:
        size = max(3, round(fraction * n))
        scores: list[float] = []
        for draw in range(min(N_SUBSETS, round(1 / fraction)) if n <= ONE_SUBSET_ABOVE else 1):
            generator = torch.Generator().manual_seed(derive_seed(seed, f"subset {fraction} {draw}"))
            subset = torch.randperm(n, generator=generator)[:size].to(features.device)
            part = None if squares is None else squares[subset][:, subset]
            scores.append(rbf_ridge(features[subset], targets[subset], n_classes=n_classes, squares=part).score)
        points.append((size, sum(scores) / len(scores)))
    points.append((n, rbf_score))
    points = [(size, value + score - rbf_score) for size, value in points]
    doubled = extrapolate_power_law(points, 2 * n)
    return (*(LearningCurvePoint(*point) for point in points), LearningCurvePoint(2 * n, doubled, extrapolated=True))


def count_duplicates(samples: Samples) -> tuple[int, int]:
    """Return the number of repeated samples, and of those with another target."""
    targets = samples.y.tolist()
    pairs = exact_repeats(samples)
    return len(pairs), sum(targets[i] != targets[j] for i, j in pairs)


def describe_duplicates(duplicates: int, samples: int, other: str = "") -> str:
    """Return a sentence on samples that repeat an earlier one."""
    return (
        f"{duplicates} of {samples} samples repeat an earlier one{other}. Leave-one-out predicts them from their "
        "copies. Remove them before using these numbers."
    )


def check_prediction_data(samples: Samples, what: str = "A forecast", least: int = MIN_SAMPLES) -> None:
    """Raise InvalidInput unless the targets can be predicted."""
    targets = require_targets(samples.targets, what)
    samples.require_kind(what, "classification", "regression")
    if len(samples) < least:
        raise InvalidInput(f"{what} needs {least} samples or more; got {len(samples)} samples. Pass more.")
    values = targets.unique(dim=0)
    if len(values) < 2:
        got = "labels of one class" if samples.is_classification else "the same target for all samples"
        raise InvalidInput(f"{what} needs two classes or targets or more; got {got}. Pass other samples too.")
    if samples.is_classification and int(values.max()) > MAX_UNUSED_CLASSES + 10 * len(values):
        raise InvalidInput(
            f"Got the label {int(values.max())} and only {len(values)} classes. Number the classes 0, 1, 2, ..."
        )


def forecast_accuracy(
    network: nn.Module | None,
    data: Any,
    *,
    head: str | nn.Module | None = None,
    time_budget: float | None = None,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> AccuracyForecast:
    r"""Forecast the accuracy of a network on new data, before it is trained.

    Every row of the result predicts each training sample from all others (leave-one-out, in closed form). Four rows
    never see the network: the most frequent class, nearest neighbours, linear ridge and RBF ridge. Two rows use the
    network at its current weights, untrained or pretrained: ridge regression on its last hidden features and on its
    neural tangent kernel (`gapscope.functional.kernel_leave_one_out`). The forecast is the mean of the RBF and NTK
    rows; if the hidden features are significantly better than the RBF kernel, as those of pretrained networks are, it
    is the mean of the two rows of the network.

    The 90 % interval joins the binomial error of the samples with the differences between trained networks,
    $1.645 \sqrt{s (1 - s) (1 / n + 4 \cdot 0.060^2)}$. It applies to new data with the same label noise. For regression
    the score is $R^2$, without an interval. The forecast abstains if no row is significantly better than the most
    frequent class. Batch norm layers that have seen no data get the statistics of these data, on a copy. A network that
    has already fitted these labels is replaced by a copy with resampled weights, and a note says so. Ctrl-C returns the
    rows that are finished. Common parameters: see `gapscope.prediction`.

    Args:
        network: The network with the weights as they are before training; None for the rows that need no network.
        head: Replaces the last linear layer on a copy: "new" by an untrained one with one output per class, a module by
            itself. None changes nothing.
        time_budget: Seconds for the NTK row, None for no limit. If it would take longer, the NTK is that of 4 random
            combinations of the outputs, then one of fewer landmarks; it is omitted if 100 landmarks take longer. A note
            names the approximation.
        landmarks: Number of random samples that approximate the NTK beyond, with 4 combinations of the outputs.

    Raises:
        InvalidInput: The data have no targets, fewer than 12 samples or one class, or do not fit the network's outputs.
        KeyboardInterrupt: It was stopped before the first rows were finished.

    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> print(round(forecast_accuracy(nn.Linear(1, 2), (x, (x[:, 0] > 0).long())).score, 1))
    1.0
    """
    check_range("max_exact", max_exact, 1)
    network, data = unwrap_estimator(network, data)
    samples = as_samples(data)
    check_prediction_data(samples)
    notes = list(samples.notes)
    n_classes = int(samples.y.max()) + 1 if samples.is_classification else None
    prepared = None
    if network is not None:
        if head is not None:
            network = with_new_head(network, samples, head, n_classes, seed)
        prepared = ready(network, samples, needs=("outputs",))
        notes += [note for note in prepared.notes if note not in notes]
        if n_classes is not None:
            n_classes = max(n_classes, prepared.n_outputs)
    duplicates, contradicting = count_duplicates(samples)
    options: dict[str, Any] = {
        "max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size,
        "generator": torch.Generator().manual_seed(derive_seed(seed, "landmarks")),
    }  # fmt: skip
    if prepared is not None and prepared.n_outputs > COMBINATIONS:
        options["combinations"] = COMBINATIONS if len(samples) > max_exact else None
    rows: list[LooRow] = []
    curve: tuple[LearningCurvePoint, ...] = ()
    targets = samples.y.cpu()
    with progress("forecasting", 3) as bar, memo_scope():
        try:
            features = sample_features(samples)
            bar.step("baselines")
            squares = squared_distances(features)
            rows += loo_baselines(features, targets, n_classes=n_classes, squares=squares)
            bar.advance()
            if prepared is not None:
                bar.step("network")
                before = network_before_training(prepared, rows[-1].predictions)
                notes += [before.note] if before.note else []
                prepared = before.prepared
            if prepared is not None:
                add_network_rows(rows, notes, prepared, n_classes, options, time_budget)
            bar.advance()
            bar.step("learning curve")
            rbf = next((row.score for row in rows if row.method == RBF), None)
            if rbf is not None:
                score = mean_score(combine_rows(rows, targets))
                curve = _learning_curve(features, squares, targets, n_classes, rbf, score, seed)
            bar.advance()
        except KeyboardInterrupt:
            if not rows or not may_be_partial():
                raise
            notes.append("Interrupted: only the finished rows are shown.")
    combined = combine_rows(rows, targets)
    score = mean_score(combined)
    by_name = {row.method: row for row in rows}
    unequal = None
    if n_classes is not None and are_unequal(targets):
        unequal = ClassScores.mean([class_scores(row.predictions, targets) for row in combined])
    return AccuracyForecast(
        task="regression" if n_classes is None else "classification",
        samples=len(samples),
        score=score,
        interval=forecast_interval(score, len(samples)) if n_classes is not None else None,
        combined=tuple(row.method for row in combined),
        rows=tuple(rows),
        network_gain=paired_gain(by_name[NTK], by_name[RBF], targets) if {NTK, RBF} <= by_name.keys() else None,
        curve=curve,
        abstained_because=reason_to_abstain(rows, targets),
        duplicates=duplicates,
        contradicting_duplicates=contradicting,
        notes=tuple(notes),
        unequal_classes=unequal,
    )
