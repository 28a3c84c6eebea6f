"""Self-contained HTML report of records: no external scripts, images or requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy
from markupsafe import Markup

from gapscope.base.environment import version
from gapscope.base.files import write_atomically
from gapscope.report.curves import curves
from gapscope.report.figures import correlation_strip
from gapscope.report.formatting import format_fixed, format_number
from gapscope.report.held_out import held_out_section
from gapscope.report.label_issues import suspects_section
from gapscope.report.measures import cards, guide, leaderboard_verdicts, ranked_measures, split_ranking
from gapscope.report.networks import networks, overview
from gapscope.report.pool_view import PoolView, view_of
from gapscope.report.verdict import verdict
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.checks import CheckResult
    from gapscope.labels.results import LabelIssues
    from gapscope.pools import Pool
    from gapscope.prediction.gap_estimator import GapEstimator


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """The templates of all pages, with the functions that format their numbers."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gapscope.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def verbatim(name: str) -> Markup:
        # the style sheet and the script are ours, and must not be escaped
        return Markup(environment.get_template(name).render())

    def breakable(name: str) -> Markup:
        # a dotted name may be broken after each of its words, and nowhere else
        return Markup("<wbr>").join(re.split(r"(?<=[._])", name))

    names: Any = environment
    names.globals |= {"verbatim": verbatim, "correlation_strip": correlation_strip}
    names.filters |= {"breakable": breakable, "number": format_number, "fixed": format_fixed}
    return environment


def write_page(template: str, path: str | Path, **content: Any) -> Path:
    """Render a template into a file, atomically, and return its path."""
    page = environment().get_template(template).render(version=version(), **content)
    write_atomically(Path(path), page)
    return Path(path)


def write_report(
    records: Iterable[Record] | Pool | PoolView,
    path: str | Path,
    *,
    title: str,
    estimator: GapEstimator | None = None,
    held_out: pandas.DataFrame | None = None,
    level: float = 0.9,
    check: tuple[str, CheckResult] | None = None,
    suspects: LabelIssues | None = None,
    images: Any = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write one self-contained HTML page about a pool of networks, and return its path.

    The page shows what is in the pool and what did not finish, the estimates for held-out networks next to the
    baselines, the measures ranked by their correlation with the gap, each measure against the gap, training curves,
    suspicious labels where they are given, one row for every network, and how to read each number. It needs no network,
    works without scripts, adapts to a phone, to dark mode and to paper, and stays under 1.5 MB however large the pool
    is. Of a pool of more than 1,000 networks, statistics and figures are of whole training configurations sampled at
    random; the page says so.

    Args:
        held_out: Estimates of networks that it was not fitted on, indexed by run id: what `GapEstimator.assess` or
            `cross_val_predict` returned for rows of `records_to_pandas(records)`.
        level: Nominal coverage of the intervals in `held_out`.
        check: Run id of one network and what `gapscope.check` returned for it, to open the page with what to do next.
        suspects: What `gs.find_label_issues` returned for the pool's training data, to show the most suspicious
            samples.
        images: These training data by position, to show them as pictures; see `gapscope.report.training`.

    >>> import tempfile
    >>> record = Record(id="a", spec={}, status="failed", message="out of memory")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     "out of memory" in write_report([record], Path(folder) / "report.html", title="One").read_text()
    True
    """
    view = view_of(records)
    # readings near the end of the floats overflow in sums and squares; such a cell shows a dash
    with numpy.errstate(over="ignore", invalid="ignore"):
        by_reading = leaderboard_verdicts(view)
        ranked = ranked_measures(view, by_reading)
        best = next((row["name"] for row in ranked if not row["baseline"]), None)
        return write_page(
            "report.html",
            path,
            title=title,
            gap_words=view.gap_words,
            overview=overview(view),
            check=None if check is None else {"network": view.describe(check[0]), "result": check[1]},
            held_out=None if held_out is None else held_out_section(view, held_out, estimator, level),
            verdict=verdict(view, held_out, best, by_reading),
            ranking=ranked,
            folded=split_ranking(ranked),
            cards=cards(view, ranked),
            curves=curves(view),
            networks=networks(view),
            suspects=None if suspects is None else suspects_section(suspects, images, classes),
            guide=guide(view),
        )
