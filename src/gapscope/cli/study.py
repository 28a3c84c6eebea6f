"""`gapscope study list | run | claims`: tables and figures of the papers.

The studies are a package of their own, `gapscope-studies`. Any package can add one: an entry point of the group
`gapscope.studies` that names an object with `title`, `parts`, `run`, `claims`, `tally`, `findings_of`,
`claims_section` and `rewrite_pages`.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON, WORKERS

app = typer.Typer(
    help="Reproduce tables and figures of a paper. Run the same command again to continue.", no_args_is_help=True
)


def available() -> dict[str, EntryPoint]:
    """Name -> entry point of every study that is installed.

    Raises:
        MissingExtra: There is none.
    """
    from gapscope.base.errors import MissingExtra

    found = {point.name: point for point in entry_points(group="gapscope.studies")}
    if not found:
        raise MissingExtra(
            "Studies are a package of their own, which is not installed; in a copy of gapscope's source, run: "
            "pip install -e studies"
        )
    return found


def load_study(name: str) -> Any:
    """Load the study of this name.

    Raises:
        InvalidInput: There is none of this name; the nearest is named.
    """
    from gapscope.base.errors import check_choice

    check_choice("study", name, list(available()))
    return available()[name].load()


@app.command("list")
def list_studies(json: bool = JSON) -> None:
    """List the studies with their parts."""
    studies = {name: load_study(name) for name in available()}
    if json:
        from gapscope.cli.output import print_json

        parts = {name: {part.name: part.title for part in study.parts} for name, study in studies.items()}
        print_json({name: {"title": study.title, "parts": parts[name]} for name, study in studies.items()})
        return
    for name, study in studies.items():
        typer.echo(f"{name}  {study.title}")
        for part in study.parts:
            typer.echo(f"    {part.name:<18}{part.title}")


@app.command("run")
def run(
    name: str = typer.Argument(..., help="Name of the study, such as forouzesh2021."),
    scale: str = typer.Option("small", help="'smoke' (seconds), 'small' (minutes on two cores) or 'paper'."),
    only: list[str] = typer.Option([], help="Part to run; repeatable. Default: all."),
    results: Path = typer.Option(Path("results"), help="Folder for tables, figures and JSON."),
    work: Path = typer.Option(Path("study-work"), help="Folder for the trained networks."),
    workers: int = WORKERS,
    data_root: Path | None = DATA_ROOT,
    device: str = typer.Option("cpu", help="Torch device: 'cpu', 'cuda' or 'mps'."),
    stack: int = typer.Option(1, help="Maximum number of networks that a process trains in one stack."),
    again: bool = typer.Option(False, help="Write tables and figures again from the trained networks."),
    json: bool = JSON,
) -> None:
    """Run the parts of a study that have no result yet."""
    from functools import partial

    from gapscope.cli.output import print_json
    from gapscope.cli.progress import handle_interrupts

    study = load_study(name)
    with handle_interrupts():
        written = study.run(
            results,
            scale=scale,
            work=work / name / scale,
            parts=only,
            again=again,
            workers=workers,
            device=device,
            stack=stack,
            data_root=None if data_root is None else str(data_root),
            say=partial(typer.echo, err=json),
        )
    if json:
        print_json({"written": [str(path) for path in written]})
        return
    typer.echo(f"{len(written)} parts written to {results / name / scale}")


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

`--scale paper --device cuda` trains the networks of pools there; nobody has measured these times. The papers' data are
needed: all of CIFAR-10 and CIFAR-100, MNIST, and ImageNet in folders. Parts: zhao2022 fig3ab, fig4; luo2019 fig2ab,
fig3; forouzesh2021 table1; szolnoky2022 bench.
"""
PAGE_ENDS = """
## Run more

[What is left to run](RUN-MORE.md): what would settle the open claims, for how many hours, and what needs a GPU.

Beside the studies: [mnist_lenet5](mnist_lenet5/README.md), eight LeNet-5 on blurred MNIST, interrupted and resumed.
"""
OUTCOMES = ("held", "not held", "open", "not run", "cannot be run here")
FINDINGS = {"held": "What holds", "not held": "What does not hold", "open": "What is still open"}
SCREEN = 80


