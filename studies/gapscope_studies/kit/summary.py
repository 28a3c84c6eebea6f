"""All claims (`results/README.md`) and what is left to run (`results/RUN-MORE.md`)."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import stats
from scipy.stats import false_discovery_control

from gapscope.base.errors import InvalidInput
from gapscope.base.files import read_json, write_atomically
from gapscope_studies.kit.claims import BOTH_ANSWERS, HELD, MIN_UNITS, NOT_HELD, OPEN, OUTCOMES, Claim, counts, not_run
from gapscope_studies.kit.page import claim_row, markdown_table, scale_in_words

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
    if claim.exact or claim.units < 2 or not math.isfinite(claim.low) or not math.isfinite(claim.high):
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
    allowed = [c for c in claims if not c.status and not c.doubts and c.outcome in (HELD, NOT_HELD, OPEN)]
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
        half = _error(claim, bound) * float(stats.norm.ppf(0.975))  # shrinks with the root of the number of units
        needed = max(needed, claim.units * FOR_80_PERCENT * (half / distance) ** 2 if distance else math.inf)
    return min(max(math.ceil(needed), claim.units + 1), MAX_UNITS + 1) if math.isfinite(needed) else MAX_UNITS + 1


def hours_needed(claim: Claim, content: Mapping[str, Any]) -> float | None:
    """Return the CPU hours of the missing units at the cost of the stored ones, or None."""
    units, seconds = units_needed(claim), content.get("seconds_of_runs")
    if units is None or not seconds:
        return None
    return (units - claim.units) * float(seconds) / claim.units / 3600


# --- claims and findings of one study

SCALES = ("paper", "small")  # of evidence about a paper, the largest first
COLUMNS = ("what is claimed", "the paper", "ours", "verdict", "what was run")


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
    picture: str = ""  # figure of the part that shows it; such a finding comes first on the page of all claims

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
        candidates = [row for row in rows if row.part == self.part and row.claim.statement.startswith(says)]
        candidates = [row for row in candidates if row.claim.statement == says] or candidates
        if len(candidates) != 1:
            raise InvalidInput(f"A finding must name one claim; {self.part}: {says!r} names {len(candidates)}.")
        return candidates[0]


def read_findings(path: Path | str) -> tuple[Finding, ...]:
    """Return the findings in `findings.toml` in the folder of a study's file."""
    content = tomllib.loads(Path(path).with_name("findings.toml").read_text(encoding="utf-8"))
    return tuple(Finding(**row) for row in content["finding"])


def stored_claims(content: Mapping[str, Any]) -> list[Claim]:
    """Return the claims in the JSON of a part."""
    return [Claim.from_dict(row) for row in content.get("claims", ())]


def _stored(study: Study, part: Part, results: Path) -> tuple[str, dict[str, Any]]:
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
        scale, content = _stored(study, part, results)
        if content:
            run, page = f"{scale}: {scale_in_words(content, most=2)}", f"{study.name}/{scale}/{part.name}.md"
            rows += [Row(c, part.name, run, page, hours_needed(c, content)) for c in stored_claims(content)]
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


# beginning of the reason of an open claim -> what would decide it
REMEDIES = {
    "did not learn alike": "train the compared networks to the same training loss",
    "did not learn": "more epochs or another learning rate",
    "no curve of the training loss": "a new run, which stores the training loss",
    "no training accuracy": "a new run, which stores the training accuracy",
    "not finished": "more epochs",
    "the sign is right": "more units",
}
REACHABLE_HOURS = 2.0


def _remedy(claim: Claim) -> str:
    """Return what would decide an open claim."""
    reason, units = claim.verdict[1], units_needed(claim)
    if units is not None and units > MAX_UNITS:
        return f"more than {MAX_UNITS} {claim.unit}: the two are equal for all that can be told"
    if units is not None:
        return f"{units} {claim.unit} instead of {claim.units}"
    remedy = next((remedy for start, remedy in REMEDIES.items() if reason.startswith(start)), "")
    enough = f"{MIN_UNITS} {claim.unit} instead of {claim.units}" if "fewer than" in reason else ""
    return remedy or enough or reason


