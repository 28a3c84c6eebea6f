"""Rows and learning curve of a forecast, one after the other: an interruption keeps those that are finished."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gapscope.accuracy.forecast_curve import (
    curve_seconds,
    growth_per_doubling,
    learning_curve_points,
)
from gapscope.accuracy.forecast_result import AccuracyForecast, LearningCurvePoint
from gapscope.accuracy.loo_rows import (
    NTK,
    add_network_rows,
    combine_rows,
    forecast_interval,
    independent_predictions,
    mean_score,
    reason_to_abstain,
    with_new_head,
)
from gapscope.base.budget import CpuBudget
from gapscope.base.samples import Samples
from gapscope.inspection.validation import Ready, ready
from gapscope.measures.embed import features_of_samples
from gapscope.measures.fitted_labels import features_row, is_large, paired_gain
from gapscope.results.progress import NullProgress
from gapscope.statistics.baselines import (
    RBF,
    LooRow,
    baseline_seconds,
    loo_baselines,
    sample_features,
    squared_distances,
)
from gapscope.statistics.kernel_ridge import ClassScores, are_unequal, class_scores


def _are_vectors(samples: Samples) -> bool:
    """Return whether each input is a vector of numbers: a row of a table, or features."""
    return all(part.ndim == 2 and part.is_floating_point() for part in samples.parts)


def _rows_left_out(rows: Sequence[LooRow], features: Tensor, budget: CpuBudget) -> list[str]:
    """Return a note on rows without a network that did not fit the budget."""
    n, d = features.shape
    if not d:
        return []
    missing = [
        f"{name} (about {seconds:.0f} CPU s)"
        for name, seconds in baseline_seconds(n, d, rows[0].predictions.shape[1]).items()
        if not any(row.method.startswith(name) for row in rows)
    ]
    if missing:
        return [f"Omitted to keep time_budget={budget.passed:.3g}: {', '.join(missing)}."]
    return []


class ForecastRun:
    """A forecast in the making: the rows that are finished are kept when it is interrupted."""

    def __init__(
        self,
        samples: Samples,
        features: Any,
        groups: Tensor | None,
        *,
        budget: CpuBudget,
        seed: int,
        with_curve: bool,
        repeats: tuple[int, int],
    ) -> None:
        """Keep what is forecast.

        Args:
            samples: Training samples.
            features: Features of the samples for a row of their own; None without.
            groups: Number of the group of each sample; None without groups.
            budget: CPU seconds.
            seed: Seed of all random numbers.
            with_curve: Whether to compute the learning curve.
            repeats: Number of samples that repeat one, and of those with another target.
        """
        self.samples = samples
        self.features = features
        self.groups = groups
        self.budget = budget
        self.seed = seed
        self.with_curve = with_curve
        self.targets = samples.y.cpu()
        self.n_classes = int(samples.y.max()) + 1 if samples.is_classification else None
        self.repeats = repeats
        self.prepared: Ready | None = None
        self.rows: list[LooRow] = []
        self.curve: tuple[LearningCurvePoint, ...] = ()
        self.notes: list[str] = []
        # at least as many columns as samples
        self.is_wide = False
        self.interrupted = False

    def prepare(self, network: nn.Module, head: str | nn.Module | None) -> None:
        """Take the network whose rows are wanted, with its new last layer if there is one."""
        if head is not None:
            network = with_new_head(network, self.samples, head, self.n_classes, self.seed)
        self.prepared = ready(network, self.samples, needs=("outputs",))
        self.notes += [note for note in self.prepared.notes if note not in self.notes]
        if self.n_classes is not None:
            self.n_classes = max(self.n_classes, self.prepared.n_outputs)

    def compute(self, options: dict[str, Any], bar: NullProgress) -> None:
        """Compute the rows and the curve, cheapest first.

        Args:
            options: Options of `kernel_leave_one_out`.
            bar: Shows what is being done.
        """
        inputs = sample_features(self.samples)
        self.is_wide = inputs.shape[1] >= len(self.samples)
        bar.step("baselines")
        squares = squared_distances(inputs)
        self.rows += loo_baselines(
            inputs,
            self.targets,
            n_classes=self.n_classes,
            squares=squares,
            groups=self.groups,
            affords=self._affords,
        )
        self.notes += _rows_left_out(self.rows, inputs, self.budget)
        bar.advance()
        if self.features is not None:
            values = features_of_samples(self.features, self.samples)
            self.rows.append(features_row(values, self.targets, self.n_classes, self.groups))
        if self.prepared is not None:
            bar.step("network")
            add_network_rows(
                self.rows,
                self.notes,
                self.prepared,
                self.n_classes,
                options,
                self.budget,
                self.seed,
                self.groups,
            )
        bar.advance()
        bar.step("learning curve")
        if self.with_curve:
            self._add_curve(inputs, squares)
        bar.advance()

    def _affords(self, seconds: float) -> bool:
        """Return whether a row fits; those without a network of less than a CPU second are computed in any case."""
        return seconds < 1.0 or self.budget.affords(seconds)

    def _add_curve(self, inputs: Tensor, squares: Tensor | None) -> None:
        """Compute the learning curve of the RBF row, if there is one and the time allows it."""
        rbf = next((row.score for row in self.rows if row.method == RBF), None)
        if rbf is None:
            return
        if not self._affords(curve_seconds(inputs, self.rows[0].predictions.shape[1])):
            passed = f"{self.budget.passed:.3g}"
            self.notes.append(f"The learning curve was omitted to keep time_budget={passed}.")
            return
        score = mean_score(self._combined())
        self.curve = learning_curve_points(
            inputs, squares, self.targets, self.n_classes, rbf, score, self.seed, self.groups
        )

    def _combined(self) -> tuple[LooRow, ...]:
        """Return the rows whose mean is the forecast."""
        is_large_network = self.prepared is not None and is_large(self.prepared.bare)
        large = is_large_network or self.features is not None
        return combine_rows(self.rows, self.targets, large=large, wide=self.is_wide)

    def result(self) -> AccuracyForecast:
        """Return the forecast of the rows that are finished."""
        targets = self.targets
        combined = self._combined()
        score = mean_score(combined)
        growth = None
        if self.features is not None or _are_vectors(self.samples):
            growth = growth_per_doubling(self.curve)
        unequal = None
        low = high = math.nan
        if self.n_classes is not None:
            low, high = forecast_interval(score, independent_predictions(combined, targets), growth)
            if are_unequal(targets):
                unequal = ClassScores.mean(
                    [class_scores(row.predictions, targets) for row in combined]
                )
        by_name = {row.name: row for row in self.rows}
        network_gain = None
        if {NTK, RBF} <= by_name.keys():
            network_gain = paired_gain(by_name[NTK], by_name[RBF], targets)
        duplicates, contradicting = self.repeats
        return AccuracyForecast(
            task=self.samples.kind,
            samples=len(self.samples),
            score=score,
            low=low,
            high=high,
            score_name=self.samples.task.score_name,
            combined=tuple(row.method for row in combined),
            rows=tuple(self.rows),
            network_gain=network_gain,
            curve=self.curve,
            abstained_because=reason_to_abstain(self.rows, targets),
            duplicates=duplicates,
            contradicting_duplicates=contradicting,
            groups=None if self.groups is None else int(self.groups.max()) + 1,
            notes=tuple(self.notes),
            unequal_classes=unequal,
            interrupted=self.interrupted,
        )
