"""Every claim of a study from its stored results alone, judged by the guard of today: rows of one honest page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.base.files import read_json
from gapscope_studies.kit.claims import HELD, MIN_UNITS, NOT_HELD, OPEN, OUTCOMES, Claim, counts, not_run
from gapscope_studies.kit.page import claim_row, markdown_table, scale_in_words
from gapscope_studies.kit.power import MAX_UNITS, hours_needed, units_needed

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Part, Study

# Scales that say something of a paper, the largest first.
SCALES = ("paper", "small")
COLUMNS = ("what is claimed", "the paper", "ours", "verdict", "what was run")


@dataclass(frozen=True)
class Row:
    """A claim with where it was tested: part, scale and data, page, and the hours that would decide an open one."""

    claim: Claim
    part: str = ""
    run: str = ""
    page: str = ""
    hours: float | None = None


@dataclass(frozen=True)
class Finding:
    """A sentence that a researcher would quote, made of one claim. The numbers are filled in.

    Fields of the sentences are those of the claim: {value:.2f}, {low}, {high}, {paper}, {units}.
    """

    part: str
    says: str  # the claim's words, or how they begin
    held: str = ""
    not_held: str = ""
    undecided: str = ""  # followed by the reason
    picture: str = ""  # figure of the part that shows it; such a finding comes first on the page of all claims

    def render(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Outcome, and the sentence with its numbers. The claim's own words where there is none for this outcome."""
        there = [row for row in rows if row.part == self.part]
        result = [row for row in there if row.claim.statement == self.says]
        result = result or [row for row in there if row.claim.statement.startswith(self.says)]
        if len(result) != 1:
            raise InvalidInput(f"A finding must name one claim; {self.part}: {self.says!r} names {len(result)}.")
        claim, (outcome, reason) = result[0].claim, result[0].claim.evaluate
        template = {HELD: self.held, NOT_HELD: self.not_held, OPEN: self.undecided}.get(outcome)
        if not template:
            return outcome, claim.sentence
        known = {name: getattr(claim, name) for name in ("value", "low", "high", "paper", "units", "unit")}
        because = f" Open: {reason}." if outcome == OPEN else ""
        return outcome, f"{template.format(**known)}{because} [{claim.source}]({result[0].page})"


def stored_claims(content: Mapping[str, Any]) -> list[Claim]:
    """Claims of a part's JSON."""
    return [Claim.from_dict(row) for row in content.get("claims", ())]


def _stored(study: Study, part: Part, results: Path) -> tuple[str, dict[str, Any]]:
    """Scale and content of the largest stored result of a part (empty if there is none)."""
    for scale in SCALES:
        path = results / study.name / scale / f"{part.name}.json"
        if path.exists():
            return scale, read_json(path)
    return "", {}


def rows_of(study: Study, results: Path) -> list[Row]:
    """All claims of a study, those that no part tests last."""
    rows = []
    for part in study.parts:
        scale, content = _stored(study, part, results)
        if content:
            run, page = f"{scale}: {scale_in_words(content, most=2)}", f"{study.name}/{scale}/{part.name}.md"
            claims = stored_claims(content)
            rows += [Row(claim, part.name, run, page, hours_needed(claim, content)) for claim in claims]
        elif part.says and not part.ours:
            why = "no result at small or paper scale"
            rows.append(Row(not_run(part.name, part.says.rstrip("."), why), part.name))
    return [*rows, *(Row(claim) for claim in study.untested)]


def findings(study: Study, results: Path) -> list[tuple[str, str]]:
    """The study's findings, outcomes with sentences. Those of parts without a result are left out."""
    rows = rows_of(study, results)
    run = {row.part for row in rows if row.page}
    return [finding.render(rows) for finding in study.findings if finding.part in run]


def pictured(study: Study, results: Path) -> list[tuple[str, str]]:
    """Sentences of the findings that have a picture, with the picture's path from the folder of results."""
    rows = rows_of(study, results)
    folders = {row.part: row.page.rsplit("/", 1)[0] for row in rows if row.page}
    return [
        (finding.render(rows)[1], f"{folders[finding.part]}/{finding.part}-{finding.picture}.svg")
        for finding in study.findings if finding.picture and finding.part in folders
    ]  # fmt: skip