def open_rows(study: Study, results: Path) -> str:
    """Return a table of the open claims by part and remedy, with the hours of the remedy."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(study, results):
        if row.claim.outcome == OPEN:
            groups.setdefault((row.part, _remedy(row.claim)), []).append(row)
    cells = []
    for (part, remedy), rows in groups.items():
        hours = [row.hours for row in rows if row.hours is not None]
        time = "" if not hours or remedy.startswith("more than") else f"{max(hours):.1f} h"
        reachable = "yes" if time and max(hours) <= REACHABLE_HOURS else ""
        cells.append([part, len(rows), remedy, time, reachable])
    columns = ("part", "open rows", "what would settle them", "one core", f"within {REACHABLE_HOURS:g} h")
    return f"## {study.name}\n\n{markdown_table(columns, cells)}" if cells else ""


def section(study: Study, results: Path) -> str:
    """Return the Markdown of one study: counts, a row per decided claim, the rest folded."""
    rows = sorted(rows_of(study, results), key=lambda row: (OUTCOMES.index(row.claim.outcome), row.claim.ours))
    decided, rest = [], []
    for row in rows:
        is_decided = row.claim.outcome in (HELD, NOT_HELD)
        link = f"[{(is_decided and row.run) or row.part}]({row.page})" if row.page else ""
        (decided if is_decided else rest).append([*claim_row(row.claim), link])
    lines = [f"## {study.title}", "", study.reference, "", f"Claims {counts([row.claim for row in rows])}.", ""]
    lines += [markdown_table(COLUMNS, decided)] if decided else []
    if rest:
        summary = f"<summary>Not decided: {len(rest)} claims, with the reason of each</summary>"
        lines += ['<details markdown="1">', summary, "", markdown_table(COLUMNS, rest), "</details>", ""]
    return "\n".join(lines)


# --- the two pages about all studies

PAGE_OPENS = """# What holds, and what does not

Which claims of four papers hold when they are run again, with our numbers and their 95 % intervals: first the findings
in sentences, then how many, then one row per claim. Our own claims are counted apart. Made from the JSON files by
`gapscope study claims --write`; no number of it is typed.
"""
PAGE_RULES = """A claim **held** or did **not hold** only where every network compared learned (training accuracy more
than five points above chance; accuracies and losses within .1 of each other unless the claim is about unequal
training), its training was finished, six or more independent units stand behind it, and the interval holds one answer
alone. Intervals are Student's over units; bootstrap percentiles of fewer than ten units are widened to hold 5 %. Where
no network is compared, what stands behind the number is named. Else it is **open**, with the reason. What no part tests
was **not run**; what lacks data or a machine **cannot be run here**. Units that share something say so: "seeds (same
images)" differ in weights and order alone, "configurations (same images)" in depth, width or kind. All but one part
were run at the scale "small": smaller networks on fewer images than the papers', as each page says.

Two settings of these rules are choices. Networks of zhao2022 count as fitted from a training accuracy of .97 on, where
the authors' own code stops training. Claims of forouzesh2021 limit the training accuracies of the compared networks,
not their losses: from standard normal weights logits are in the thousands, one misfitted sample costs thousands of
nats, and a limit of .1 nats would leave open what equal accuracies decide. Units were added once, in parts that each
page names, where the first result said how many would decide; one such look at the data raises the risk of a wrong
verdict from 5 to about 8 %.
"""
MORE_OPENS = """# What is left to run

Generated from the reasons of the open claims by `gapscope study claims --write`. Where an interval holds both answers,
the units are those that would find the present effect in four of five cases at 5 %; times are those of the stored runs,
per unit, on one core. Resume with `gapscope study run STUDY --only PART --again`: networks that exist are used again.
"""
MORE_ENDS = """
## On a GPU

`--scale paper --device cuda` trains the networks of pools there; these times have not been measured. The data of
the papers are needed: all of CIFAR-10 and CIFAR-100, MNIST, and ImageNet in folders. Parts: zhao2022 fig3ab, fig4;
luo2019 fig2ab, fig3; forouzesh2021 table1; szolnoky2022 bench.
"""
PAGE_ENDS = """
## Run more