def _anchor(title: str) -> str:
    """Return the link to a heading on its page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _tally(studies: list[Any], results: Path) -> list[str]:
    """A table of how many claims came out how, a row per paper, then ours."""
    lines = ["| paper | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (1 + len(OUTCOMES))]
    for ours in (False, True):
        for study in studies:
            found = study.tally(results, ours=ours)
            if any(found):
                name = f"[{study.name}](#{_anchor(study.title)}){', ours' if ours else ''}"
                lines.append(f"| {name} | " + " | ".join(map(str, found)) + " |")
    return ["## How many", "", PAGE_RULES, *lines, ""]


def _discoveries(studies: list[Any], results: Path) -> list[str]:
    """Return the number of decided claims expected to be wrong by chance."""
    from gapscope.statistics.false_discoveries import false_discoveries

    decided, rate, above = false_discoveries([pair for study in studies for pair in study.tested(results)])
    return [
        f"{decided} decided claims rest on an interval. Their false-discovery rate (Benjamini-Hochberg, over all "
        f"claims that were tested) is at most {rate:.1%}; {above} of them have an adjusted p-value above 5 %.",
        "",
    ]


def _first(studies: list[Any], results: Path) -> list[str]:
    """The findings that have a picture."""
    lines = ["## The three most important findings", ""]
    for study in studies:
        for sentence, picture in study.pictured_findings(results):
            lines += [sentence, "", f"![{study.title}]({picture})", ""]
    return lines if len(lines) > 2 else []


def _progress(studies: list[Any], results: Path) -> list[str]:
    """Decided rows before the last round of runs and now, and those per hour of one core."""
    from gapscope.base.files import read_json

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
            name, now = f"{study.name}{', ours' if ours else ''}", study.tally(results, ours=ours)
            if any(now):
                before = earlier["counts"].get(name, [0, 0, 0])
                rows, hours, rate = study.decided_per_hour(results)
                cell = f"{rate:.1f} ({rows} in {hours:.1f} h)" if hours and not ours else ""
                counts = (", ".join(map(str, each[:3])) for each in (before, now))
                lines.append(f"| {name} | {' | '.join(counts)} | {cell} |")
    return [*lines, ""]


def _findings(studies: list[Any], results: Path) -> list[str]:
    """Sentences by outcome, those that are decided first."""
    told = [(*finding, study.name) for study in studies for finding in study.findings_of(results)]
    lines = []
    for outcome, title in FINDINGS.items():
        there = [f"- {sentence} ({name})" for found, sentence, name in told if found == outcome]
        lines += [f"## {title}", "", *there, ""] if there else []
    return lines or ["No findings yet.", ""]


def _format_claims(study: Any, results: Path) -> list[str]:
    """Format a study's claims for 80 columns, the outcome in the margin."""
    from textwrap import wrap

    lines = wrap(f"{study.name}  {study.title}", SCREEN, subsequent_indent="    ")
    for outcome, sentence, ours in study.claims(results):
        margin = f"  {'cannot' if outcome.startswith('cannot') else outcome:<9}"
        text = wrap(f"{'(ours) ' if ours else ''}{sentence}", SCREEN - len(margin))
        lines += [f"{margin if number == 0 else ' ' * len(margin)}{line}" for number, line in enumerate(text)]
    return lines


def _claim(outcome: str, sentence: str, ours: bool) -> dict[str, Any]:
    return {"outcome": outcome, "claim": sentence, "ours": ours}


@app.command("claims")
def claims(
    name: str | None = typer.Argument(None, help="Name of a study. Default: all."),
    results: Path = typer.Option(Path("results"), help="Folder of the stored results."),
    write: bool = typer.Option(
        False, help="Also write README.md (all claims) and the pages of the parts to that folder."
    ),
    json: bool = JSON,
) -> None:
    """Show every claim from the stored results, and why open ones are open."""
    from gapscope.base.files import write_atomically
    from gapscope.cli.output import print_json

    names = [name] if name else list(available())
    asked = {name: load_study(name) for name in names}
    if json:
        found = {name: study.claims(results) for name, study in asked.items()}
        print_json({name: [_claim(*claim) for claim in each] for name, each in found.items()})
    for study in () if json else asked.values():
        for line in _format_claims(study, results):
            typer.echo(line)
    if write:
        studies = sorted(
            (load_study(there) for there in available()), key=lambda s: not any(s.tally(results, ours=False))
        )
        for study in studies:
            study.rewrite_pages(results)
        opening = [PAGE_OPENS, *_first(studies, results), *_findings(studies, results), *_tally(studies, results)]
        page = [
            *opening,
            *_progress(studies, results),
            *_discoveries(studies, results),
            *(study.claims_section(results) for study in studies),
            PAGE_ENDS,
        ]
        write_atomically(results / "README.md", "\n".join(page).rstrip() + "\n")
        more = [MORE_OPENS, *filter(None, (study.open_section(results) for study in studies)), MORE_ENDS]
        write_atomically(results / "RUN-MORE.md", "\n".join(more).rstrip() + "\n")
        typer.echo(f"written: {results / 'README.md'}", err=json)
