"""Conclusions of the report: opening sentences, and the summary as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.leaderboard.leaderboard_result import EVIDENCE, Verdict
from gapscope.leaderboard.ranking import RANDOM
from gapscope.report.formatting import expected_test_accuracy, format_fixed, pluralize
from gapscope.report.measures import leaderboard_verdicts, ranked_correlations
from gapscope.report.pool_view import PoolView, view_of
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool

POINT = 0.01
# a network that fits its training data this well, and loses so much on test data, has memorized them
FITS, LOSES = 0.97, 0.1
ENOUGH = 12


def _named(records: Sequence[Record], view: PoolView) -> str:
    names = [view.describe(record.id) for record in records[:3]]
    more = len(records) - len(names)
    return "; ".join(names) + (f"; and {more} more" if more else "")


def _best(view: PoolView) -> str:
    """Describe the only network, or name those within a point of the best test score."""
    if len(view.all_finished) == 1:
        (record,), kind = view.all_finished, view.gap_kind
        train, test = (format_fixed(record.scores[f"{part}_{kind}"]) for part in ("train", "test"))
        return (
            f"One network is finished, {_named([record], view)}: {kind} {train} on training data, {test} on test data, "
            f"a gap of {format_fixed(record.gap)}."
        )
    if view.gap_kind == "loss":
        best = min(view.all_finished, key=lambda record: record.scores["test_loss"])
        return f"The smallest test loss, {format_fixed(best.scores['test_loss'])}, has {_named([best], view)}."
    ordered = sorted(view.all_finished, key=lambda record: -record.scores["test_accuracy"])
    top = ordered[0].scores["test_accuracy"]
    tied = [record for record in ordered if top - record.scores["test_accuracy"] < POINT]
    if len(tied) == 1:
        return f"Take {_named(tied, view)}: the best test accuracy, {format_fixed(top)}, by more than a point."
    return f"These are tied within a point of the best test accuracy, {format_fixed(top)}: {_named(tied, view)}."


def _memorizing(view: PoolView) -> str:
    if view.gap_kind == "loss":
        return ""
    finished = view.all_finished
    result = [record for record in finished if record.scores["train_accuracy"] >= FITS and record.gap >= LOSES]
    if not result:
        return ""
    worst = max(result, key=lambda record: record.gap)
    train, test = (format_fixed(worst.scores[f"{part}_accuracy"]) for part in ("train", "test"))
    verb, most = ("memorizes its", ":") if len(result) == 1 else ("memorize their", ", most of all")
    return (
        f"{len(result)} of {len(finished)} {verb} training data{most} {_named([worst], view)} ({train} on them, {test} "
        "on test data)."
    )


def _estimator_sentence(view: PoolView, held_out: pandas.DataFrame | None) -> str:
    """State whether gaps can be estimated from training data in this pool."""
    if held_out is None:
        if len(view.all_finished) >= ENOUGH:
            return ""
        count = len(view.all_finished)
        few, verb = pluralize(count, "finished network"), "is" if count == 1 else "are"
        return f"{few} {verb} too few to estimate gaps from: {ENOUGH} are needed."
    answered = held_out[held_out["prediction"].notna()]
    n, known = len(answered), view.whole.loc[answered.index]
    if n < 2:
        return ""
    error = float(((known["gap"] - answered["prediction"]) ** 2).mean() ** 0.5)
    # each from the mean of all others, as the estimate is
    plain = float(known["gap"].std(ddof=0)) * n / (n - 1)
    if error >= plain:
        return f"Gaps cannot be estimated from training data here: error {format_fixed(error)}, their mean has less."
    message = (
        f"From training data alone the gap of a network like these is known to {format_fixed(error)} (root mean "
        f"square; their mean alone: {format_fixed(plain)})."
    )
    if view.gap_kind == "loss" or not {"low", "high"} <= set(held_out.columns):
        return message
    best = str((known["train_accuracy"] - answered["prediction"]).idxmax())
    row: Any = answered.loc[best]
    train_accuracy: Any = known.at[best, "train_accuracy"]
    expected = expected_test_accuracy(train_accuracy, row["prediction"], row["low"], row["high"])
    return f"{message} Of the most promising, {view.describe(best)}, expect {expected} on new data."


def _correlation_sentences(view: PoolView, best: str, by_reading: Mapping[str, Verdict]) -> list[str]:
    """Name the measures that order networks beyond chance and beyond the settings."""
    if best in by_reading and not by_reading[best].kendall.significant:
        return ["No measure correlates with the gap more than a random one would."]
    message = f"Strongest correlation with the gap: {view.titles[best]}."
    measures = {name: result for name, result in by_reading.items() if result.role == "measure"}
    if not measures:
        return [message]
    evidence = [name for name, result in measures.items() if result.verdict == EVIDENCE]
    evidence.sort(key=lambda name: -abs(measures[name].partial.value))
    if not evidence:
        return [message, "No measure predicts the gap better than the hyperparameters alone."]
    named, more = "; ".join(view.titles[name] for name in evidence[:3]), len(evidence) - 3
    return [
        message,
        f"Correlated with it at equal hyperparameters, too: {named}{f'; and {more} more' if more > 0 else ''}.",
    ]


def verdict(
    view: PoolView,
    held_out: pandas.DataFrame | None,
    best_measure: str | None,
    by_reading: Mapping[str, Verdict] | None = None,
) -> list[str]:
    """Return the conclusions of a pool, in sentences (none if no network is finished).

    `best_measure` is the reading with the strongest correlation, `by_reading` the result of `leaderboard_verdicts`.
    """
    if not view.all_finished:
        return []
    sentences = [_best(view), _memorizing(view)]
    # the estimate comes first if there is one
    sentences.insert(0 if held_out is not None else len(sentences), _estimator_sentence(view, held_out))
    if best_measure is not None and len(view.all_finished) >= ENOUGH:
        sentences += _correlation_sentences(view, best_measure, by_reading or {})
    return [sentence for sentence in sentences if sentence]


def summary(records: Iterable[Record] | Pool | PoolView, held_out: pandas.DataFrame | None = None) -> dict[str, Any]:
    """Return what `write_report` shows, with all digits.

    Args:
        held_out: As for `write_report`.

    Returns:
        "status" (how many networks ended how), "gap" (what it is made of), "verdict" (sentences), "measures" (their
        correlations with the gap, the strongest first, and what the leaderboard says of them at equal settings),
        "random_measure" (the same of random numbers) and "networks" (each with its scores, its gap and, where there
        is one, its estimate).

    >>> summary([Record(id="a", spec={}, status="failed", message="out of memory")])["status"]
    {'failed': 1}
    """
    view = view_of(records)
    with numpy.errstate(over="ignore", invalid="ignore"):
        result = ranked_correlations(view)
        measures = [] if result is None else result.rename_axis("measure").reset_index().to_dict("records")
        by_reading = leaderboard_verdicts(view)

        def at_equal_settings(name: str) -> dict[str, Any] | None:
            return asdict(by_reading[name]) if name in by_reading else None

        best = next((row["measure"] for row in measures if not row["is_baseline"]), None)
        return {
            "status": dict(Counter(record.status for record in view.all_records)),
            "gap": view.gap_words,
            "verdict": verdict(view, held_out, best, by_reading),
            "measures": [
                {"title": view.titles[row["measure"]], **row, "at_equal_settings": at_equal_settings(row["measure"])}
                for row in measures
            ],
            "random_measure": at_equal_settings(RANDOM),
            "networks": [_network(record, view, held_out) for record in view.all_records],
        }


def _network(record: Record, view: PoolView, held_out: pandas.DataFrame | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": record.id, "name": view.describe(record.id), "status": record.status}
    row |= {"message": record.message, "gap": record.gap, **record.scores}
    if held_out is not None and record.id in held_out.index:
        row["estimate"] = held_out.loc[record.id].to_dict()
    return row
