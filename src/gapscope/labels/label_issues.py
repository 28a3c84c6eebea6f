"""Label noise and label issues: before training, or from one monitored training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, CpuBudget
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.foreign_data import as_frame
from gapscope.base.groups import group_tensor
from gapscope.base.random_streams import make_generator
from gapscope.base.samples import Samples
from gapscope.base.second_data import as_second, joined_notes
from gapscope.data.frames import encode_inputs
from gapscope.data.named_columns import column_by_name, lacks_labels
from gapscope.data.table_targets import split_frames
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.network_checks import check_module
from gapscope.inspection.wrapped_networks import unwrap_estimator
from gapscope.labels.class_labels import assess_classes, assess_with_second_opinion, refuse_repeats
from gapscope.labels.collected_samples import check_label_order, collect_samples, with_features
from gapscope.labels.conflicting_copies import conflicting_duplicates, conflicts_in_test
from gapscope.labels.copied_inputs import leaking_column_note
from gapscope.labels.corrections import with_class_masks
from gapscope.labels.duplicates import (
    MAX_SAMPLES,
    ONLY_EXACT,
    beyond_chance,
    compares_all_pairs,
    duplicate_pairs,
    duplicates_in_test,
)
from gapscope.labels.given_predictions import assess_given
from gapscope.labels.kernel_views import ClassView, kernel_class_view, target_views
from gapscope.labels.monitored import get_monitored_labels, trained_samples
from gapscope.labels.noise_rate import margins_of
from gapscope.labels.position_labels import assess_positions
from gapscope.labels.prediction_columns import as_table, match_predictions
from gapscope.labels.raw_columns import refuse_words
from gapscope.labels.regression_targets import assess_targets, note_on_whole_numbers
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.labels.sample_details import sample_details
from gapscope.labels.several_labels import assess_several_labels
from gapscope.labels.spent_budget import with_spent_budget
from gapscope.statistics.baselines import RBF, LooRow, rbf_spectrum, sample_features
from gapscope.statistics.integer_inputs import settle_integers
from gapscope.statistics.row_groups import SHARED_ERRORS, grouped_rows_note

# the ranking, and the rate whether it is reliable or not
Assessment = tuple[LabelIssues, LabelNoiseEstimate]


def _ranked(
    network: nn.Module | None,
    samples: Samples,
    pred_probs: Any,
    seed: int,
    budget: CpuBudget,
    has_inputs: bool,
    rows: Sequence[LooRow],
    groups: Tensor | None = None,
    known: Tensor | None = None,
) -> Assessment:
    """Rank labels or targets by the held-out predictions of the smallest error."""
    matching: tuple[str, ...] = ()
    if groups is not None and pred_probs is not None:
        raise InvalidInput("Got groups as well as pred_probs, which are held out. Omit groups.")
    if pred_probs is not None:
        pred_probs, matching = match_predictions(pred_probs, samples)
    if samples.kind == "positions":
        return assess_positions(
            network,
            samples,
            pred_probs=pred_probs,
            groups=groups,
            with_inputs=has_inputs,
            seed=seed,
        )
    if samples.kind == "multi-label":
        issues, noise = assess_several_labels(
            network,
            samples,
            pred_probs=pred_probs,
            groups=groups,
            budget=budget,
            with_inputs=has_inputs,
            known=known,
        )
    elif pred_probs is not None:
        issues, noise = assess_given(pred_probs, samples, with_inputs=has_inputs, seed=seed)
        issues = replace(issues, notes=(*matching, *issues.notes))
    elif samples.is_classification:
        issues, noise = assess_classes(
            network, samples, seed=seed, budget=budget, rows=rows, groups=groups, known=known
        )
    else:
        views, notes = target_views(
            network, samples, seed=seed, budget=budget, groups=groups, known=known
        )
        if not views:
            raise InvalidInput(
                "No input varies between the samples, so no target can be checked. Pass other features."
            )
        issues, noise = assess_targets(views[0], samples.y, seed)
        issues = replace(issues, notes=(*notes, *issues.notes))
    if samples.kind == "regression":
        # as passed, without the rounding of units
        given = samples.y.detach().cpu().flatten()[issues.indices.cpu()]
        note = note_on_whole_numbers(samples.y)
        notes = (*issues.notes, note) if note else issues.notes
        issues = replace(issues, given_labels=given, notes=notes)
    if not has_inputs or groups is not None:
        return issues, noise
    if samples.kind != "regression":
        issues, noise = refuse_repeats(samples, issues, noise)
    notes = (*grouped_rows_note(samples, SHARED_ERRORS), *leaking_column_note(samples))
    return replace(issues, notes=(*issues.notes, *notes)), noise


def _cheap_pairs(samples: Samples, budget: CpuBudget) -> list[tuple[int, int]] | None:
    """Return all duplicates before labels are ranked, if half of the budget suffices; None else."""
    seconds = budget.remaining / 2
    if compares_all_pairs(samples, seconds):
        return duplicate_pairs(samples, seconds=seconds)
    return None


def _with_copies(
    issues: LabelIssues,
    samples: Samples,
    budget: CpuBudget,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> LabelIssues:
    """Return the ranking with the copies that have different labels, in every task."""
    seconds = budget.remaining
    if pairs is None:
        if len(samples) <= MAX_SAMPLES and not compares_all_pairs(samples, seconds):
            issues = replace(issues, notes=(*issues.notes, ONLY_EXACT))
        pairs = duplicate_pairs(samples, seconds=seconds)
    conflicts = conflicting_duplicates(samples, pairs)
    if conflicts and not beyond_chance(samples, pairs):
        conflicts = ()
    return replace(issues, samples=samples, conflicts=conflicts)


def _with_copies_in_test(
    issues: LabelIssues, test: Any, passed: Any, budget: CpuBudget
) -> LabelIssues:
    """Return the ranking with the copies of training samples in the test set, those with different labels first.

    `passed` is the test set before raw frames were encoded.

    Raises:
        InvalidInput: The ranking is that of a monitor, without the data.
    """
    samples = issues.samples
    if samples is None:
        raise InvalidInput(
            "Got test data as well as a monitor. Pass test= with an untrained network or None."
        )
    second = as_second(test, samples)
    pairs = duplicates_in_test(samples, second, seconds=budget.remaining)
    conflicts = conflicts_in_test(samples, second, pairs)
    differing = set(conflicts)
    others = [pair for pair in pairs if pair not in differing]

    def with_rows(found: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        rows = second.original([j for _, j in found]).tolist()
        return tuple((i, row) for (i, _), row in zip(found, rows, strict=True))

    return replace(
        issues,
        test=second,
        notes=joined_notes(issues.notes, second),
        test_details=sample_details(passed, None, second.n_rows or len(second)),
        test_duplicates=with_rows([*conflicts, *others]),
        test_conflicts=with_rows(conflicts),
    )


def find_issues_of_samples(
    samples: Samples,
    rows: Sequence[LooRow],
    pairs: Sequence[tuple[int, int]] | None,
    *,
    seed: int,
    budget: CpuBudget,
    network: nn.Module | None = None,
    known: Tensor | None = None,
) -> LabelIssues:
    """Rank label issues as `find_label_issues(network, samples)` does, with what has been computed already.

    Args:
        samples: The samples.
        rows: Rows of the forecast of these samples without a network; empty to fit the kernels.
        pairs: Duplicates among the samples; None to search them.
        seed: Seed of the folds.
        budget: CPU seconds: boosted trees and near-duplicates are omitted if they take longer.
        network: Untrained network, or None.
        known: Last hidden features [n, d] of a network that has not fitted these labels, in place of the network.

    Raises:
        InvalidInput: See `find_label_issues`.
    """
    samples = collect_samples(network, samples, None, None, None)
    if pairs is None:
        pairs = _cheap_pairs(samples, budget)
    issues, _ = _ranked(
        network, samples, None, seed, budget, has_inputs=True, rows=rows, known=known
    )
    return _with_copies(issues, samples, budget, pairs).with_row_numbers()


def _assess_run(source: Any, seed: int) -> Assessment:
    """Assess the labels of a monitored run, and an RBF kernel of the inputs if known."""
    monitored = get_monitored_labels(source)
    noise = monitored.noise(make_generator(seed, "resampling"))
    samples = trained_samples(getattr(source, "monitor", source), monitored)
    if samples is None:
        return monitored.rank(noise), noise
    classes, labels = samples.y.unique(return_inverse=True)

    def rbf_view(samples: Samples, labels: Tensor) -> ClassView:
        return kernel_class_view(RBF, rbf_spectrum(sample_features(samples)), labels, len(classes))

    kernel_margins = margins_of(rbf_view(samples, labels).scores, labels)
    # The rate is that of the machine that predicts more unseen labels. The run alone does not suffice: it has few
    # canaries, and if its rate is far too high, `clean_accuracy` makes a hard problem appear easy.
    ordinary = ~monitored.is_canary
    without_canaries = samples.subset(torch.nonzero(ordinary).flatten())
    labels = labels[ordinary]
    _, kernel_noise = assess_with_second_opinion(
        rbf_view(without_canaries, labels), labels, without_canaries, seed=seed
    )
    if kernel_noise.accuracy >= noise.accuracy:
        noise = kernel_noise
    else:
        noise = noise.bounded_if_hard(hard=kernel_noise.is_upper_bound)
    return monitored.rank(noise, kernel_margins), noise


@explained_memory()
def _assess(
    source: Any,
    data: Any,
    features: Any,
    labels: Any,
    pred_probs: Any,
    groups: Any,
    seed: int,
    budget: CpuBudget,
) -> Assessment:
    if source is None or isinstance(source, nn.Module):
        pred_probs = as_table(pred_probs)
        samples = with_class_masks(collect_samples(source, data, features, labels, pred_probs))
        if source is None:
            samples = settle_integers(samples, are_numbers=labels is not None)
        has_inputs = data is not None or features is not None
        judged = samples
        if features is not None and data is not None:
            judged = with_features(samples, features)
        only_data = judged is samples
        numbers = group_tensor(samples.per_sample(groups), len(samples), "A search for errors")
        pairs = _cheap_pairs(samples, budget) if has_inputs else None
        issues, noise = _ranked(
            source,
            judged,
            pred_probs,
            seed,
            budget,
            has_inputs=has_inputs and only_data,
            rows=(),
            groups=numbers,
        )
        issues = replace(issues, samples=samples)
        if numbers is not None:
            issues = replace(issues, groups=int(numbers.max()) + 1)
        if has_inputs:  # pictures, rows and copies are those of the data
            issues = _with_copies(issues, samples, budget, pairs)
        return issues, noise
    if any(given is not None for given in (data, features, labels, pred_probs, groups)):
        run = getattr(source, "monitor", source)
        if not hasattr(run, "alarm") and not hasattr(run, "monitored_labels"):
            check_module(source)
        raise InvalidInput(
            f"Got data as well as a {type(source).__name__}, which has its data. Pass the monitor alone, or an "
            "untrained network (or None) with data."
        )
    return _assess_run(source, seed)


def _encoded(
    source: Any, data: Any, target: str | int | None, test: Any
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return data and test set with columns of numbers in place of raw frames, and notes about what was changed."""
    if target is not None:
        data, test = split_frames(data, test, target)
    elif hasattr(as_frame(data), "select_dtypes"):
        raise InvalidInput(
            f"Got a {type(data).__name__} alone; labels are needed. Name their column, target='label', or pass "
            "(frame, labels)."
        )
    elif missing := lacks_labels(data):
        raise InvalidInput(missing)
    elif source is not None:
        return data, test, ()
    encoded = encode_inputs(data, test)
    if target is not None:
        refuse_words(source, encoded[0])
    return encoded


