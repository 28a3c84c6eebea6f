"""Sections: ranking of measures, each measure against the gap, and reading guide."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.leaderboard.leaderboard_result import FEWEST_RECIPES, Verdict
from gapscope.leaderboard.network_tables import SEEDS
from gapscope.leaderboard.ranking import RANDOM, verdicts
from gapscope.prediction.columns import hyperparameter_columns
from gapscope.prediction.correlations import correlations
from gapscope.report.figures import correlation_strip, measure_against_gap
from gapscope.report.formatting import format_fixed, format_number
from gapscope.report.pool_view import PoolView
from gapscope.results.readings import BASELINE, FOLDED_FROM, Reading
from gapscope.statistics.intervals import configuration_ids

if TYPE_CHECKING:
    import pandas

TITLED_DOTS = 2500
ALL_DOTS = 30000
SHOWN_CARDS = 12
MOST_CARDS = 100
SHOWN_ROWS = 15
RESAMPLES, FEWEST_RESAMPLES, FULLY_RESAMPLED = 2000, 200, 500
# the smoother's time grows with the cube of the networks
MOST_JUDGED, JUDGING_PERMUTATIONS = 300, 400
DIRECTIONS = {
    "lower": "lower predicts a smaller gap",
    "higher": "higher predicts a smaller gap",
    "none": "no direction stated",
}


def _agreement(direction: str, low: float, high: float) -> str:
    """Compare the correlation's interval with the stated direction, in words."""
    if direction == "none" or not math.isfinite(low):
        return ""
    if low <= 0 <= high:
        return "no clear relation"
    return "as stated" if (low > 0) == (direction == "lower") else "opposite to the stated direction"


def ranked_correlations(view: PoolView) -> pandas.DataFrame | None:
    """Return `correlations` of the varying readings with the gap, strongest tau first (None without any)."""
    names = [name for name, readings in view.readings.items() if len({reading.value for reading in readings}) > 1]
    if not names:
        return None
    table = _table(view)
    baseline = BASELINE if BASELINE in view.readings else None
    # the time grows with networks squared times resamples; a large pool needs fewer of them for as narrow an interval
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, int(RESAMPLES * (FULLY_RESAMPLED / len(table)) ** 2)))
    found = correlations(
        table, names, baseline=baseline, n_bootstrap=resamples, clusters=configuration_ids(table, _settings(view))
    )
    sizes = found["kendall"].abs().fillna(-1.0).to_numpy(dtype=float)
    return found.iloc[numpy.argsort(-sizes, kind="stable")]


def leaderboard_verdicts(view: PoolView) -> dict[str, Verdict]:
    """Return the leaderboard's verdicts by reading, baselines included (empty for too few configurations).

    Of more than 300 networks, whole training configurations are sampled.
    """
    names = [name for name, readings in view.readings.items() if _known_in_all(view, readings)]
    settings = _settings(view)
    if not names or not settings:
        return {}
    table = _table(view)
    if len(set(configuration_ids(table, settings).tolist())) < FEWEST_RECIPES:
        return {}
    return verdicts(table, measures=names, hyperparameters=settings, n_permutations=JUDGING_PERMUTATIONS,
                    most_networks=MOST_JUDGED)  # fmt: skip


def _known_in_all(view: PoolView, readings: Sequence[Reading]) -> bool:
    values = {reading.value for reading in readings}
    return len(readings) == len(view.finished) and len(values) > 1 and all(map(math.isfinite, values))


def _table(view: PoolView) -> pandas.DataFrame:
    return view.table.loc[[record.id for record in view.finished]]


def _settings(view: PoolView) -> list[str]:
    return [name for name in hyperparameter_columns(view.table) if name not in SEEDS]


def _at_equal_settings(found: Verdict | None) -> str:
    """Verdict, correlation with its interval, and p-value, in one line."""
    if found is None:
        return ""
    score = found.partial
    if math.isnan(score.value):
        return f"at equal settings: {found.verdict}, {found.why}"
    ends = f"{format_fixed(score.value, 2)} ({format_fixed(score.low, 2)} to {format_fixed(score.high, 2)})"
    return f"at equal settings: {found.verdict}, r {ends}, corrected p {format_fixed(score.p, 3)}"


def _random_row(found: Verdict, n: int) -> dict[str, Any]:
    tau = found.kendall
    return {
        "name": RANDOM, "title": RANDOM, "baseline": True, "kind": "drawn numbers",
        "kendall": format_fixed(tau.value, 2),
        "strip": correlation_strip(tau.value, tau.low, tau.high, baseline=True),
        "interval": f"{format_fixed(tau.low, 2)} to {format_fixed(tau.high, 2)}", "pearson": "", "spearman": "", "n": n,
        "dropped": 0, "agreement": "", "settings": _at_equal_settings(found),
    }  # fmt: skip


