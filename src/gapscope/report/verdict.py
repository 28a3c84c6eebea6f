"""Conclusions of the report, as sentences and as a JSON summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.gap.cross_validation import MEAN_GAP
from gapscope.leaderboard.leaderboard_result import EVIDENCE, Verdict
from gapscope.leaderboard.ranking import RANDOM
from gapscope.report.held_out import ESTIMATOR, held_out_errors, root_mean_square
from gapscope.report.measures import (
    leaderboard_verdicts,
    ranked_correlations,
    sentences_on_skipped,
)
from gapscope.report.pool_view import MIN_NETWORKS, PoolView, as_view
from gapscope.results.formatting import expected_test_accuracy, format_fixed, pluralize
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool

# characters of a network's name in a sentence
LONGEST_NAME = 48
# minimum training accuracy and gap of a network that has memorized its training data
MEMORIZED_ACCURACY, MEMORIZED_GAP = 0.97, 0.1


def _short_name(record: Record, view: PoolView) -> str:
    """Return the name of a network, or as many of its settings as fit."""
    name = view.describe(record.id)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME].rpartition(', ')[0] or name[:LONGEST_NAME]}, …"


def _best(view: PoolView) -> str:
    """Describe the only network, or name those within a point of the best test score."""
    if len(view.all_finished) == 1:
        (record,) = view.all_finished
        kind = view.gap_kind
        train, test = (format_fixed(record.scores[f"{part}_{kind}"]) for part in ("train", "test"))
        return (
            f"One network is finished, {_short_name(record, view)}: {kind} {train} on training data, {test} on test "
            f"data, gap {format_fixed(record.gap)}."
        )
    if view.gap_kind == "loss":
        best = min(view.all_finished, key=lambda record: record.scores["test_loss"])
        return f"Smallest test loss: {format_fixed(best.scores['test_loss'])}, {_short_name(best, view)}."
    ordered = sorted(view.all_finished, key=lambda record: -record.scores["test_accuracy"])
    top = ordered[0].scores["test_accuracy"]
    # test accuracies within a point of the best count as equal
    tied = [record for record in ordered if top - record.scores["test_accuracy"] < 0.01]
    others = ", by more than a point"
    if len(tied) > 1:
        others = f"; {len(tied) - 1} more within a point"
    return f"Best test accuracy: {format_fixed(top)}, {_short_name(tied[0], view)}{others}."


def _memorizing(view: PoolView) -> str:
    if view.gap_kind == "loss":
        return ""
    memorizing = [
        record
        for record in view.all_finished
        if record.scores["train_accuracy"] >= MEMORIZED_ACCURACY and record.gap >= MEMORIZED_GAP
    ]
    if not memorizing:
        return ""
    worst = max(memorizing, key=lambda record: record.gap)
    train, test = (format_fixed(worst.scores[f"{part}_accuracy"]) for part in ("train", "test"))
    return (
        f"Training data memorized by {len(memorizing)} of {pluralize(len(view.all_finished), 'network')}; largest gap: "
        f"{_short_name(worst, view)} (accuracy {train} on training data, {test} on test data)."
    )


def _estimator_sentence(
    view: PoolView, held_out: pandas.DataFrame | None, errors: Mapping[str, list[float]]
) -> str:
    """State whether gaps can be estimated from training data in this pool."""
    if held_out is None:
        n = len(view.all_finished)
        sentence = f"Gap estimates need {MIN_NETWORKS} finished networks; this pool has {n}."
        return "" if n >= MIN_NETWORKS else sentence
    if MEAN_GAP not in errors:
        return ""
    error = root_mean_square(errors[ESTIMATOR])
    baseline_error = root_mean_square(errors[MEAN_GAP])
    comparison = f"{format_fixed(error)} (baseline, the mean gap: {format_fixed(baseline_error)})"
    if error >= baseline_error:
        return f"Gaps cannot be estimated from training data here: root mean squared error {comparison}."
    message = f"Gaps can be estimated from training data alone with a root mean squared error of {comparison}."
    if view.gap_kind == "loss" or not {"low", "high"} <= set(held_out.columns):
        return message
    estimates = held_out[held_out["prediction"].notna()]
    rows = view.table.loc[estimates.index]
    best = str((rows["train_accuracy"] - estimates["prediction"]).idxmax())
    row: Any = estimates.loc[best]
    train_accuracy: Any = rows.at[best, "train_accuracy"]
    expected = expected_test_accuracy(train_accuracy, row["prediction"], row["low"], row["high"])
    return f"{message} Highest expected accuracy on new data: {expected}, {view.describe(best)}."


def _correlation_sentences(
    view: PoolView, best: str, by_reading: Mapping[str, Verdict]
) -> list[str]:
    """Name the measures that predict the gap beyond chance and beyond the hyperparameters."""
    message = f"Strongest correlation with the gap: {view.titles[best]}."
    if best in by_reading and not by_reading[best].kendall.significant:
        message = "Raw correlations with the gap: none is stronger than that of random numbers."
    measures = {name: result for name, result in by_reading.items() if result.role == "measure"}
    if not measures and view.n_without_settings == len(view.all_finished):
        return [
            message,
            "Not compared at equal settings, since no settings of the networks are known.",
        ]
    if not measures:
        return [message]
    evidence = [name for name, result in measures.items() if result.verdict == EVIDENCE]
    evidence.sort(key=lambda name: -abs(measures[name].partial.value))
    if not evidence:
        return [message, "At equal hyperparameters: no measure predicts the gap."]
    titles = "; ".join(view.titles[name] for name in evidence[:3])
    more = len(evidence) - 3
    if more > 0:
        titles += f"; and {more} more"
    predict = "predicts" if len(evidence) == 1 else "predict"
    counts = f"{len(evidence)} of {pluralize(len(measures), 'number')}"
    return [message, f"At equal hyperparameters: {counts} {predict} the gap: {titles}."]


def verdict(
    view: PoolView,
    held_out: pandas.DataFrame | None,
    errors: Mapping[str, list[float]],
    best_measure: str | None,
    by_reading: Mapping[str, Verdict] | None = None,
) -> list[str]:
    """Return the conclusions of a pool as sentences (none if no network is finished).

    `errors` is the result of `held_out_errors` ({} without estimates), `best_measure` the reading with the strongest
    correlation, `by_reading` the result of `leaderboard_verdicts`.
    """
    if not view.all_finished:
        return []
    sentences = [_best(view), _memorizing(view)]
    # the estimate comes first if there is one
    sentences.insert(
        0 if held_out is not None else len(sentences), _estimator_sentence(view, held_out, errors)
    )
    if best_measure is not None and len(view.all_finished) >= MIN_NETWORKS:
        sentences += _correlation_sentences(view, best_measure, by_reading or {})
    sentences += sentences_on_skipped(view)
    return [sentence for sentence in sentences if sentence]


def summary(
    records: Iterable[Record] | Pool | PoolView, held_out: pandas.DataFrame | None = None
) -> dict[str, Any]:
    """Return the contents of `write_report` with all digits.

    Args:
        records: Networks, failed ones included, or the pool that holds them.
        held_out: As for `write_report`; None for none.

    Returns:
        "status" (numbers of networks), "gap" (its definition), "verdict" (sentences), "measures" (correlations with the
        gap, strongest first, and leaderboard verdicts at equal settings), "random_measure" (the same for random
        numbers) and "networks" (scores, gap and estimate of each).

    >>> summary([Record(id="a", spec={}, status="failed", message="out of memory")])["status"]
    {'failed': 1}
    """
    view = as_view(records)
    with numpy.errstate(over="ignore", invalid="ignore"):
        measures = []
        if (result := ranked_correlations(view)) is not None:
            measures = result.rename_axis("measure").reset_index().to_dict("records")
        by_reading = leaderboard_verdicts(view)

        at_equal_settings = {name: asdict(result) for name, result in by_reading.items()}
        errors = {} if held_out is None else held_out_errors(view, held_out)
        best = next((row["measure"] for row in measures if not row["is_baseline"]), None)
        return {
            "status": dict(Counter(record.status for record in view.all_records)),
            "gap": view.gap_definition,
            "verdict": verdict(view, held_out, errors, best, by_reading),
            "measures": [
                {
                    "title": view.titles[row["measure"]],
                    **row,
                    "at_equal_settings": at_equal_settings.get(row["measure"]),
                }
                for row in measures
            ],
            "random_measure": at_equal_settings.get(RANDOM),
            "networks": [_network(record, view, held_out) for record in view.all_records],
        }


def _network(record: Record, view: PoolView, held_out: pandas.DataFrame | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": record.id,
        "name": view.describe(record.id),
        "status": record.status,
        "message": record.message,
        "gap": record.gap,
        **record.scores,
    }
    if held_out is not None and record.id in held_out.index:
        row["estimate"] = held_out.loc[record.id].to_dict()
    return row
