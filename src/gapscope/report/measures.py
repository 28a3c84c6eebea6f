"""Sections: ranking of the measures, each measure against the gap, and how to read each number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.records import BASELINE, Reading
from gapscope.estimation.clusters import recipes
from gapscope.estimation.columns import hyperparameter_columns
from gapscope.estimation.correlations import correlations
from gapscope.estimation.leaderboard import verdicts
from gapscope.estimation.leaderboard_row import EVIDENCE, FEWEST_RECIPES
from gapscope.estimation.network_tables import SEEDS
from gapscope.report.figures import correlation_strip, measure_against_gap
from gapscope.report.numbers import fixed, number
from gapscope.report.pool_view import PoolView

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
    "lower": "lower goes with a smaller gap",
    "higher": "higher goes with a smaller gap",
    "none": "no direction stated",
}


def _agreement(direction: str, low: float, high: float) -> str:
    """Whether the correlation has the sign that the stated direction demands, as far as the interval can tell."""
    if direction == "none" or not math.isfinite(low):
        return ""
    if low <= 0 <= high:
        return "no clear relation"
    return "as stated" if (low > 0) == (direction == "lower") else "opposite to the stated direction"


def ranked_correlations(view: PoolView) -> pandas.DataFrame | None:
    """Correlations of every reading that varies with the gap, the size baseline among them.

    Args:
        view: The pool.

    Returns:
        What `correlations` returns, by the size of Kendall's tau, the strongest first and those without one last;
        None where no reading varies.
    """
    names = [name for name, readings in view.readings.items() if len({reading.value for reading in readings}) > 1]
    if not names:
        return None
    table = view.table.loc[[record.id for record in view.finished]]
    baseline = BASELINE if BASELINE in view.readings else None
    # the time grows with networks squared times resamples; a large pool needs fewer of them for as narrow an interval
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, int(RESAMPLES * (FULLY_RESAMPLED / len(table)) ** 2)))
    found = correlations(table, names, baseline=baseline, n_bootstrap=resamples)
    sizes: dict[str, float] = found["kendall"].abs().fillna(-1.0).to_dict()
    return found.loc[sorted(sizes, key=lambda name: -sizes[name])]


def ranked_measures(view: PoolView) -> list[dict[str, Any]]:
    """Measures by the size of Kendall's tau with the gap, in the words of the page.

    Args:
        view: The pool.

    Returns:
        One row a measure, the strongest first; measures without a correlation last.
    """
    found = ranked_correlations(view)
    by_name: dict[Any, dict[str, Any]] = {} if found is None else found.to_dict("index")
    rows = []
    for name, row in by_name.items():
        ends = (row["kendall"], row["kendall_low"], row["kendall_high"])
        direction = view.readings[name][0].direction
        rows.append(
            {
                "name": name,
                "title": view.titles[name],
                "baseline": bool(row["is_baseline"]),
                "strip": correlation_strip(*ends, baseline=bool(row["is_baseline"])),
                "kendall": fixed(ends[0], 2),
                "interval": f"{fixed(ends[1], 2)} to {fixed(ends[2], 2)}",
                "pearson": fixed(row["pearson"], 2),
                "spearman": fixed(row["spearman"], 2),
                "n": int(row["n"]),
                "dropped": int(row["dropped"]),
                "agreement": _agreement(direction, ends[1], ends[2]),
            }
        )
    return rows


def with_evidence(view: PoolView, ranked: list[dict[str, Any]]) -> list[str] | None:
    """Readings that go with the gap beyond what the settings tell, as `gapscope leaderboard` judges them.

    Args:
        view: The pool.
        ranked: What `ranked_measures` returned.

    Returns:
        Their names, the strongest rank correlation first; None where too few recipes, too many networks or no settings
        are there to judge by.
    """
    names = [row["name"] for row in ranked if not row["dropped"]]
    settings = [name for name in hyperparameter_columns(view.table) if name not in SEEDS]
    if not names or not settings or len(view.finished) > MOST_JUDGED:
        return None
    table = view.table.loc[[record.id for record in view.finished]]
    if len(set(recipes(table, settings).tolist())) < FEWEST_RECIPES:
        return None
    found = verdicts(table, measures=names, hyperparameters=settings, n_permutations=JUDGING_PERMUTATIONS)
    return [name for name in names if found[name][0] == EVIDENCE]


def folded(ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """The ranking in two parts: what is shown at once (the baseline always is), and what is folded away."""
    far = [row for row in ranked[SHOWN_ROWS:] if not row["baseline"]]
    return {"rows": [row for row in ranked if row not in far], "more": far}


def _usable(view: PoolView, name: str) -> tuple[list[float], list[float], list[str]]:
    rows = []
    for record in view.finished:
        value = next((reading.value for reading in record.readings if reading.name == name), math.nan)
        if math.isfinite(value):
            rows.append((value, record.gap, view.descriptions[record.id]))
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def cards(view: PoolView, ranked: list[dict[str, Any]]) -> dict[str, Any]:
    """One small figure a measure, in the order of the ranking.

    Args:
        view: The pool.
        ranked: What `ranked_measures` returned.

    Returns:
        The first figures, the rest (folded away), and every how many networks one was drawn (more than 1 only in very
        large pools).
    """
    dots = len(view.finished) * max(1, len(ranked))
    every = math.ceil(dots / ALL_DOTS)
    figures = []
    for row in ranked:
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
    return f"estimated, median standard error {number(float(numpy.median(errors)), 2)}"


def guide(view: PoolView) -> list[dict[str, Any]]:
    """How to read each number: direction, units, aggregation, exact or estimated, range, cost, source.

    Args:
        view: The pool.

    Returns:
        One entry a measure and set of facts: numbers of one measure that share their facts stand together.
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
                "seconds": number(float(numpy.median([reading.seconds for reading in readings])), 2),
                "reference": first.reference,
                "numbers": [],
            },
        )
        spread = f"{number(min(values))} to {number(max(values))}" if values else "no finite value"
        entry["numbers"].append({"name": name, "range": spread, "exactness": _exactness(readings)})
    return list(entries.values())
