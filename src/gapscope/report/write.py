"""Self-contained HTML report of records: no external scripts, images or requests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from gapscope.base.arguments import check_arguments
from gapscope.base.files import check_output, write_output
from gapscope.report.curves import curves
from gapscope.report.figures import correlation_strip
from gapscope.report.held_out import held_out_errors, held_out_section
from gapscope.report.measures import (
    cards,
    guide,
    leaderboard_verdicts,
    ranked_measures,
    split_ranking,
)
from gapscope.report.networks import networks, overview
from gapscope.report.pool_view import PoolView, as_view
from gapscope.report.verdict import verdict
from gapscope.results.pages import render_page
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.checks import CheckResult
    from gapscope.gap.gap_estimator import GapEstimator
    from gapscope.pools import Pool


@check_arguments
def write_report(
    records: Iterable[Record] | Pool | PoolView,
    path: str | Path,
    *,
    title: str,
    estimator: GapEstimator | None = None,
    held_out: pandas.DataFrame | None = None,
    level: float = 0.9,
    check: tuple[str, CheckResult] | None = None,
) -> Path:
    """Write one self-contained HTML page about a pool of networks, and return its path.

    The page shows an overview with the unfinished networks, held-out estimates with their baselines, measures ranked by
    their correlation with the gap, training curves, one row per network, and a description of each number. It works
    offline and without scripts, on phones, in dark mode and on paper, and stays under 1.5 MB. Above 1,000 networks,
    statistics and figures use a random sample of whole training configurations.

    Args:
        records: Records of the networks, or a pool.
        path: File to write; its folder must exist.
        title: Title of the page.
        estimator: A fitted gap estimator, whose estimates are shown; None for none.
        held_out: Estimates of networks outside the fit, indexed by run id: the result of `GapEstimator.assess` or
            `cross_val_predict` for rows of `records_to_pandas(records)`. None for no section on estimates.
        level: Nominal coverage of the intervals in `held_out`.
        check: Run id of one network and its result of `gapscope.check`, which opens the page. None for no check.

    >>> import tempfile
    >>> record = Record(id="a", spec={}, status="failed", message="out of memory")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     "out of memory" in write_report([record], Path(folder) / "report.html", title="One").read_text()
    True
    """
    check_output(path)
    view = as_view(records)
    # sums and squares of readings near the largest float overflow; such a cell shows a dash
    with numpy.errstate(over="ignore", invalid="ignore"):
        by_reading = leaderboard_verdicts(view)
        ranked = ranked_measures(view, by_reading)
        best = next((row["name"] for row in ranked if not row["baseline"]), None)
        errors = {}
        section = None
        if held_out is not None:
            errors = held_out_errors(view, held_out)
            section = held_out_section(view, held_out, errors, estimator, level)
        page = render_page(
            "report.html",
            title=title,
            correlation_strip=correlation_strip,
            gap_definition=view.gap_definition,
            overview=overview(view),
            check=None
            if check is None
            else {"network": view.describe(check[0]), "result": check[1]},
            held_out=section,
            verdict=verdict(view, held_out, errors, best, by_reading),
            ranking=ranked,
            folded=split_ranking(ranked),
            cards=cards(view, ranked),
            curves=curves(view),
            networks=networks(view),
            guide=guide(view),
        )
    return write_output(path, page)