def ranked_measures(view: PoolView, judged: Mapping[str, Verdict] | None = None) -> list[dict[str, Any]]:
    """Return one row per measure, the strongest Kendall's tau first, and a random measure last.

    `judged` is the result of `leaderboard_verdicts`. No rows if no measure has a correlation, as with two networks.
    """
    judged = judged or {}
    found: Any = ranked_correlations(view)
    if found is None or not found["kendall"].notna().any():
        return []
    by_name: dict[Any, dict[str, Any]] = found.to_dict("index")
    rows: list[dict[str, Any]] = []
    for name, row in by_name.items():
        ends = (row["kendall"], row["kendall_low"], row["kendall_high"])
        direction = view.readings[name][0].direction
        baseline = bool(row["is_baseline"])
        rows.append(
            {
                "name": name,
                "title": view.titles[name],
                "baseline": baseline,
                "kind": "size baseline" if baseline else "",
                "strip": correlation_strip(*ends, baseline=baseline),
                "kendall": format_fixed(ends[0], 2),
                "interval": f"{format_fixed(ends[1], 2)} to {format_fixed(ends[2], 2)}",
                "pearson": format_fixed(row["pearson"], 2),
                "spearman": format_fixed(row["spearman"], 2),
                "n": int(row["n"]),
                "dropped": int(row["dropped"]),
                "agreement": _agreement(direction, ends[1], ends[2]),
                "settings": _at_equal_settings(judged.get(name)),
            }
        )
    return rows + ([_random_row(judged[RANDOM], len(view.finished))] if RANDOM in judged else [])


def split_ranking(ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """Split the ranking into rows shown at once (baselines among them) and folded rows.

    Of a measure of many numbers, such as margins at four layers, only the number of the strongest correlation is shown.
    """
    members = Counter(_family(row) for row in ranked)
    leading: dict[str, Any] = {}
    for row in ranked:
        leading.setdefault(_family(row), row)
    heads = [row for row in ranked if members[_family(row)] < FOLDED_FROM or leading[_family(row)] is row]
    shown = [row for k, row in enumerate(heads) if k < SHOWN_ROWS or row["baseline"]]
    return {"rows": shown, "more": [row for row in ranked if row not in shown]}


def _family(row: dict[str, Any]) -> str:
    return str(row["name"]).split(".")[0]


def _usable(view: PoolView, name: str) -> tuple[list[float], list[float], list[str]]:
    rows: list[tuple[float, float, str]] = []
    for record in view.finished:
        value = next((reading.value for reading in record.readings if reading.name == name), math.nan)
        if math.isfinite(value):
            rows.append((value, record.gap, view.descriptions[record.id]))
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def cards(view: PoolView, ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one small figure per measure, in the order of `ranked_measures`, the first ones unfolded.

    `every` is the step between the plotted networks, above 1 in very large pools only.
    """
    dots = len(view.finished) * max(1, len(ranked))
    every = math.ceil(dots / ALL_DOTS)
    figures: list[dict[str, Any]] = []
    for row in ranked:
        if row["name"] not in view.readings:
            continue
        values, gaps, names = _usable(view, row["name"])
        values, gaps, names = values[::every], gaps[::every], names[::every]
        if len(set(values)) < 2:
            continue
        reading = view.readings[row["name"]][0]
        figure = measure_against_gap(
            values,
            gaps,
            names,
            measure=row["name"],
            units=reading.units,
            gap_label="gap",
            logarithmic=view.on_logarithmic_axis(row["name"], values),
            baseline=row["baseline"],
            titled=dots <= TITLED_DOTS,
        )
        figures.append({**row, "figure": figure, "direction": DIRECTIONS[reading.direction]})
    left_out = max(0, len(figures) - MOST_CARDS)
    return {"figures": figures[:SHOWN_CARDS], "more": figures[SHOWN_CARDS:MOST_CARDS], "every": every,
            "left_out": left_out}  # fmt: skip


def _exactness(readings: list[Reading]) -> str:
    errors = [reading.standard_error for reading in readings if reading.standard_error is not None]
    if not errors:
        return "exact"
    return f"estimated, median standard error {format_number(float(numpy.median(errors)), 2)}"


def guide(view: PoolView) -> list[dict[str, Any]]:
    """Describe each number: direction, units, aggregation, exactness, range, cost, source.

    Numbers of one measure with equal descriptions share an entry.
    """
    entries: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, readings in view.readings.items():
        first = readings[0]
        facts = (first.measure, first.direction, first.units, first.aggregation, first.reference)
        values = [reading.value for reading in readings if math.isfinite(reading.value)]
        entry = entries.setdefault(
            facts,
            {
                "measure": first.measure,
                "title": view.titles[name].split(": ")[0],
                "direction": DIRECTIONS[first.direction],
                "units": first.units or "none",
                "aggregation": first.aggregation,
                "seconds": format_number(float(numpy.median([reading.seconds for reading in readings])), 2),
                "reference": first.reference,
                "numbers": [],
            },
        )
        ends = (
            dict.fromkeys(format_number(end) for end in (min(values), max(values))) if values else ["no finite value"]
        )
        spread = " to ".join(ends)
        entry["numbers"].append({"name": name, "range": spread, "exactness": _exactness(readings)})
    return list(entries.values())
