"""Sections: ranking of measures, each measure against the gap, and reading guide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.gap.columns import has_unknown_settings, training_configurations
from gapscope.leaderboard.leaderboard_result import (
    MIN_CONFIGURATIONS,
    Verdict,
    skipped_measures,
)
from gapscope.leaderboard.network_tables import measures_lacking_values
from gapscope.leaderboard.ranking import RANDOM, verdicts
from gapscope.report.figures import measure_against_gap
from gapscope.report.pool_view import MAX_SHOWN, PoolView, needs_logarithm, varied_settings
from gapscope.results.readings import BASELINE, FOLDED_FROM, MAX_LINES
from gapscope.statistics.correlations import correlations
from gapscope.statistics.intervals import configuration_ids

if TYPE_CHECKING:
    import pandas

# more make the page large
MAX_CARDS = 100
# the full number of resamples up to 500 networks, fewer above
RESAMPLES, MIN_RESAMPLES, FULLY_RESAMPLED = 2000, 200, 500
# the time of the leaderboard's smoother grows with the cube of the number of networks
MAX_ASSESSED, VERDICT_PERMUTATIONS = 300, 400
DIRECTIONS = {
    "lower": "lower predicts a smaller gap",
    "higher": "higher predicts a smaller gap",
    "none": "no direction stated",
}


def _agreement(direction: str, low: float, high: float) -> str:
    """Describe whether the interval of a correlation agrees with the stated direction."""
    if direction == "none" or not math.isfinite(low):
        return ""
    if low <= 0 <= high:
        return "no clear relation"
    if (low > 0) == (direction == "lower"):
        return "as stated"
    return "opposite to the stated direction"


def _varying(view: PoolView) -> list[str]:
    """Return the names of the readings that vary between networks."""
    return [
        name
        for name, readings in view.readings.items()
        if len({reading.value for reading in readings}) > 1
    ]


def sentences_on_skipped(view: PoolView) -> list[str]:
    """Name the measures that too many networks lack, as the leaderboard does (nothing if none are)."""
    names = _varying(view)
    return skipped_measures(measures_lacking_values(view.finished_rows, names), len(names))


def ranked_correlations(view: PoolView) -> pandas.DataFrame | None:
    """Return `correlations` of the varying readings that few networks lack with the gap, strongest tau first."""
    left_out = measures_lacking_values(view.finished_rows, view.readings)
    names = [name for name in _varying(view) if name not in left_out]
    if not names:
        return None
    table = view.finished_rows
    baseline = BASELINE if BASELINE in view.readings else None
    # the time grows with resamples times networks squared, so large pools use fewer resamples
    resamples = max(
        MIN_RESAMPLES, min(RESAMPLES, int(RESAMPLES * (FULLY_RESAMPLED / len(table)) ** 2))
    )
    clusters = training_configurations(table, varied_settings(view.table))
    result = correlations(table, names, baseline=baseline, n_bootstrap=resamples, clusters=clusters)
    sizes = result["kendall"].abs().fillna(-1.0).to_numpy(dtype=float)
    return result.iloc[numpy.argsort(-sizes, kind="stable")]


def leaderboard_verdicts(view: PoolView) -> dict[str, Verdict]:
    """Return the leaderboard's verdicts by reading (empty for too few configurations of known settings)."""
    names = [
        name
        for name in _varying(view)
        if len(view.readings[name]) == len(view.finished)
        and all(math.isfinite(reading.value) for reading in view.readings[name])
    ]
    settings = varied_settings(view.table)
    table = view.finished_rows.loc[~has_unknown_settings(view.finished_rows)]
    if not names or not settings or not len(table):
        return {}
    if configuration_ids(table, settings).max() + 1 < MIN_CONFIGURATIONS:
        return {}
    return verdicts(
        table,
        measures=names,
        hyperparameters=settings,
        n_permutations=VERDICT_PERMUTATIONS,
        most_networks=MAX_ASSESSED,
    )


