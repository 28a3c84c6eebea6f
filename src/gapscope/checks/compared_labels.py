"""Test labels that contradict what the training samples predict: a part of GS110."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from scipy.sparse.csgraph import connected_components  # pyright: ignore
from torch import Tensor

from gapscope.accuracy.held_out_positions import hold_out_positions
from gapscope.base.samples import Samples
from gapscope.base.second_data import join_samples
from gapscope.checks.costs import thinned
from gapscope.labels.collected_samples import with_features
from gapscope.measures.embed import extract_features
from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.statistics.baselines import (
    PRESENT,
    RBF,
    RIDGES,
    fitted_units,
    rbf_spectrum,
    sample_features,
    target_matrix,
)
from gapscope.statistics.intervals import r_squared_interval, wilson_interval
from gapscope.statistics.leave_group_out import LeaveGroupOut, select_held_out
from gapscope.statistics.renumbering import (
    Renumbering,
    class_marks,
    find_renumbering,
    mark_correlations,
)

if TYPE_CHECKING:
    from gapscope.checks.context import Context

# samples of each set of which the kernel is exact, by judgment
MAX_TRAIN, MAX_TEST = 1000, 500


@dataclass(frozen=True)
class PredictedLabels:
    """Held-out predictions of some samples, one per sample or position.

    Attributes:
        scores: Scores of the classes or labels, or predicted targets, [m, K].
        targets: Their labels or targets.
        samples: Index of the sample of each, [m].
    """

    scores: Tensor
    targets: Tensor
    samples: Tensor

    def part(self, start: int, stop: float = math.inf) -> PredictedLabels:
        """Return those of some samples, which are numbered from 0 on then.

        Args:
            start: Number of the first one.
            stop: Number after the last one.
        """
        rows = (self.samples >= start) & (self.samples < stop)
        return PredictedLabels(self.scores[rows], self.targets[rows], self.samples[rows] - start)

    def marks(self, n_classes: int) -> tuple[Tensor, Tensor]:
        """Return which classes are predicted and given, [m, C] each.

        Args:
            n_classes: Number of classes C; used where there is one class.
        """
        if self.targets.dtype == torch.bool:
            return self.scores > PRESENT, self.targets
        return (
            class_marks(self.scores.argmax(1), n_classes),
            class_marks(self.targets, n_classes),
        )

    @property
    def errors(self) -> Tensor:
        """Errors per sample [n, k]: of targets and labels each, of one class and of positions the fraction."""
        if self.targets.is_floating_point() or self.targets.dtype == torch.bool:
            predicted = self.scores if self.targets.is_floating_point() else self.scores > PRESENT
            targets = self.targets.double().reshape(len(self.targets), -1)
            return (predicted.double().reshape(targets.shape) - targets).abs()
        wrong = (self.scores.argmax(1) != self.targets).double()
        counts = self.samples.bincount()
        return (self.samples.bincount(wrong) / counts)[counts > 0, None]

    @property
    def score(self) -> IntervalEstimate:
        """Accuracy, or R^2 of regression, with its 90 % interval."""
        if not self.targets.is_floating_point():
            accuracy = 1 - float(self.errors.mean())
            return IntervalEstimate(accuracy, *wilson_interval(accuracy, len(self.errors)))
        truth = self.targets.double().reshape(len(self.targets), -1)
        predicted = self.scores.double().reshape(truth.shape)
        return IntervalEstimate(*r_squared_interval(predicted.numpy(), truth.numpy()))


@dataclass(frozen=True)
class ComparedLabels:
    """How labels of the test samples differ from what the training samples predict.

    Attributes:
        method: Name of the method that predicts.
        errors: Errors of held-out training samples [n, k], and of test samples [m, k].
        scores: Accuracy, or R^2 of regression, on both.
        renumbering: Classes whose numbers are read as others; None if there are none.
        falls: Names of targets that fall where the method predicts that they rise.
    """

    method: str
    errors: tuple[Tensor, Tensor]
    scores: tuple[IntervalEstimate, IntervalEstimate]
    renumbering: Renumbering | None = None
    falls: tuple[str, ...] = ()

    @property
    def loss(self) -> IntervalEstimate:
        """What the method loses on the test samples; 0 if that is not significant, NaN if targets do not vary."""
        first, second = self.scores
        value = first.value - second.value
        low = value - math.hypot(first.value - first.low, second.high - second.value)
        high = value + math.hypot(first.high - first.value, second.value - second.low)
        return IntervalEstimate(0.0, 0.0, 0.0) if low <= 0 else IntervalEstimate(value, low, high)


def _of_positions(samples: Samples, groups: Tensor | None, seed: int) -> dict[str, PredictedLabels]:
    """Return held-out predictions of positions by each method."""
    found = hold_out_positions(None, samples, seed=seed, groups=groups)
    at = found.positions
    return {
        name: PredictedLabels(scores, at.labels, at.samples)
        for name, scores in found.scores.items()
    }


def _near_groups(features: Tensor, n: int, have_moved: bool = False) -> Tensor:
    """Return the group of each of the first n rows: rows nearer to each other than the others are to them.

    Recordings of one person, or copies, predict each other better than they predict new samples. No group has more than
    half of the rows, so that there are others to predict it.

    Args:
        features: Features [n + m, d].
        n: Number of training samples.
        have_moved: Whether inputs of the others moved, whose distances among themselves tell then how near is near.
    """
    distances = torch.cdist(features[:n], features)
    apart = distances[:, n:]
    if have_moved:
        apart = torch.cdist(features[n:], features[n:]).fill_diagonal_(math.inf)
    # equal distances are no nearer ones, but for rounding
    rounding = 1e-6 * distances.amax()
    radius = apart.amin(0).median() - rounding
    while radius > rounding:
        near = (distances[:, :n] < radius).numpy()
        groups = torch.from_numpy(connected_components(near, directed=False)[1]).long()
        if groups.bincount().max() <= n / 2:
            return groups
        radius = radius / 2
    return torch.arange(n)


def _predicted(
    both: Samples, n: int, seed: int, have_moved: bool
) -> tuple[str, PredictedLabels, PredictedLabels]:
    """Return the method, held-out predictions of the first n samples, and by these alone those of the others."""
    groups = torch.arange(len(both)).clamp(max=n)
    if both.kind == "positions":
        first = _of_positions(both.subset(torch.arange(n)), None, seed)
        second = _of_positions(both, groups, seed)
        common = [name for name in first if name in second]
        method = min(common, key=lambda name: float(first[name].errors.mean()))
        return method, first[method], second[method].part(n)
    targets = both.y.cpu()
    columns = target_matrix(targets)
    units = fitted_units(targets)
    features = sample_features(both).double()
    kernel = rbf_spectrum(features[:n])
    # the test labels have no part in the choice of the ridge
    near = _near_groups(features, n, have_moved)
    ridge, held_out = select_held_out(kernel, columns[:n] / units, RIDGES, near)
    kernel = rbf_spectrum(features)
    others = LeaveGroupOut(kernel, columns / units, groups).predictions(ridge * kernel.mean)
    predictions = torch.cat([held_out, others[n:]]) * units
    every = PredictedLabels(predictions, targets, torch.arange(len(both)))
    return RBF, every.part(0, n), every.part(n)


def compare_labels(context: Context, test: Samples, have_moved: bool) -> ComparedLabels | None:
    """Return how the test labels differ from what the training samples predict; None if nothing predicts them.

    Test samples are predicted from the training samples alone: all of them are one group that is left out.

    Args:
        context: What the checks use.
        test: Test samples with labels.
        have_moved: Whether their inputs are known to differ from those of the training samples.
    """
    parts = [
        samples.subset(thinned(len(samples), most))
        for samples, most in ((context.distinct, MAX_TRAIN), (test, MAX_TEST))
    ]
    if context.pretrained is not None:
        network = context.pretrained.network
        parts = [with_features(part, extract_features(network, part).values) for part in parts]
    both = join_samples(*parts)
    if both.kind != "positions" and not sample_features(both).shape[1]:
        return None
    method, train, second = _predicted(both, len(parts[0]), context.seed, have_moved)
    errors = train.errors, second.errors
    scores = train.score, second.score
    if test.kind == "regression":
        predicted, given = (
            part.double().reshape(len(errors[1]), -1) for part in (second.scores, second.targets)
        )
        slopes = ((predicted - predicted.mean(0)) * (given - given.mean(0))).sum(0)
        names = test.target_names("target") if given.shape[1] > 1 else ("the target",)
        falls = tuple(name for name, slope in zip(names, slopes.tolist(), strict=True) if slope < 0)
        return ComparedLabels(method, errors, scores, falls=falls)
    n_classes = max(int(labels.max()) for labels in (train.targets, second.targets)) + 1
    renumbering = find_renumbering(
        *second.marks(n_classes), mark_correlations(*train.marks(n_classes))
    )
    return ComparedLabels(method, errors, scores, renumbering)


def in_words(renumbering: Renumbering, names: tuple[str, ...], most: int) -> str:
    """Return a renumbering as text.

    Args:
        renumbering: The renumbering.
        names: Names of the classes or labels; empty for their numbers.
        most: Number of classes that are named.
    """
    pairs = [
        tuple(names[i] if i < len(names) else str(i) for i in pair)
        for pair in renumbering.read_as.items()
    ]
    listed = ", ".join(f"{given} read as {predicted}" for given, predicted in pairs[:most])
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return f"{percent(renumbering.before)} of the labels, {percent(renumbering.after)} with {listed}{more}"