def decided_per_hour(study: Study, results: Path) -> tuple[int, float, float]:
    """Decided rows of the parts whose processor time is known, the hours of their runs, and rows per hour."""
    decided = seconds = 0.0
    for part in study.parts:
        _, content = _stored(study, part, results)
        if content.get("seconds_of_runs"):
            seconds += float(content["seconds_of_runs"])
            decided += sum(claim.outcome in (HELD, NOT_HELD) for claim in stored_claims(content))
    return int(decided), seconds / 3600, 3600 * decided / seconds if seconds else 0.0


def tally(study: Study, results: Path, *, ours: bool) -> list[int]:
    """Return how many claims came out how, in the order held, not held, open, not run, cannot be run here."""
    outcomes = [row.claim.outcome for row in rows_of(study, results) if row.claim.ours == ours]
    return [outcomes.count(outcome) for outcome in OUTCOMES]


# reasons of open rows, as they begin, and what settles them
REMEDIES = {
    "did not learn alike": "train the compared networks to the same training loss",
    "did not learn": "more epochs or another learning rate",
    "no curve of the training loss": "a new run, which stores the training loss",
    "no training accuracy": "a new run, which stores the training accuracy",
    "not finished": "more epochs",
    "the sign is right": "more units",
}
REACHABLE_HOURS = 2.0


def _remedy(row: Row) -> str:
    """Return what would settle an open row."""
    reason, units = row.claim.evaluate[1], units_needed(row.claim)
    if units is not None:
        if units > MAX_UNITS:
            return f"more than {MAX_UNITS} {row.claim.unit}: the two are equal for all that can be told"
        return f"{units} {row.claim.unit} instead of {row.claim.units}"
    if "fewer than" in reason and not any(reason.startswith(known) for known in REMEDIES):
        return f"{MIN_UNITS} {row.claim.unit} instead of {row.claim.units}"
    return next((remedy for known, remedy in REMEDIES.items() if reason.startswith(known)), reason)


def open_rows(study: Study, results: Path) -> str:
    """One table row per part and remedy of the rows that are open: what settles them, for how long."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(study, results):
        if row.claim.outcome == OPEN:
            groups.setdefault((row.part, _remedy(row)), []).append(row)
    cells = []
    for (part, remedy), rows in groups.items():
        hours = [row.hours for row in rows if row.hours is not None]
        time = "" if not hours or remedy.startswith("more than") else f"{max(hours):.1f} h"
        here = "yes" if time and max(hours) <= REACHABLE_HOURS else ""
        cells.append([part, len(rows), remedy, time, here])
    columns = ("part", "open rows", "what would settle them", "one core", f"within {REACHABLE_HOURS:g} h")
    return f"## {study.name}\n\n{markdown_table(columns, cells)}" if cells else ""


def _cells(row: Row, run: str = "") -> list[str]:
    says, *rest = claim_row(row.claim)
    return [says, *rest, f"[{run or row.part}]({row.page})" if row.page else ""]


def section(study: Study, results: Path) -> str:
    """The study's part of the claims page, as Markdown: counts, a row a claim that is decided, and the rest folded."""
    rows = sorted(rows_of(study, results), key=lambda row: (OUTCOMES.index(row.claim.outcome), row.claim.ours))
    decided = [_cells(row, row.run) for row in rows if row.claim.outcome in (HELD, NOT_HELD)]
    rest = [_cells(row) for row in rows if row.claim.outcome not in (HELD, NOT_HELD)]
    lines = [f"## {study.title}", "", study.reference, "", f"Claims {counts([row.claim for row in rows])}.", ""]
    lines += [markdown_table(COLUMNS, decided)] if decided else []
    if rest:
        summary = f"<summary>Not decided: {len(rest)} claims, with the reason of each</summary>"
        lines += ['<details markdown="1">', summary, "", markdown_table(COLUMNS, rest), "</details>", ""]
    return "\n".join(lines)