@check_arguments
def estimate_label_noise(
    source: nn.Module | Any = None,
    data: Any = None,
    *,
    features: Any = None,
    labels: Any = None,
    pred_probs: Any = None,
    groups: Any = None,
    target: str | int | None = None,
    seed: int = 0,
    time_budget: float | None = DEFAULT_BUDGET,
) -> LabelNoiseEstimate:
    """Estimate the label noise rate: before training, or from one monitored training run.

    Before training, every label is compared with a prediction that does not depend on it: of the method with the
    smallest held-out cross-entropy among kernel machines (RBF or linear in the inputs, or, with an untrained network,
    that of its last hidden features or the NTK) and, on tables, boosted trees in five folds. The rate is the mean
    probability of an error (`gapscope.labels.error_model`). Errors may be uneven over the classes. The upper end of the
    interval is at least the fraction of labels that differ from the prediction, because these may all be wrong; the
    lower end is 0 if a hard problem is not excluded, because it looks the same as label noise: fewer than 85 % of clean
    labels are predicted, a random forest does not find the errors too (`gapscope.labels.second_opinion`), or classes
    have so few samples that errors and clean labels cannot be told apart. No rate is given if half of the samples or
    more have the same inputs as another one.

    For regression targets, a robust fit is used, and the rate is always an upper bound: of targets that are as wrong as
    the target of another sample.

    For a monitored run, margins are means over its epochs, and are compared with those of its canaries. If an RBF
    kernel of the inputs predicts more unseen labels than the network, the rate is that of the kernel.

    Args:
        source: An untrained network, or None; or a `Monitor` of a run with canaries, its callback or its `CanaryAlarm`.
            Trained weights have fitted the labels to be checked and are not suitable.
        data: Training data with class labels or regression targets, in any form that `gapscope.measure` takes; None
            with a monitor.
        features: Features [n, d] of the samples, such as those of `gapscope.embed`, by which labels are predicted in
            place of the inputs; with `labels`, or with `data`, which then serve for the labels, the copies and the
            review.
        labels: Labels of the features or of `pred_probs`; strings are accepted.
        pred_probs: Out-of-sample probabilities [n, C] of another model, column k of the label k, or predicted targets
            [n] for regression. They replace the predictions above. Where there are inputs, predictions that look
            fitted on these labels are refused (`gapscope.labels.given_predictions`).
        groups: One label per sample; a label is compared with what the samples of all other groups (patients, authors,
            recordings) predict, so that copies of a sample do not confirm an error that they share. Not with
            `pred_probs`.
        target: Column of the labels or targets, if `data` has named columns: a frame, a mapping, a list of
            dictionaries, a Hugging Face Dataset. Text becomes one column per value, and missing numbers are filled with
            the median.
        seed: Seed of the landmarks, the folds and the resampling.
        time_budget: CPU seconds of this process, None for no limit. The kernels of the inputs are always fitted, and a
            forest is always asked about the errors that are found. Boosted trees, the search for near-duplicates and
            the kernels of a network (its last hidden features first, then the NTK, if need be approximated) are omitted
            if they take longer. `notes` name what was omitted, and a budget that was exceeded.

    Raises:
        InvalidInput: There are no labels, fewer than 50 samples, `pred_probs` that are no probabilities, or values per
            sample that have the index of the data in another order.
        NotMeasurable: The labels cannot be predicted well enough to distinguish label errors from a hard problem, or
            `pred_probs` look fitted to them.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> labels = train.y.clone()
    >>> labels[:30] = (labels[:30] + 1) % 10  # a tenth of the labels is wrong
    >>> print(gs.estimate_label_noise(None, (train.inputs, labels)))
    Estimated label noise: 8.7 % of 300 labels (90 % interval 4.2 to 16.3 %); clean labels are predicted at 95 %
    """
    check_label_order(data, labels, features=features, pred_probs=pred_probs, groups=groups)
    source, data = unwrap_estimator(source, data)
    data, _, notes = _encoded(source, data, target, None)
    budget = CpuBudget(time_budget)
    issues, noise = _assess(source, data, features, labels, pred_probs, groups, seed, budget)
    issues = with_spent_budget(issues, budget)
    if reason := noise.abstained_because:
        raise NotMeasurable(reason)
    # copies do not matter for the rate
    kept = [note for note in issues.notes if note != ONLY_EXACT]
    return replace(noise, notes=tuple(dict.fromkeys([*kept, *notes])))


