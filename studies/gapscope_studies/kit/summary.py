"""Rows, findings and counts of the claims of one study, and the units that open ones need."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import stats

from gapscope.base.errors import InvalidInput
from gapscope.base.files import read_json
from gapscope_studies.kit.claims import (
    BOTH_ANSWERS,
    HELD,
    MIN_UNITS,
    NOT_HELD,
    OPEN,
    OUTCOMES,
    Claim,
    not_run,
)
from gapscope_studies.kit.page import scale_in_words

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Part, Study

# --- p-values of verdicts, and units and hours for open claims

# units that give the present effect an 80 % chance at 5 %, over those whose interval would just exclude the bound
FOR_80_PERCENT = ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) / stats.norm.ppf(0.975)) ** 2
MAX_UNITS = 1000


def _nearest(claim: Claim) -> list[float]:
    """Return the bound that decides the verdict, or all finite ones of a claim that held."""
    above, below = claim.bounds
    bounds = [bound for bound in (above, below) if math.isfinite(bound)]
    if claim.outcome == HELD:
        return bounds
    if claim.paper is not None and claim.outcome == NOT_HELD and above < claim.value < below:
        bounds = [claim.paper / claim.within, claim.paper * claim.within]
    return [min(bounds, key=lambda bound: abs(bound - claim.value))] if bounds else []


def _error(claim: Claim, bound: float) -> float:
    """Standard error towards a bound, from that end of the interval."""
    end = claim.low if bound < claim.value else claim.high
    return abs(claim.value - end) / float(stats.t.ppf(0.975, claim.units - 1))


def p_value(claim: Claim) -> float | None:
    """Return the two-sided p-value (Student's t) against the nearest bound, or None."""
    if (
        claim.exact
        or claim.units < 2
        or not math.isfinite(claim.low)
        or not math.isfinite(claim.high)
    ):
        return None
    values = []
    for bound in _nearest(claim):
        error = _error(claim, bound)
        if error <= 0 or not math.isfinite(error):
            return None
        values.append(2 * float(stats.t.sf(abs(claim.value - bound) / error, claim.units - 1)))
    return max(values, default=None)  # a claim that held between two bounds excludes both


def p_values(claims: Sequence[Claim]) -> list[tuple[float, bool]]:
    """Return the p-values of the claims without doubts, and whether each is decided."""
    allowed = [
        c for c in claims if not c.status and not c.doubts and c.outcome in (HELD, NOT_HELD, OPEN)
    ]
    pairs = [(p_value(claim), claim.outcome != OPEN) for claim in allowed]
    return [(p, decided) for p, decided in pairs if p is not None]


def units_needed(claim: Claim) -> int | None:
    """Return the units for a power of 80 % at this effect, at most MAX_UNITS + 1 (or None)."""
    if claim.outcome != OPEN or claim.verdict[1] != BOTH_ANSWERS or not math.isfinite(claim.low):
        return None
    inside = [bound for bound in claim.bounds if claim.low <= bound <= claim.high]
    if not inside or claim.units < 2:  # more units would decide nothing
        return None
    needed = 0.0
    for bound in inside:
        distance = abs(claim.value - bound)
        # shrinks with the root of the number of units
        half = _error(claim, bound) * float(stats.norm.ppf(0.975))
        needed = max(
            needed, claim.units * FOR_80_PERCENT * (half / distance) ** 2 if distance else math.inf
        )
    return (
        min(max(math.ceil(needed), claim.units + 1), MAX_UNITS + 1)
        if math.isfinite(needed)
        else MAX_UNITS + 1
    )


def hours_needed(claim: Claim, content: Mapping[str, Any]) -> float | None:
    """Return the CPU hours of the missing units at the cost of the stored ones, or None."""
    units, seconds = units_needed(claim), content.get("seconds_of_runs")
    if units is None or not seconds:
        return None
    return (units - claim.units) * float(seconds) / claim.units / 3600


# --- claims and findings of one study

SCALES = ("paper", "small")  # of evidence about a paper, the largest first


@dataclass(frozen=True)
class Row:
    """Claim with its part, scale and page, and the hours that would decide it if it is open."""

    claim: Claim
    part: str = ""
    run: str = ""
    page: str = ""
    hours: float | None = None


@dataclass(frozen=True)
class Finding:
    """Sentence about a claim, with its fields: {value:.2f}, {low}, {high}, {paper}, {units}.

    A second claim of the same part may stand in the sentence: {beside.value}, {beside.outcome}.
    """

    part: str
    says: str  # the statement of the claim, or how it begins
    beside: str = ""  # the statement of the second claim
    held: str = ""
    not_held: str = ""
    undecided: str = ""  # followed by the reason
    picture: str = (
        ""  # figure of the part that shows it; such a finding comes first on the page of all claims
    )

    def render(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Return the outcome with its sentence, by default that of the claim."""
        row = self._find(rows, self.says)
        claim, (outcome, reason) = row.claim, row.claim.verdict
        template = {HELD: self.held, NOT_HELD: self.not_held, OPEN: self.undecided}.get(outcome)
        if not template:
            return outcome, claim.sentence
        values = vars(claim)
        if self.beside:
            values = {**values, "beside": self._find(rows, self.beside).claim}
        because = f" Open: {reason}." if outcome == OPEN else ""
        return outcome, f"{template.format(**values)}{because} [{claim.source}]({row.page})"

    def _find(self, rows: Sequence[Row], says: str) -> Row:
        """Return the row of the one claim of the part with this statement, or that begins so."""
        candidates = [
            row for row in rows if row.part == self.part and row.claim.statement.startswith(says)
        ]
        candidates = [row for row in candidates if row.claim.statement == says] or candidates
        if len(candidates) != 1:
            raise InvalidInput(
                f"A finding must name one claim; {self.part}: {says!r} names {len(candidates)}."
            )
        return candidates[0]


def read_findings(path: Path | str) -> tuple[Finding, ...]:
    """Return the findings in `findings.toml` in the folder of a study's file."""
    content = tomllib.loads(Path(path).with_name("findings.toml").read_text(encoding="utf-8"))
    return tuple(Finding(**row) for row in content["finding"])


def stored_claims(content: Mapping[str, Any]) -> list[Claim]:
    """Return the claims in the JSON of a part."""
    return [Claim.from_dict(row) for row in content.get("claims", ())]


def stored_part(study: Study, part: Part, results: Path) -> tuple[str, dict[str, Any]]:
    """Return scale and content of the largest stored result of a part (empty without one)."""
    for scale in SCALES:
        path = results / study.name / scale / f"{part.name}.json"
        if path.exists():
            return scale, read_json(path)
    return "", {}


def rows_of(study: Study, results: Path) -> list[Row]:
    """Return all claims of a study, those that no part tests last."""
    rows = []
    for part in study.parts:
        scale, content = stored_part(study, part, results)
        if content:
            run, page = (
                f"{scale}: {scale_in_words(content, most=2)}",
                f"{study.name}/{scale}/{part.name}.md",
            )
            rows += [
                Row(c, part.name, run, page, hours_needed(c, content))
                for c in stored_claims(content)
            ]
        elif part.says and not part.ours:
            why = "no result at small or paper scale"
            rows.append(Row(not_run(part.name, part.says.rstrip("."), why), part.name))
    return [*rows, *(Row(claim) for claim in study.untested)]


def findings(study: Study, results: Path) -> list[tuple[str, str, str]]:
    """Return outcome, sentence and picture ("" for none) of the findings with a result."""
    rows = rows_of(study, results)
    folders = {row.part: row.page.rsplit("/", 1)[0] for row in rows if row.page}
    return [
        (*item.render(rows), f"{folders[item.part]}/{item.part}-{item.picture}.svg" if item.picture else "")
        for item in study.findings if item.part in folders
    ]  # fmt: skip


def tally(study: Study, results: Path, *, ours: bool) -> list[int]:
    """Return the number of claims per outcome."""
    outcomes = [row.claim.outcome for row in rows_of(study, results) if row.claim.ours == ours]
    return [outcomes.count(outcome) for outcome in OUTCOMES]


# beginning of the reason of an open claim that more or better training would lift -> what would decide it
TRAINING = {
    "did not learn alike": "train the compared networks to the same training loss",
    "did not learn": "more epochs or another learning rate",
    "no curve of the training loss": "a new run, which stores the training loss",
    "no training accuracy": "a new run, which stores the training accuracy",
    "not finished": "more epochs",
}
REMEDIES = {**TRAINING, "the sign is right": "more units"}


def lacks_training(claim: Claim) -> bool:
    """Return whether a claim is open since its networks were not trained as it needs.

    Others are open for a reason that training does not lift: an interval that holds both answers, or few units.
    """
    return claim.outcome == OPEN and claim.verdict[1].startswith(tuple(TRAINING))


def count_lacking_training(study: Study, results: Path, *, ours: bool) -> int:
    """Return the number of claims that are open since their networks were not trained enough."""
    return sum(
        lacks_training(row.claim) for row in rows_of(study, results) if row.claim.ours == ours
    )


def remedy_of(claim: Claim) -> str:
    """Return what would decide an open claim."""
    reason, units = claim.verdict[1], units_needed(claim)
    if units is not None and units > MAX_UNITS:
        return f"more than {MAX_UNITS} {claim.unit}: the two are equal for all that can be told"
    if units is not None:
        return f"{units} {claim.unit} instead of {claim.units}"
    remedy = next((remedy for start, remedy in REMEDIES.items() if reason.startswith(start)), "")
    enough = f"{MIN_UNITS} {claim.unit} instead of {claim.units}" if "fewer than" in reason else ""
    return remedy or enough or reason
