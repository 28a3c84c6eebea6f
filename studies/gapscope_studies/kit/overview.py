"""All claims (`results/README.md`) and what is left to run (`results/RUN-MORE.md`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scipy.stats import false_discovery_control

from gapscope.base.files import read_json, write_atomically
from gapscope_studies.kit.claims import HELD, NOT_HELD, OPEN, OUTCOMES, counts
from gapscope_studies.kit.page import claim_row, markdown_table
from gapscope_studies.kit.summary import (
    Row,
    count_lacking_training,
    findings,
    p_values,
    remedy_of,
    rows_of,
    stored_claims,
    stored_part,
    tally,
)

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Study

COLUMNS = ("what is claimed", "the paper", "ours", "verdict", "what was run")
REACHABLE_HOURS = 2.0


def open_rows(study: Study, results: Path) -> str:
    """Return a table of the open claims by part and remedy, with the hours of the remedy."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows_of(study, results):
        if row.claim.outcome == OPEN:
            groups.setdefault((row.part, remedy_of(row.claim)), []).append(row)
    cells = []
    for (part, remedy), rows in groups.items():
        hours = [row.hours for row in rows if row.hours is not None]
        time = "" if not hours or remedy.startswith("more than") else f"{max(hours):.1f} h"
        reachable = "yes" if time and max(hours) <= REACHABLE_HOURS else ""
        cells.append([part, len(rows), remedy, time, reachable])
    for part in study.parts:
        changed = stored_part(study, part, results)[1].get("outdated", [])
        if changed:
            cells.append(
                [
                    part.name,
                    "all",
                    f"a new run with the committed settings: {', '.join(changed)}",
                    "",
                    "",
                ]
            )
    columns = (
        "part",
        "open rows",
        "what would settle them",
        "one core",
        f"within {REACHABLE_HOURS:g} h",
    )
    return f"## {study.name}\n\n{markdown_table(columns, cells)}" if cells else ""


def section(study: Study, results: Path) -> str:
    """Return the Markdown of one study: counts, a row per decided claim, the rest folded."""
    rows = sorted(
        rows_of(study, results), key=lambda row: (OUTCOMES.index(row.claim.outcome), row.claim.ours)
    )
    decided, rest = [], []
    for row in rows:
        is_decided = row.claim.outcome in (HELD, NOT_HELD)
        link = f"[{(is_decided and row.run) or row.part}]({row.page})" if row.page else ""
        (decided if is_decided else rest).append([*claim_row(row.claim), link])
    lines = [
        f"## {study.title}",
        "",
        study.reference,
        "",
        f"Claims {counts([row.claim for row in rows])}.",
        "",
    ]
    lines += [markdown_table(COLUMNS, decided)] if decided else []
    if rest:
        summary = f"<summary>Not decided: {len(rest)} claims, with the reason of each</summary>"
        lines += [
            '<details markdown="1">',
            summary,
            "",
            markdown_table(COLUMNS, rest),
            "</details>",
            "",
        ]
    scales = _scales(study, results)
    if scales:
        lines += [
            '<details markdown="1">',
            "<summary>The paper's scale and ours, part by part</summary>",
            "",
        ]
        lines += [markdown_table(("part", "the paper", "here"), scales), "</details>", ""]
    return "\n".join(lines)


def _scales(study: Study, results: Path) -> list[list[str]]:
    """Return a row per part with what the paper used, where it says so, and what was used here."""
    rows = []
    for part in study.parts:
        stands = [
            row
            for row in stored_part(study, part, results)[1].get("stands_in_for", ())
            if row["paper"]
        ]
        if stands:
            cells = (
                "; ".join(f"{row['what']}: {row[who]}" for row in stands if row[who])
                for who in ("paper", "here")
            )
            rows.append([part.name, *cells])
    return rows


# --- the two pages about all studies

PAGE_OPENS = """# What holds, and what does not

Which claims of four papers hold when they are run again, with our numbers and their 95 % intervals: first the findings
in sentences, then how many, then one row per claim. Our own claims are counted apart. Made from the JSON files by
`gapscope study claims --write`; no number of it is typed.
"""
PAGE_RULES = """A claim **held** or did **not hold** only where every network compared learned (training accuracy more
than five points above chance; accuracies and losses within .1 of each other unless the claim is about unequal
training), its training was finished (a stop rule ended it, or its loss is below a twentieth of that of guessing, or
fell no longer, by its range and in proportion), six or more independent units stand behind it, and the interval holds
one answer alone. Intervals are Student's over units; bootstrap percentiles of fewer than ten units are widened to hold
5 %. Where no network is compared, what stands behind the number is named. Else it is **open**, with the reason. What no
part tests was **not run**; what lacks data or a machine **cannot be run here**. Units that share something say so:
"seeds (same images)" differ in weights and order alone, "configurations (same images)" in depth, width or kind. All but
one part were run at the scale "small": smaller networks on fewer images than the papers', as each page says.

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
    columns = ("paper", *OUTCOMES, "open for lack of training")
    lines = [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    for ours in (False, True):
        for study in studies:
            result = tally(study, results, ours=ours)
            if any(result):
                anchor = re.sub(r"[^\w\- ]", "", study.title.lower()).replace(" ", "-")
                name = f"[{study.name}](#{anchor}){', ours' if ours else ''}"
                result.append(count_lacking_training(study, results, ours=ours))
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
    """Return a table of claims at an earlier commit and now, with the decided ones per hour."""
    path = results / "earlier_counts.json"
    if not path.exists():
        return []
    earlier, rows = read_json(path), []
    for ours in (False, True):
        for study in studies:
            name, now = f"{study.name}{', ours' if ours else ''}", tally(study, results, ours=ours)
            if not any(now):
                continue
            now = [*now[:3], count_lacking_training(study, results, ours=ours)]
            contents = [stored_part(study, part, results)[1] for part in study.parts]
            contents = [content for content in contents if content.get("seconds_of_runs")]
            hours = sum(float(content["seconds_of_runs"]) for content in contents) / 3600
            n = sum(
                claim.outcome in (HELD, NOT_HELD)
                for content in contents
                for claim in stored_claims(content)
            )
            before = earlier["counts"].get(name, [0, 0, 0, 0])
            before, now = (f"{a}, {b}, {c} ({training})" for a, b, c, training in (before, now))
            rows.append(
                [
                    name,
                    before,
                    now,
                    f"{n / hours:.1f} ({n} in {hours:.1f} h)" if hours and not ours else "",
                ]
            )
    return [
        f"At commit {earlier['commit']} ({earlier['date']}) and now: held, not held, open (of these "
        "for lack of training). Rows decided per hour of one core: those of parts whose time is known.",
        "",
        markdown_table(("paper", "before", "now", "rows decided per hour"), rows),
    ]


def _findings(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the sentences of all findings by outcome."""
    rows = [(*finding, study.name) for study in studies for finding in findings(study, results)]
    lines = []
    for outcome, title in FINDINGS.items():
        sentences = [
            f"- {sentence} ({name})" for result, sentence, _, name in rows if result == outcome
        ]
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
