"""Summary of the report as JSON-serializable values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.leaderboard.leaderboard_result import Verdict
from gapscope.leaderboard.ranking import RANDOM
from gapscope.report.measures import leaderboard_verdicts, ranked_correlations
from gapscope.report.pool_view import PoolView, make_view
from gapscope.report.verdict import verdict
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool


def summary(records: Iterable[Record] | Pool | PoolView, held_out: pandas.DataFrame | None = None) -> dict[str, Any]:
    """Return what `write_report` shows, with all digits.

    Args:
        records: The networks, those that failed too, or the pool that holds them.
        held_out: As for `write_report`.

    Returns:
        "status" (how many networks ended how), "gap" (what it is made of), "verdict" (sentences), "measures" (their
        correlations with the gap, the strongest first, and what the leaderboard says of them at equal settings),
        "random_measure" (the same of drawn numbers) and "networks" (each with its scores, its gap and, where there
        is one, its estimate).

    Raises:
        InvalidInput: There are no records.

    >>> summary([Record(id="a", spec={}, status="failed", message="out of memory")])["status"]
    {'failed': 1}
    """
    view = records if isinstance(records, PoolView) else make_view(records)
    if not view.records:
        raise InvalidInput("A report needs at least one record; got none. Run the pool first.")
    with numpy.errstate(over="ignore", invalid="ignore"):
        found = ranked_correlations(view)
        measures = [] if found is None else found.rename_axis("measure").reset_index().to_dict("records")
        judged = leaderboard_verdicts(view)
        best = next((row["measure"] for row in measures if not row["is_baseline"]), None)
        return {
            "status": dict(Counter(record.status for record in view.all_records)),
            "gap": view.gap_words,
            "verdict": verdict(view, held_out, best, judged),
            "measures": [
                {"title": view.titles[row["measure"]], **row, "at_equal_settings": _judged(judged.get(row["measure"]))}
                for row in measures
            ],
            "random_measure": _judged(judged.get(RANDOM)),
            "networks": [_network(record, view, held_out) for record in view.all_records],
        }


def _judged(found: Verdict | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _network(record: Record, view: PoolView, held_out: pandas.DataFrame | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": record.id, "name": view.descriptions[record.id], "status": record.status}
    row |= {"message": record.message, "gap": record.gap, **record.scores}
    if held_out is not None and record.id in held_out.index:
        row["estimate"] = held_out.loc[record.id].to_dict()
    return row