[What is left to run](RUN-MORE.md): what would settle the open claims, for how many hours, and what needs a GPU.
"""
FINDINGS = {"held": "What holds", "not held": "What does not hold", "open": "What is still open"}


def _tally(studies: Sequence[Study], results: Path) -> list[str]:
    """Return a table of the outcomes of claims, one row per paper, then ours."""
    lines = ["| paper | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (1 + len(OUTCOMES))]
    for ours in (False, True):
        for study in studies:
            result = tally(study, results, ours=ours)
            if any(result):
                anchor = re.sub(r"[^\w\- ]", "", study.title.lower()).replace(" ", "-")
                name = f"[{study.name}](#{anchor}){', ours' if ours else ''}"
                lines.append(f"| {name} | " + " | ".join(map(str, result)) + " |")
    return ["## How many", "", PAGE_RULES, *lines, ""]


def _discoveries(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the false-discovery rate of decided claims among all tested claims."""
    tests = p_values([row.claim for study in studies for row in rows_of(study, results)])
    adjusted = false_discovery_control([p_value for p_value, _ in tests]) if tests else []
    rates = [rate for rate, (_, is_decided) in zip(adjusted, tests, strict=True) if is_decided]
    return [
        f"{len(rates)} decided claims rest on an interval. Their false-discovery rate (Benjamini-Hochberg, over all "
        f"claims that were tested) is at most {max(rates, default=0.0):.1%}; {sum(rate > 0.05 for rate in rates)} of "
        "them have an adjusted p-value above 5 %.",
        "",
    ]


def _illustrated(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the findings that have a picture."""
    lines = ["## The three most important findings", ""]
    for study in studies:
        for _, sentence, picture in findings(study, results):
            lines += [sentence, "", f"![{study.title}]({picture})", ""] if picture else []
    return lines if len(lines) > 2 else []


def _progress(studies: Sequence[Study], results: Path) -> list[str]:
    """Return a table of decided claims at an earlier commit and now, with their rate per hour."""
    path = results / "earlier_counts.json"
    if not path.exists():
        return []
    earlier, rows = read_json(path), []
    for ours in (False, True):
        for study in studies:
            name, now = f"{study.name}{', ours' if ours else ''}", tally(study, results, ours=ours)
            if not any(now):
                continue
            contents = [_stored(study, part, results)[1] for part in study.parts]
            contents = [content for content in contents if content.get("seconds_of_runs")]
            hours = sum(float(content["seconds_of_runs"]) for content in contents) / 3600
            n = sum(claim.outcome in (HELD, NOT_HELD) for content in contents for claim in stored_claims(content))
            before = earlier["counts"].get(name, [0, 0, 0])
            before, now = (", ".join(map(str, numbers[:3])) for numbers in (before, now))
            rows.append([name, before, now, f"{n / hours:.1f} ({n} in {hours:.1f} h)" if hours and not ours else ""])
    return [
        f"At commit {earlier['commit']} ({earlier['date']}) and now: held, not held, open. Rows decided per hour of "
        "one core: those of parts whose time is known.",
        "",
        markdown_table(("paper", "before", "now", "rows decided per hour"), rows),
    ]


def _findings(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the sentences of all findings by outcome."""
    rows = [(*finding, study.name) for study in studies for finding in findings(study, results)]
    lines = []
    for outcome, title in FINDINGS.items():
        sentences = [f"- {sentence} ({name})" for result, sentence, _, name in rows if result == outcome]
        lines += [f"## {title}", "", *sentences, ""] if sentences else []
    return lines or ["No findings yet.", ""]


def write_overview(studies: Sequence[Study], results: Path) -> None:
    """Write both pages and the pages of all parts from stored results, papers first."""
    studies = sorted(studies, key=lambda study: not any(tally(study, results, ours=False)))
    for study in studies:
        study.rewrite_pages(results)
    page = [
        PAGE_OPENS,
        *_illustrated(studies, results),
        *_findings(studies, results),
        *_tally(studies, results),
        *_progress(studies, results),
        *_discoveries(studies, results),
        *(section(study, results) for study in studies),
        PAGE_ENDS,
    ]
    write_atomically(results / "README.md", "\n".join(page).rstrip() + "\n")
    more = [MORE_OPENS, *filter(None, (open_rows(study, results) for study in studies)), MORE_ENDS]
    write_atomically(results / "RUN-MORE.md", "\n".join(more).rstrip() + "\n")
