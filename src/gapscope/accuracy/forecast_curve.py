"""Learning curve of a forecast: scores of the RBF ridge on subsets, and their extrapolation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gapscope.accuracy.forecast_result import LearningCurvePoint
from gapscope.base.randomness import derive_seed
from gapscope.statistics.baselines import RBF, baseline_seconds, rbf_ridge

# Two halvings suffice for a power law; above so many samples the scores of subsets hardly differ: by judgment.
SUBSET_FRACTIONS, N_SUBSETS, ONE_SUBSET_ABOVE = (0.25, 0.5), 3, 5000


def extrapolate_power_law(points: Sequence[tuple[int, float]], samples: int) -> float:
    r"""Extrapolate a score by a least-squares power law $1 - s(n) \propto n^{-b}$."""
    import numpy

    last = points[-1][1]
    sizes = numpy.log([n for n, _ in points])
    errors = numpy.log([max(1 - score, 1e-6) for _, score in points])
    slope = min(0.0, float(numpy.polyfit(sizes, errors, 1)[0]))
    return 1 - (1 - last) * (samples / points[-1][0]) ** slope


def learning_curve_points(
    features: Tensor,
    squares: Tensor | None,
    targets: Tensor,
    n_classes: int | None,
    rbf_score: float,
    score: float,
    seed: int,
    groups: Tensor | None,
) -> tuple[LearningCurvePoint, ...]:
    """Return RBF scores on random subsets (of whole groups but one), shifted to the forecast and extrapolated.

    There are no points if a subset has a single group, which nothing predicts.
    """
    n = len(features)
    points: list[tuple[int, float]] = []
    for fraction in SUBSET_FRACTIONS:
        size = max(3, round(fraction * n))
        scores: list[float] = []
        for draw in range(min(N_SUBSETS, round(1 / fraction)) if n <= ONE_SUBSET_ABOVE else 1):
            generator = torch.Generator().manual_seed(
                derive_seed(seed, f"subset {fraction} {draw}")
            )
            subset = _random_rows(n, groups, generator)[:size].to(features.device)
            numbers = None
            if groups is not None:
                numbers = groups[subset].unique(return_inverse=True)[1]
                if not bool(numbers.any()):
                    return ()
            if squares is None:
                part = None
            else:
                part = squares[subset][:, subset]
            scores.append(
                rbf_ridge(
                    features[subset],
                    targets[subset],
                    n_classes=n_classes,
                    squares=part,
                    groups=numbers,
                ).score
            )
        points.append((size, sum(scores) / len(scores)))
    points.append((n, rbf_score))
    points = [(size, value + score - rbf_score) for size, value in points]
    doubled = extrapolate_power_law(points, 2 * n)
    return (
        *(LearningCurvePoint(*point) for point in points),
        LearningCurvePoint(2 * n, doubled, extrapolated=True),
    )


def _random_rows(n: int, groups: Tensor | None, generator: torch.Generator) -> Tensor:
    """Return n rows in a random order, in which those of each group follow each other."""
    if groups is None:
        return torch.randperm(n, generator=generator)
    place = torch.randperm(int(groups.max()) + 1, generator=generator)
    return place[groups].argsort(stable=True)


def growth_per_doubling(curve: Sequence[LearningCurvePoint]) -> float | None:
    """Return the gain of the score per doubling of the samples, None without a curve.

    Args:
        curve: Points of a learning curve, ordered by size.
    """
    measured = [point for point in curve if not point.extrapolated]
    if len(measured) < 2:
        return None
    first = measured[0]
    last = measured[-1]
    return (last.score - first.score) / math.log2(last.samples / first.samples)


def curve_seconds(features: Tensor, n_targets: int) -> float:
    """Return rough CPU seconds of the learning curve."""
    n, d = features.shape
    total = 0.0
    for fraction in SUBSET_FRACTIONS:
        if n <= ONE_SUBSET_ABOVE:
            draws = min(N_SUBSETS, round(1 / fraction))
        else:
            draws = 1
        total += draws * baseline_seconds(max(3, round(fraction * n)), d, n_targets)[RBF]
    return total
