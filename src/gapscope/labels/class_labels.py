"""Ranking and rate of errors in class labels, from held-out scores of the classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.budget import CpuBudget
from gapscope.base.errors import InvalidInput
from gapscope.base.lone_classes import describe_lone_classes, is_in_one_group
from gapscope.base.samples import Samples
from gapscope.labels.duplicates import exact_repeats
from gapscope.labels.error_model import ErrorProbabilities, error_probabilities
from gapscope.labels.kernel_views import ClassView, best_view
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.labels.second_opinion import SecondOpinion, forest_opinion
from gapscope.statistics.baselines import LooRow, sample_features

# Flagged labels are more likely wrong than right.
MIN_PROBABILITY = 0.5
# In classes of up to three samples two others speak for the label, so that clean ones look wrong by chance: of 200
# such classes 4 of 600 clean labels were flagged at 0.5, 0.5 at 0.9 (means of 12 draws of overlapping Gaussians).
# From there the probability falls linearly to 0.5 in classes of ten samples.
FEW_SAMPLES, MIN_PROBABILITY_OF_FEW, MANY_SAMPLES = 3, 0.9, 10
# Log likelihood, in nats, by which each expected error in a class of m samples has to improve on a fit without noise:
# this over m. Clean classes of four to eight overlapping Gaussians gained 0.3 to 1.5 nats per flagged label (1.8 to
# 2.9 in four draws that had at most five), and with errors at 5 to 20 % lists that held what they promised 1.4 to 5.
NATS_PER_ERROR = 8.0
# Below this mean probability that the forest gives to flagged labels, it does not hold them for errors. On clean but
# hard tables of 1,000 and 4,000 rows it gave 0.00 to 0.24 (to four lists of at most six 0.4 to 0.8, to one of 70
# 0.45, where the accuracy excludes a promise), with errors planted evenly at 5 to 20 % into digits, wine, breast
# cancer, iris, blobs and four hard tables 0.51 to 0.92.
MIN_CONFIRMED = 0.3
# Errors near the borders of the classes are followed by the forest (0.09 to 0.8). From this accuracy on clean labels,
# a rate whose interval excludes 0 needs no confirmation: on hard clean tables whose interval excluded 0 it was 0.86,
# and in one draw of six overlapping Gaussians 0.91, with a lower end of 0.005.
SAFE_FROM = 0.9
# by judgment
MAX_BEHIND = 0.05


def assess_labels(
    view: ClassView,
    labels: Int[Tensor, " n"],
    groups: Int[Tensor, " n"] | None = None,
    opinion: SecondOpinion | None = None,
    *,
    of_positions: bool = False,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Rank class labels [n] by the probability that they are wrong, and estimate their noise.

    Args:
        view: Held-out scores of the classes.
        labels: Given labels, columns of the scores.
        groups: Group of each label, without which it was predicted: the sample, if the labels are those of positions.
        opinion: What a forest holds of the labels; None if it was not asked.
        of_positions: Whether the labels are those of positions (tokens, pixels).

    Returns:
        The ranking and the rate. Labels of a class that occurs in one group alone come last, with NaN for their
        probabilities, and do not count in the rate: without their group no prediction knows the class.

    Raises:
        InvalidInput: Every class occurs in one group alone.
    """
    labels = labels.to(view.scores.device)
    checked = torch.ones_like(labels, dtype=torch.bool)
    if groups is not None:
        groups = groups.to(labels.device)
        checked = ~is_in_one_group(labels, groups)
    if view.is_certain:
        # contradicted with the largest confidence, whether wrong or mistaken: none is known to be wrong
        confident = 0.0
    elif opinion is None:
        confident = 1.0
    else:
        confident = opinion.confident
    found = error_probabilities(
        view.scores[checked],
        labels[checked],
        view.temperatures,
        None if groups is None else groups[checked],
        confident,
        of_positions=of_positions,
    )
    noise = _noise_estimate(found, view.predictions[checked], labels[checked])
    is_doubted = view.is_certain
    if not of_positions:
        is_doubted = is_doubted or found.gain < _needed_gain(found, labels[checked])
    found = _with_unchecked(found, checked)
    is_flagged = found.error >= _least_probability(labels)
    if view.is_certain:
        is_flagged = torch.zeros_like(is_flagged)
    if opinion is not None:
        is_doubted = is_doubted or _is_unconfirmed(opinion, is_flagged.cpu(), view, labels, noise)
    noise = noise.bounded_if_hard(hard=is_doubted)
    return replace(_rank(view, labels, found, is_flagged, noise), method=view.method), noise


