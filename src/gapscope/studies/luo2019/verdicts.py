"""All claims of the paper about networks in one table: held, not held, or open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gapscope.studies.base import Outcome, Setting
from gapscope.studies.luo2019.cases import seeds
from gapscope.studies.luo2019.claims import HELD, OPEN, OPPOSITE, claim_table
from gapscope.studies.luo2019.excess_figures import excess
from gapscope.studies.luo2019.folders import figure_3
from gapscope.studies.luo2019.norms import figure_4
from gapscope.studies.luo2019.training_figures import figure_2ab, figure_2cd, figure_2ef, figure_2gh

FIGURES: Mapping[str, Callable[[Setting], Outcome]] = {
    "fig2ab": figure_2ab,
    "fig2cd": figure_2cd,
    "fig2ef": figure_2ef,
    "fig2gh": figure_2gh,
    "fig3": figure_3,
    "fig4": figure_4,
    "excess": excess,
}


def claims(setting: Setting) -> Outcome:
    """Collect the claims of the other parts on networks; networks that they trained are not trained again."""
    rows = [{"part": name, **row} for name, make in FIGURES.items() for row in make(setting).numbers["claims"]]
    counts = Counter(row["outcome"] for row in rows)
    failed = [
        f"{row['part']}: {row['the paper says']} ({row['ours']:.3g})" for row in rows if row["outcome"] == OPPOSITE
    ]
    verdict = (
        f"Of {len(rows)} claims {counts[HELD]} held, {counts[OPPOSITE]} did not, and {counts[OPEN]} stay open: their "
        f"95 % interval over {len(seeds(setting))} seeds holds both answers. "
    )
    return Outcome(
        numbers={"claims": rows, "counts": dict(counts)},
        tables={"Claims": claim_table(rows)},
        verdict=verdict + (f"Not held: {'; '.join(failed)}." if failed else "None failed."),
        seeds=seeds(setting),
    )
