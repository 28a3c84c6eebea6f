"""All claims of the paper about networks in one table: held, not held, or open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from gapscope.base.errors import NotMeasurable
from gapscope.base.files import read_json, to_json, write_atomically
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.excess_figures import excess
from gapscope_studies.luo2019.folders import figure_3
from gapscope_studies.luo2019.norms import figure_4
from gapscope_studies.luo2019.old_claims import HELD, OPEN, OPPOSITE, claim_table
from gapscope_studies.luo2019.training_figures import figure_2ab, figure_2cd, figure_2ef, figure_2gh

FIGURES: Mapping[str, Callable[[Setting], Outcome]] = {
    "excess": excess,
    "fig2ab": figure_2ab,
    "fig2cd": figure_2cd,
    "fig2ef": figure_2ef,
    "fig2gh": figure_2gh,
    "fig3": figure_3,
    "fig4": figure_4,
}


def _path(setting: Setting, name: str) -> Path:
    return setting.work / "claims" / f"{name}.json"


def _made(setting: Setting, name: str) -> Outcome:
    outcome, path = FIGURES[name](setting), _path(setting, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_json({"claims": outcome.numbers["claims"], "seeds": list(outcome.seeds)}) + "\n")
    return outcome


def figure(name: str) -> Callable[[Setting], Outcome]:
    """Return the function of a part, which also keeps its claims for `claims`."""
    return partial(_made, name=name)


def claims(setting: Setting) -> Outcome:
    """Collect what the other parts on networks found of the paper's claims; parts that have not run are named.

    Args:
        setting: Where they kept it.

    Returns:
        One table.

    Raises:
        NotMeasurable: None of them has run.
    """
    found = {name: read_json(_path(setting, name)) for name in FIGURES if _path(setting, name).exists()}
    if not found:
        raise NotMeasurable(f"claims needs the outcome of other parts; none has run. Run {', '.join(FIGURES)} first.")
    rows = [{"part": name, **row} for name, content in found.items() for row in content["claims"]]
    counts = Counter(row["outcome"] for row in rows)
    failed = [
        f"{row['part']}: {row['the paper says']} ({row['ours']:.3g})" for row in rows if row["outcome"] == OPPOSITE
    ]
    missing = [name for name in FIGURES if name not in found]
    sentences = [
        f"Of {len(rows)} claims {counts[HELD]} held, {counts[OPPOSITE]} did not, and {counts[OPEN]} stay open: their "
        "95 % interval over seeds holds both answers.",
        f"Not held: {'; '.join(failed)}." if failed else "None failed.",
        f"Not run at this scale: {', '.join(missing)}." if missing else "",
    ]
    return Outcome(
        numbers={"claims": rows, "counts": dict(counts), "missing": missing},
        tables={"Claims": claim_table(rows)},
        verdict=" ".join(sentences).strip(),
        seeds=sorted({seed for content in found.values() for seed in content["seeds"]}),
    )