def ranked_measures(
    view: PoolView, by_reading: Mapping[str, Verdict] | None = None
) -> list[dict[str, Any]]:
    """Return one row per measure, by descending Kendall's tau, and a random measure last.

    `by_reading` is the result of `leaderboard_verdicts`. There are no rows if no correlation is defined.
    """
    by_reading = by_reading or {}
    result: Any = ranked_correlations(view)
    if result is None or not result["kendall"].notna().any():
        return []
    rows: list[dict[str, Any]] = []
    for row in result.rename_axis("name").reset_index().to_dict("records"):
        name = row["name"]
        direction = view.readings[name][0].direction
        row |= {
            "title": view.titles[name],
            "baseline": row["is_baseline"],
            "kind": "size baseline" if row["is_baseline"] else "",
            "direction": DIRECTIONS[direction],
            "agreement": _agreement(direction, row["kendall_low"], row["kendall_high"]),
            "verdict": by_reading.get(name),
        }
        rows.append(row)
    if RANDOM in by_reading:
        tau = by_reading[RANDOM].kendall
        ends = {"kendall": tau.value, "kendall_low": tau.low, "kendall_high": tau.high}
        texts = {"name": RANDOM, "title": RANDOM, "kind": "random numbers", "agreement": ""}
        counts = {"baseline": True, "n": len(view.finished), "dropped": 0}
        rows.append({**texts, **counts, **ends, "verdict": by_reading[RANDOM]})
    return rows


def split_ranking(ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """Split the ranking into visible rows, which include all baselines, and folded rows.

    Of a measure with many numbers, such as margins at four layers, only the strongest number is visible.
    """
    families = [str(row["name"]).split(".")[0] for row in ranked]
    members = Counter(families)
    is_head = [
        members[name] < FOLDED_FROM or name not in families[:k] for k, name in enumerate(families)
    ]
    heads = [row for row, is_visible in zip(ranked, is_head, strict=True) if is_visible]
    visible = [row for k, row in enumerate(heads) if k < MAX_LINES or row["baseline"]]
    return {"rows": visible, "more": [row for row in ranked if row not in visible]}


def cards(view: PoolView, ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one small figure per measure, in the order of `ranked_measures`."""
    dots = len(view.finished) * max(1, len(ranked))
    # step between the plotted networks, above 1 in very large pools only: more dots slow a browser down
    every = math.ceil(dots / 30000)
    figures: list[dict[str, Any]] = []
    table: Any = view.finished_rows
    for row in ranked:
        if row["name"] not in view.readings:
            continue
        has_value = numpy.isfinite(table[row["name"]].to_numpy(dtype=float))
        points = table.loc[has_value, [row["name"], "gap"]].iloc[::every]
        values: list[float] = points[row["name"]].tolist()
        if len(set(values)) < 2:
            continue
        figure = measure_against_gap(
            values,
            points["gap"].tolist(),
            [view.describe(key) for key in points.index],
            measure=row["name"],
            units=view.readings[row["name"]][0].units,
            logarithmic=needs_logarithm(values),
            baseline=row["baseline"],
            titled=dots <= 2500,  # titles make the page large
        )
        figures.append({**row, "figure": figure})
    return {
        "figures": figures[:MAX_SHOWN],
        "more": figures[MAX_SHOWN:MAX_CARDS],
        "every": every,
        "omitted": max(0, len(figures) - MAX_CARDS),
    }


def guide(view: PoolView) -> list[dict[str, Any]]:
    """Describe each number: direction, units, aggregation, exactness, range, cost, source.

    Numbers of one measure with equal descriptions share an entry.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, readings in view.readings.items():
        first = readings[0]
        entry = entries.setdefault(
            (first.measure, first.direction, first.units, first.aggregation, first.reference),
            {
                "reading": first,
                "title": view.titles[name].split(": ")[0],
                "direction": DIRECTIONS[first.direction],
                "seconds": float(numpy.median([reading.seconds for reading in readings])),
                "numbers": [],
            },
        )
        values = [reading.value for reading in readings if math.isfinite(reading.value)]
        errors = [
            reading.standard_error for reading in readings if reading.standard_error is not None
        ]
        ends = (min(values), max(values)) if values else ()
        error = float(numpy.median(errors)) if errors else None
        entry["numbers"].append({"name": name, "ends": ends, "standard_error": error})
    return list(entries.values())
