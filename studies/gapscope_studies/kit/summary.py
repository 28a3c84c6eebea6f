"""Every claim of a study from its stored results alone, judged by the guard of today: rows of one honest page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gapscope.base.files import read_json
from gapscope_studies.kit.claims import HELD, NOT_HELD, NOT_RUN, OPEN, Claim, Compared, counts
from gapscope_studies.kit.page import BEFORE_THE_GUARD, markdown_table

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Part, Study

# Scales that say something of a paper, the largest first.
SCALES = ("paper", "small")
OLD_REACH, OLD_CHANCE = 0.1, 0.1
COLUMNS = ("source", "claim", "paper", "what was run", "ours", "over", "verdict", "why", "page")


@dataclass(frozen=True)
class Row:
    """A claim with where it was tested: at what scale, on what, and the page from the results' folder ("" for none)."""

    claim: Claim
    run: str = ""
    page: str = ""


def _learnt_of_old(quantity: str, methods: Mapping[str, Any]) -> tuple[Compared, ...]:
    """The two methods that "... of A minus B" names; older results keep training accuracies, but no curves."""
    named = re.search(r" of (.*) minus (.*)$", quantity)
    found = [name for name in (named.groups() if named else ()) if methods.get(name, {}).get("train_accuracy")]
    return tuple(
        Compared(name=name, train_accuracy=float(np.mean(methods[name]["train_accuracy"])), chance=OLD_CHANCE)
        for name in found
    )


def _old_claim(row: Mapping[str, Any], methods: Mapping[str, Any]) -> Claim:
    """A claim of a result that is older than the guard: its doubts are today's, else its verdict stands."""
    value, low, high = (float(row[name]) for name in ("ours", "low", "high"))
    found = Claim(
        source=row["source"], says=row["the paper says"], quantity=row["quantity"], value=value, low=low, high=high,
        units=int(row["seeds"]), compared=_learnt_of_old(row["quantity"], methods), reach=OLD_REACH,
        ours="control" in row["source"] or "shipped" in row["the paper says"],
    )  # fmt: skip
    return found if found.outcome == OPEN else replace(found, status=row["outcome"], why="stored before the guard")


def stored_claims(content: Mapping[str, Any]) -> list[Claim] | None:
    """Claims of a part's JSON; None for results that are older than claims."""
    if "claims" in content:
        return [Claim.from_dict(row) for row in content["claims"]]
    numbers = content["numbers"]
    if "claims" in numbers:
        return [_old_claim(row, numbers.get("methods", {})) for row in numbers["claims"]]
    return None


def _what_was_run(content: Mapping[str, Any]) -> str:
    here = {row["what"]: row["here"] for row in content.get("stands_in_for", ())}
    facts = [here[name] for name in ("data", "network") if here.get(name)]
    facts += [f"{here[name]} {name}" for name in ("epochs", "networks", "seeds") if here.get(name)]
    return f"{content['scale']}: {'; '.join(facts)}" if facts else f"{content['scale']}, {len(content['seeds'])} seeds"


def _unjudged(part: Part, status: str, why: str) -> Claim:
    """What a part says, where its result holds no claims; it is ours if the part says so."""
    says = (part.says or part.title).rstrip(".")
    return Claim(source=part.name, says=says, status=status, why=why, ours=says.startswith("Ours"))


def _rows_of_part(study: Study, part: Part, results: Path) -> list[Row]:
    for scale in SCALES:
        path = results / study.name / scale / f"{part.name}.json"
        if path.exists():
            content = read_json(path)
            found = stored_claims(content)
            if found is None:
                found = [_unjudged(part, OPEN, BEFORE_THE_GUARD)]
            return [Row(claim, _what_was_run(content), f"{study.name}/{scale}/{part.name}.md") for claim in found]
    return [Row(_unjudged(part, NOT_RUN, "no result at small or paper scale"))]


def rows_of(study: Study, results: Path) -> list[Row]:
    """All claims of a study, those that no part tests last."""
    tested = [row for part in study.parts for row in _rows_of_part(study, part, results)]
    return [*tested, *(Row(claim) for claim in study.untested)]


def _cells(row: Row) -> list[str]:
    claim, (outcome, reason) = row.claim, row.claim.judged
    number = "" if np.isnan(claim.value) else f"{claim.value:.3g}" if claim.exact else str(claim.interval)
    over = f"{claim.units} {claim.unit}" if claim.units else ""
    paper = "" if claim.paper is None else f"{claim.paper:.4g}"
    link = f"[page]({row.page})" if row.page else ""
    return [claim.source, claim.says, paper, row.run, number, over, f"**{outcome}**", reason, link]


def section(study: Study, results: Path) -> str:
    """The study's part of the claims page, as Markdown: counts, decided claims in words, then one row a claim."""
    rows = rows_of(study, results)
    claims = [row.claim for row in rows]
    decided = [claim for claim in claims if claim.outcome in (HELD, NOT_HELD)]
    lines = [f"## {study.title}", "", study.reference, "", f"Claims {counts(claims)}.", ""]
    lines += [f"- {claim.sentence}" for claim in sorted(decided, key=lambda claim: claim.ours)]
    groups: Sequence[tuple[str, bool]] = (("The paper's claims", False), ("Ours", True))
    for title, ours in groups:
        chosen = [_cells(row) for row in rows if row.claim.ours == ours]
        if chosen:
            lines += ["", f"### {title}", "", markdown_table(COLUMNS, chosen)]
    return "\n".join(lines)
