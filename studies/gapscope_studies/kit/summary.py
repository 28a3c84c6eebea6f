"""Every claim of a study from its stored results alone, judged by the guard of today: rows of one honest page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.base.files import read_json
from gapscope_studies.kit.claims import CANNOT, HELD, NOT_HELD, NOT_RUN, OPEN, Claim, counts
from gapscope_studies.kit.page import markdown_table, number_of

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Part, Study

# Scales that say something of a paper, the largest first.
SCALES = ("paper", "small")
COLUMNS = ("what is claimed", "the paper", "what was run", "ours", "verdict", "page")
# What a reader looks for first.
ORDER = (HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT)


@dataclass(frozen=True)
class Row:
    """A claim with where it was tested: part, at what scale, on what, and the page from the results' folder."""

    claim: Claim
    part: str = ""
    run: str = ""
    page: str = ""


@dataclass(frozen=True)
class Finding:
    """A sentence that a researcher would quote, made of one claim; the numbers are filled in.

    Attributes:
        part: The part that tests the claim.
        says: The claim's words, or how they begin.
        held: The sentence where it held; fields are those of the claim: {value:.2f}, {low}, {high}, {paper}, {units}.
        not_held: The sentence where it did not.
        undecided: The sentence where it is open, followed by the reason.
    """

    part: str
    says: str
    held: str = ""
    not_held: str = ""
    undecided: str = ""

    def sentence(self, rows: Sequence[Row]) -> str:
        """The sentence with its verdict and numbers; the claim's own words where it has none for this verdict."""
        there = [row for row in rows if row.part == self.part]
        found = [row for row in there if row.claim.says == self.says]
        found = found or [row for row in there if row.claim.says.startswith(self.says)]
        if len(found) != 1:
            raise InvalidInput(f"A finding must name one claim; {self.part}: {self.says!r} names {len(found)}.")
        claim, (outcome, reason) = found[0].claim, found[0].claim.judged
        template = {HELD: self.held, NOT_HELD: self.not_held, OPEN: self.undecided}.get(outcome)
        if not template:
            return f"**{outcome.capitalize()}.** {claim.sentence}"
        known = {name: getattr(claim, name) for name in ("value", "low", "high", "paper", "units", "unit")}
        because = f" ({reason})" if outcome == OPEN else ""
        return f"**{outcome.capitalize()}{because}.** {template.format(**known)} [{claim.source}]({found[0].page})"


def stored_claims(content: Mapping[str, Any]) -> list[Claim]:
    """Claims of a part's JSON."""
    return [Claim.from_dict(row) for row in content.get("claims", ())]


def _what_was_run(content: Mapping[str, Any]) -> str:
    here = {row["what"]: row["here"] for row in content.get("stands_in_for", ())}
    facts = [here[name] for name in ("data", "network") if here.get(name)]
    facts += [f"{here[name]} {name}" for name in ("epochs", "networks", "seeds") if here.get(name)]
    return f"{content['scale']}: {'; '.join(facts)}" if facts else f"{content['scale']}, {len(content['seeds'])} seeds"


def _unjudged(part: Part, status: str, why: str) -> Claim:
    """What a part says, where its result holds no claims; it is ours if the part says so."""
    says = (part.says or part.title).rstrip(".")
    return Claim(source=part.name, says=says, status=status, why=why, ours=says.startswith(("Ours", "Not in the")))


def _rows_of_part(study: Study, part: Part, results: Path) -> list[Row]:
    for scale in SCALES:
        path = results / study.name / scale / f"{part.name}.json"
        if path.exists():
            content = read_json(path)
            run, page = _what_was_run(content), f"{study.name}/{scale}/{part.name}.md"
            if "claims" not in content:
                return [Row(_unjudged(part, OPEN, "stored without claims; to be run again"), part.name, run, page)]
            return [Row(claim, part.name, run, page) for claim in stored_claims(content)]
    return [Row(_unjudged(part, NOT_RUN, "no result at small or paper scale"), part.name)] if part.says else []


def rows_of(study: Study, results: Path) -> list[Row]:
    """All claims of a study, those that no part tests last."""
    tested = [row for part in study.parts for row in _rows_of_part(study, part, results)]
    return [*tested, *(Row(claim) for claim in study.untested)]


def findings(study: Study, results: Path) -> list[str]:
    """The study's findings as sentences; those of parts without a result are left out."""
    rows = rows_of(study, results)
    run = {row.part for row in rows if row.page}
    return [finding.sentence(rows) for finding in study.findings if finding.part in run]


def tally(study: Study, results: Path, *, ours: bool) -> list[int]:
    """How many claims came out how, in the order held, not held, open, not run, cannot be run here."""
    outcomes = [row.claim.outcome for row in rows_of(study, results) if row.claim.ours == ours]
    return [outcomes.count(outcome) for outcome in ORDER]


def _cells(row: Row) -> list[str]:
    claim, (outcome, reason) = row.claim, row.claim.judged
    units = f", {claim.units} {claim.unit}" if claim.units and not claim.exact else ""
    ours = f"{claim.quantity}: {number_of(claim)}{units}" if claim.quantity else ""
    paper = "" if claim.paper is None else f"{claim.paper:.4g}"
    link = f"[{row.part}]({row.page})" if row.page else ""
    verdict = f"**{outcome}**{': ' if reason else ''}{reason}"
    return [f"{claim.source}: {claim.says}", paper, row.run, ours, verdict, link]


def section(study: Study, results: Path) -> str:
    """The study's part of the claims page, as Markdown: counts, then one row a claim, decided ones first."""
    rows = sorted(rows_of(study, results), key=lambda row: ORDER.index(row.claim.outcome))
    lines = [f"## {study.title}", "", study.reference, "", f"Claims {counts([row.claim for row in rows])}.", ""]
    groups: Sequence[tuple[str, bool]] = (("The paper's claims", False), ("Ours", True))
    for title, ours in groups:
        chosen = [_cells(row) for row in rows if row.claim.ours == ours]
        if chosen:
            lines += [f"### {title}", "", markdown_table(COLUMNS, chosen)]
    return "\n".join(lines)
