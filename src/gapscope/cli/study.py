"""`gapscope study list | run | claims`: tables and figures of the papers.

The studies are a package of their own, `gapscope-studies`. Any package can add one: an entry point of the group
`gapscope.studies` that names an object with `title`, `parts`, `run`, `claims`, `write_overview` and optionally
`data_sets`, further data sets of `load_dataset`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer

from gapscope.base.errors import MissingExtra, check_choice
from gapscope.cli.options import DATA_ROOT, JSON, WORKERS
from gapscope.cli.output import print_json, print_lines
from gapscope.cli.progress import handle_interrupts

app = typer.Typer(
    help="Reproduce tables and figures of a paper. Run the same command again to continue.",
    no_args_is_help=True,
)


def available() -> dict[str, EntryPoint]:
    """Return the entry points of the installed studies by name, or raise MissingExtra."""
    result = {point.name: point for point in entry_points(group="gapscope.studies")}
    if not result:
        raise MissingExtra(
            "Studies need the package gapscope-studies, which is not installed. In a clone of the gapscope repository "
            "run: pip install -e studies"
        )
    return result


def load_study(name: str) -> Any:
    """Load the study of this name."""
    check_choice("study", name, list(available()))
    return available()[name].load()


@app.command("list")
def list_studies(json: bool = JSON) -> None:
    """List the studies with their parts."""
    studies = {name: load_study(name) for name in available()}
    if json:
        rows: list[dict[str, Any]] = []
        for name, study in studies.items():
            parts = {part.name: part.title for part in study.parts}
            rows.append({"name": name, "title": study.title, "parts": parts})
        print_json({"studies": rows})
        return
    for name, study in studies.items():
        print_lines(f"{name}  {study.title}")
        for part in study.parts:
            print_lines(f"    {part.name:<18}{part.title}")


@app.command("run")
def run(
    name: str = typer.Argument(help="Name of the study, such as forouzesh2021."),
    scale: str = typer.Option(
        "small", help="'smoke' (seconds), 'small' (minutes on two cores) or 'paper'."
    ),
    only: list[str] = typer.Option([], help="Part to run; repeatable. Default: all."),
    results: Path = typer.Option(Path("results"), help="Folder for tables, figures and JSON."),
    work: Path = typer.Option(Path("study-work"), help="Folder for the trained networks."),
    workers: int = WORKERS,
    data_root: str | None = DATA_ROOT,
    device: str = typer.Option("cpu", help="Torch device: 'cpu', 'cuda' or 'mps'."),
    again: bool = typer.Option(False, help="Rewrite tables and figures from the trained networks."),
    json: bool = JSON,
) -> None:
    """Run the parts of a study that have no result yet."""
    from functools import partial

    study = load_study(name)
    with handle_interrupts(resumes=True):
        paths = study.run(
            results,
            scale=scale,
            work=work / name / scale,
            parts=only,
            again=again,
            workers=workers,
            device=device,
            data_root=data_root,
            say=partial(typer.echo, err=json),
        )
    if json:
        print_json({"written": [str(path) for path in paths]})
    else:
        print_lines(f"{len(paths)} parts written to {results / name / scale}")


def _format_claims(study: Any, results: Path) -> str:
    """Format a study's claims, each outcome in the left margin."""
    lines = [f"{study.name}  {study.title}"]
    for outcome, sentence, ours in study.claims(results):
        margin = "cannot" if outcome.startswith("cannot") else outcome
        lines.append(f"  {margin:<9}  {'(ours) ' if ours else ''}{sentence}")
    return "\n".join(lines)


@app.command("claims")
def claims(
    name: str | None = typer.Argument(None, help="Name of a study. Default: all."),
    results: Path = typer.Option(Path("results"), help="Folder of the stored results."),
    write: bool = typer.Option(
        False, help="Also write README.md (all claims) and the pages of the parts to that folder."
    ),
    json: bool = JSON,
) -> None:
    """Show every claim with its outcome in the stored results."""
    studies = {each: load_study(each) for each in ([name] if name else available())}
    if json:
        keys = ("outcome", "claim", "ours")
        rows = [
            {"study": name, **dict(zip(keys, claim, strict=True))}
            for name, study in studies.items()
            for claim in study.claims(results)
        ]
        print_json({"claims": rows})
    else:
        for study in studies.values():
            print_lines(_format_claims(study, results))
    if write:
        installed = [load_study(each) for each in available()]
        installed[0].write_overview(installed, results)
        print_lines(f"written: {results / 'README.md'}", err=json)