@check_arguments
def find_label_issues(
    source: nn.Module | Any = None,
    data: Any = None,
    *,
    features: Any = None,
    labels: Any = None,
    pred_probs: Any = None,
    groups: Any = None,
    target: str | int | None = None,
    precision: float | None = None,
    test: Any = None,
    names: Sequence[Any] | None = None,
    seed: int = 0,
    time_budget: float | None = DEFAULT_BUDGET,
) -> LabelIssues:
    r"""Rank samples by how likely their label is an error: before training, or from one run.

    Class labels are ranked by the odds that they are wrong, given the predictions that `estimate_label_noise` uses.
    Regression targets are ranked by their leave-one-out residual. With several labels per sample, and with labels of
    positions (tokens, pixels), every single label is ranked, and `rank_samples` ranks the samples by their worst label;
    positions are predicted without their whole sample. The rate is not estimated for these.

    For a monitored run, samples are ranked by the mean of two ranks: that of the margin averaged over its epochs, and
    that of the leave-one-out margin of an RBF kernel of the inputs (unless the canaries' labels are restored).

    Class labels are flagged if they are more likely wrong than right, or, with `precision`, as the longest list of
    which at least that fraction is expected to be wrong. Regression targets are flagged if swapped targets often have
    residuals as large, and correct ones rarely; samples of a monitored run, if as many are expected to be wrong.

    Args:
        source: An untrained network, or None; or a `Monitor` of a run with canaries, its callback or its `CanaryAlarm`.
            Trained weights have fitted the labels to be checked and are not suitable.
        data: Training data with class labels or regression targets, in any form that `gapscope.measure` takes; None
            with a monitor.
        features: Features [n, d] of the samples, such as those of `gapscope.embed`, by which labels are predicted in
            place of the inputs; with `labels`, or with `data`, which then serve for the labels, the copies and the
            review.
        labels: Labels of the features or of `pred_probs`; strings are accepted.
        pred_probs: Out-of-sample probabilities [n, C] of another model, column k of the label k, or predicted targets
            [n] for regression. Columns of frames and of results of `gapscope.out_of_sample` are matched by the names of
            the classes. An array for categories that are not sorted has the order, theirs or that of sorted names,
            that agrees with more labels: a note names it. They replace the predictions of the kernel machines, unless
            there are inputs and they look fitted to these labels, or spoiled by gross errors in targets
            (`gapscope.labels.given_predictions`): a note says so.
            With several labels the probability of each, [n, K]; for positions [n, ..., C] or [n, C, ...].
        groups: One label per sample; a label is compared with what the samples of all other groups (patients, authors,
            recordings) predict, so that copies of a sample do not confirm an error that they share. Not with
            `pred_probs`.
        target: Column of the labels or targets, if `data` (and `test`) has named columns: a frame, a mapping, a list of
            dictionaries, a Hugging Face Dataset. Text becomes one column per value, and missing numbers are filled with
            the median.
        precision: Expected fraction of errors among the flagged samples, in (0, 1].
        test: Test set; its (near-)duplicates of training samples are listed in `test_duplicates`.
        names: Names of the samples for the review, such as file names; by default the paths of an image folder.
        seed: Seed of the landmarks, the folds and the resampling.
        time_budget: CPU seconds of this process, None for no limit. The kernels of the inputs are always fitted, and a
            forest is always asked about the errors that are found. Boosted trees, the search for near-duplicates and
            the kernels of a network (its last hidden features first, then the NTK, if need be approximated) are omitted
            if they take longer. `notes` name what was omitted, and a budget that was exceeded.

    Raises:
        InvalidInput: There are no labels, fewer than 50 samples, no canaries among the monitored samples,
            `pred_probs` that are no probabilities, or values per sample that have the index of the data in another
            order.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> labels = train.y.clone()
    >>> labels[:30] = (labels[:30] + 1) % 10  # a tenth of the labels is wrong
    >>> issues = gs.find_label_issues(None, (train.inputs, labels))
    >>> print("\n".join(issues.sentences[:2]))
    Estimated label noise: 8.7 % of 300 labels (90 % interval 4.2 to 16.3 %); clean labels are predicted at 95 %.
    29 flagged; about 87 % of them are expected to be wrong.
    >>> issues.to_pandas()[["sample", "given", "suggested", "flagged"]].head(3)
       sample  given  suggested  flagged
    0      20      8          7     True
    1      24      8          7     True
    2      18      4          3     True
    """
    if precision is not None:
        check_range("precision", precision, 0, 1, low_open=True)
    check_label_order(
        data, labels, features=features, pred_probs=pred_probs, groups=groups, names=names
    )
    source, data = unwrap_estimator(source, data)
    if features is None or data is not None:
        given = data
    else:
        given = features
    given_test = test
    if target is not None:
        given = column_by_name(data, target)[0]
        given_test = test if test is None else column_by_name(test, target)[0]
    data, test, notes = _encoded(source, data, target, test)
    budget = CpuBudget(time_budget)
    issues, _ = _assess(source, data, features, labels, pred_probs, groups, seed, budget)
    if issues.samples is not None:
        issues = replace(
            issues,
            details=sample_details(given, names, issues.samples.n_rows or len(issues.samples)),
            notes=(*issues.notes, *notes),
        )
    if test is not None:
        issues = _with_copies_in_test(issues, test, given_test, budget)
    issues = with_spent_budget(issues.with_row_numbers(), budget)
    if precision is None:
        return issues
    return issues.with_precision(precision)
