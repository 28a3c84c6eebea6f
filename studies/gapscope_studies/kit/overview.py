"""Overview pages of all studies: `results/README.md` (all claims) and `results/RUN-MORE.md` (what is left to run)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import false_discovery_control

from gapscope.base.files import read_json, write_atomically
from gapscope_studies.kit.claims import OUTCOMES
from gapscope_studies.kit.power import tested
from gapscope_studies.kit.study import Study
from gapscope_studies.kit.summary import decided_per_hour, findings, open_rows, pictured, rows_of, section, tally

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


def _anchor(title: str) -> str:
    """Return the link to a heading on its page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _tally(studies: Sequence[Study], results: Path) -> list[str]:
    """Return a table of the outcomes of claims, one row per paper, then ours."""
    lines = ["| paper | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (1 + len(OUTCOMES))]
    for ours in (False, True):
        for study in studies:
            result = tally(study, results, ours=ours)
            if any(result):
                name = f"[{study.name}](#{_anchor(study.title)}){', ours' if ours else ''}"
                lines.append(f"| {name} | " + " | ".join(map(str, result)) + " |")
    return ["## How many", "", PAGE_RULES, *lines, ""]


def _discoveries(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the false-discovery rate of decided claims: their largest adjusted p-value among all tested claims."""
    tests = tested([row.claim for study in studies for row in rows_of(study, results)])
    adjusted = false_discovery_control([p_value for p_value, _ in tests]) if tests else []
    rates = [rate for rate, (_, is_decided) in zip(adjusted, tests, strict=True) if is_decided]
    decided, rate, above = len(rates), max(rates, default=0.0), sum(rate > 0.05 for rate in rates)
    return [
        f"{decided} decided claims rest on an interval. Their false-discovery rate (Benjamini-Hochberg, over all "
        f"claims that were tested) is at most {rate:.1%}; {above} of them have an adjusted p-value above 5 %.",
        "",
    ]


def _first(studies: Sequence[Study], results: Path) -> list[str]:
    """Return the findings that have a picture."""
    lines = ["## The three most important findings", ""]
    for study in studies:
        for sentence, picture in pictured(study, results):
            lines += [sentence, "", f"![{study.title}]({picture})", ""]
    return lines if len(lines) > 2 else []


def _progress(studies: Sequence[Study], results: Path) -> list[str]:
    """Return decided rows before the last round of runs and now, and those per hour of one core."""
    path = results / "earlier_counts.json"
    if not path.exists():
        return []
    earlier = read_json(path)
    lines = [
        f"At commit {earlier['commit']} ({earlier['date']}) and now: held, not held, open. Rows decided per hour of "
        "one core: those of parts whose time is known.",
        "",
        "| paper | before | now | rows decided per hour |",
        "| --- | --- | --- | --- |",
    ]
    for ours in (False, True):
        for study in studies:
            name, now = f"{study.name}{', ours' if ours else ''}", tally(study, results, ours=ours)
            if any(now):
                before = earlier["counts"].get(name, [0, 0, 0])
                rows, hours, rate = decided_per_hour(study, results)
                cell = f"{rate:.1f} ({rows} in {hours:.1f} h)" if hours and not ours else ""
                counts = (", ".join(map(str, each[:3])) for each in (before, now))
                lines.append(f"| {name} | {' | '.join(counts)} | {cell} |")
    return [*lines, ""]


def _findings(studies: Sequence[Study], results: Path) -> list[str]:
    """Return sentences by outcome, those that are decided first."""
    message = [(*finding, study.name) for study in studies for finding in findings(study, results)]
    lines = []
    for outcome, title in FINDINGS.items():
        there = [f"- {sentence} ({name})" for result, sentence, name in message if result == outcome]
        lines += [f"## {title}", "", *there, ""] if there else []
    return lines or ["No findings yet.", ""]


def write_overview(studies: Sequence[Study], results: Path) -> None:
    """Write both pages from the stored results, studies of papers first, and the pages of all parts."""
    studies = sorted(studies, key=lambda study: not any(tally(study, results, ours=False)))
    for study in studies:
        study.rewrite_pages(results)
    page = [
        PAGE_OPENS,
        *_first(studies, results),
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
