"""Sampling error of the mean of scores whose samples come in groups, such as several recordings of each patient."""

from __future__ import annotations

import math

import numpy
from jaxtyping import Float, Int

from gapscope.statistics.intervals import normal_quantile, student_quantile

Array = numpy.ndarray
# two correct and two wrong samples, added to the fraction that a variance is computed from (Agresti and Coull 1998)
ADDED = 2


def variance_of_mean(scores: Float[Array, " n"], groups: Int[Array, " n"]) -> float:
    r"""Return the variance of the mean of scores with independent groups.

    $\frac{G}{G-1} \sum_g \left(\sum_{i \in g} (s_i - \bar s)\right)^2 / n^2$ over $G$ groups; with one sample per group
    the squared standard error of a mean. Scores that are all 0 or 1 (wrong or correct) have at least the variance of a
    fraction with two correct and two wrong samples added (Agresti and Coull 1998), so that a few correct samples alone
    do not give a variance of 0.

    Of larger groups it is multiplied by the squared ratio of the Student to the normal 90 % quantile for G - 1 degrees
    of freedom, so that normal intervals of it hold for few groups. If all of them have the same mean, their number
    counts, not that of the samples: nothing is known of how groups differ. In a simulation of 96 kinds of groups (3 to
    45 of 5 or 20 samples) 90 % intervals covered .93 on average, below .85 in 7 %; without both .81, and .05 at worst.

    Args:
        scores: Score of each sample.
        groups: Group of each sample, any numbers.

    Returns:
        The variance; infinite for a single group.
    """
    n = len(scores)
    groups = numpy.unique(groups, return_inverse=True)[1]
    sums = numpy.bincount(groups, weights=scores - scores.mean())
    n_groups = len(sums)
    if n_groups < 2:
        return math.inf
    variance = float((sums**2).sum()) / n**2 * n_groups / (n_groups - 1)
    if set(numpy.unique(scores)) <= {0.0, 1.0}:
        fraction = (scores.sum() + ADDED) / (n + 2 * ADDED)
        if numpy.allclose(sums, 0):
            n_independent = n_groups
        else:
            n_independent = n
        variance = max(variance, float(fraction * (1 - fraction)) / n_independent)
    if n_groups < n:
        variance *= (student_quantile(0.9, n_groups - 1) / normal_quantile(0.9)) ** 2
    return variance


def independent_samples(correct: Float[Array, " n"], groups: Int[Array, " n"]) -> float:
    """Return the number of independent samples whose fraction has the variance of that of samples in groups.

    Args:
        correct: Whether each sample is correct, 0 to 1.
        groups: Group of each sample, any numbers.

    Returns:
        From 1 to the number of samples n.
    """
    n = float(len(correct))
    variance = variance_of_mean(correct, groups)
    if not variance:  # fractions of several labels, all equal
        return n
    # a fraction of 1 is no certainty
    cautious = float(correct.sum() + ADDED) / (n + 2 * ADDED)
    return min(max(cautious * (1 - cautious) / variance, 1.0), n)