def _with_unchecked(found: ErrorProbabilities, checked: Tensor) -> ErrorProbabilities:
    """Return the probabilities of the checked labels with those of all others: NaN, last in the order."""

    def of_all(values: Tensor, other: float) -> Tensor:
        result = torch.full(checked.shape, other, dtype=values.dtype, device=values.device)
        result[checked] = values
        return result

    return replace(
        found,
        error=of_all(found.error, math.nan),
        suggestion=of_all(found.suggestion, math.nan),
        order=of_all(found.order, -math.inf),
    )


def assess_with_second_opinion(
    view: ClassView,
    labels: Int[Tensor, " n"],
    samples: Samples,
    groups: Int[Tensor, " n"] | None = None,
    *,
    seed: int,
    seconds: float = math.inf,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess labels [n]; where errors are found, a forest on the inputs is asked whether it finds them too.

    Args:
        view: Held-out scores of the classes.
        labels: Given labels, columns of the scores.
        samples: Samples with the inputs.
        groups: Group of each sample, which predicts none of its own samples.
        seed: Seed of the forest.
        seconds: CPU seconds that are left.
    """
    issues, noise = assess_labels(view, labels, groups)
    if noise.abstained_because or noise.is_upper_bound or not (issues.n_flagged or noise.low > 0):
        return issues, noise
    features = sample_features(samples)
    opinion = forest_opinion(features, labels, groups, seed=seed, seconds=seconds)
    return assess_labels(view, labels, groups, opinion)


def _least_probability(labels: Int[Tensor, " n"]) -> Tensor:
    """Return the probability of an error from which each label is flagged: higher in classes of few samples."""
    _, codes, counts = labels.unique(return_inverse=True, return_counts=True)
    fewness = (MANY_SAMPLES - counts[codes].double()) / (MANY_SAMPLES - FEW_SAMPLES)
    return MIN_PROBABILITY + (MIN_PROBABILITY_OF_FEW - MIN_PROBABILITY) * fewness.clamp(0, 1)


def _needed_gain(found: ErrorProbabilities, labels: Int[Tensor, " n"]) -> float:
    """Return the log likelihood that the likely errors have to gain, the more the fewer samples their classes have."""
    counts = labels.bincount()[labels].double()
    return NATS_PER_ERROR * float((1 / counts)[found.error >= MIN_PROBABILITY].sum())


def _is_unconfirmed(
    opinion: SecondOpinion,
    is_flagged: Tensor,
    view: ClassView,
    labels: Int[Tensor, " n"],
    noise: LabelNoiseEstimate,
) -> bool:
    """Return whether a hard problem is not excluded, because the forest does not find the errors."""
    listed = is_flagged[opinion.rows]
    if bool(listed.any()) and float(opinion.error[listed].mean()) >= MIN_CONFIRMED:
        return False
    if noise.low == 0:
        return True
    # a forest that predicts much less knows no better
    agreed = (view.predictions == labels).cpu()[opinion.rows].double().mean()
    is_heard = opinion.accuracy >= float(agreed) - MAX_BEHIND
    return is_heard and noise.clean_accuracy < SAFE_FROM


def refuse_repeats(
    samples: Samples, issues: LabelIssues, noise: LabelNoiseEstimate
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Return the ranking without probabilities and rate, if half of the samples or more share their inputs.

    A copy predicts the label of its copy, right or wrong, and of equal inputs with different labels either may be
    right: an error cannot be told from an input to which both labels belong.

    Args:
        samples: The samples.
        issues: Their ranking.
        noise: The rate.
    """
    repeats = exact_repeats(samples)
    n_shared = len({i for pair in repeats for i in pair})
    # from half of the samples with inputs that others have too, no error can be told: of nine such tables among 50
    # data sets, four were answered with a precision of 0.8 or more, and lists held 0.10 to 0.39.
    if n_shared < 0.5 * len(samples):
        return issues, noise
    reason = (
        f"The rate of label noise cannot be estimated: {n_shared:,} of {len(samples):,} samples have the same inputs "
        f"as another one (different inputs: {len(samples) - len(repeats):,}). An error cannot be told from an input to "
        "which two labels belong. Drop repeated rows, or pass more columns."
    )
    nothing = torch.empty(0)
    issues = replace(
        issues, n_flagged=0, expected_precision=math.nan, noise=None, note=reason, probability=nothing,
        error_probability=nothing, precision_curve=nothing,
    )  # fmt: skip
    return issues, replace(noise, refused=reason)


def _noise_estimate(
    found: ErrorProbabilities, predicted: Tensor, labels: Tensor
) -> LabelNoiseEstimate:
    return LabelNoiseEstimate(
        found.rate,
        found.low,
        found.high,
        found.clean_accuracy,
        len(labels),
        accuracy=float((predicted == labels).double().mean()),
        most_frequent=float(labels.unique(return_counts=True)[1].max()) / len(labels),
    ).bounded_if_hard()


def _rank(
    view: ClassView,
    labels: Tensor,
    found: ErrorProbabilities,
    is_flagged: Tensor,
    noise: LabelNoiseEstimate,
) -> LabelIssues:
    order = found.order.argsort(descending=True, stable=True)
    # the probability from which labels are flagged is not that of all classes
    order = order[is_flagged[order].int().argsort(descending=True, stable=True)]
    error = found.error[order].cpu()
    suggestion = found.suggestion[order].cpu()
    curve = torch.empty(0)
    n_flagged = 0
    expected = math.nan
    reason = noise.abstained_because
    if reason:
        # where the rate could be anything, so could the probability of each error
        error = suggestion = torch.empty(0)
    else:
        n_flagged = int(is_flagged.sum())
    if not reason and not noise.is_upper_bound:
        curve = error.cumsum(0) / torch.arange(1, len(error) + 1)
        if n_flagged:
            expected = float(curve[n_flagged - 1])
        else:
            expected = math.nan
    return LabelIssues(
        indices=order.cpu(),
        given_labels=labels[order].cpu(),
        suggested_labels=view.predictions[order].cpu(),
        margin=margins_of(view.scores, labels)[order].cpu(),
        n_flagged=n_flagged,
        expected_precision=expected,
        noise=None if reason else noise,
        note=reason,
        probability=suggestion,
        error_probability=error,
        precision_curve=curve,
        log_odds=found.order[order].cpu(),
    )


def assess_classes(
    network: nn.Module | None,
    samples: Samples,
    *,
    seed: int,
    budget: CpuBudget | None = None,
    rows: Sequence[LooRow] = (),
    groups: Int[Tensor, " n"] | None = None,
    known: Float[Tensor, "n d"] | None = None,
) -> tuple[LabelIssues, LabelNoiseEstimate]:
    """Assess class labels by the best held-out predictions of the classes that occur.

    Args:
        network: Untrained network, or None.
        samples: Samples with class labels.
        seed: Seed of the landmarks and the folds.
        budget: CPU seconds for the rows of the network; None for no limit.
        rows: Rows of a forecast of these samples without a network, see `best_view`.
        groups: Group of each sample, which predicts none of its own samples.
        known: Last hidden features of a network, in place of the network.

    Raises:
        InvalidInput: No input varies.
    """
    # labels may be far apart, as identifiers are: only classes that occur get a column
    classes, codes = samples.y.cpu().unique(return_inverse=True)
    view, notes = best_view(
        network, samples, codes, len(classes), seed=seed, budget=budget, rows=rows, groups=groups,
        known=known,
    )  # fmt: skip
    if view is None:
        raise InvalidInput(
            "No input varies between the samples, so no label can be checked. Pass other features."
        )
    seconds = math.inf if budget is None else budget.remaining
    issues, noise = assess_with_second_opinion(
        view, codes, samples, groups, seed=seed, seconds=seconds
    )
    if groups is not None and (
        note := describe_lone_classes(samples.y, groups, samples.class_names)
    ):
        notes.append(f"{note}, and these labels are not checked.")
    named = replace(
        issues,
        given_labels=classes[issues.given_labels],
        suggested_labels=classes[issues.suggested_labels],
        notes=tuple(notes),
    )
    return named, noise
