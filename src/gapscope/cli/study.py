"""`gapscope study list | run`: the papers' tables and figures, with the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="Reproduce a paper's tables and figures; a stopped study goes on.", no_args_is_help=True)


@app.command("list")
def list_studies() -> None:
    """Name every study with its parts."""
    from gapscope.studies.base import available, load_study

    for name in available():
        study = load_study(name)
        typer.echo(f"{name}  {study.title}")
        for part in study.parts:
            typer.echo(f"    {part.name:<18}{part.title}")


@app.command("run")
def run(
    name: str = typer.Argument(..., help="Name of the study, such as forouzesh2021."),
    scale: str = typer.Option("small", help="'smoke' (seconds), 'small' (minutes on two cores) or 'paper'."),
    only: list[str] = typer.Option([], help="Run this part alone; again for more."),
    results: Path = typer.Option(Path("results"), help="Folder for tables, figures and JSON."),
    work: Path = typer.Option(Path("study-work"), help="Folder for the trained networks."),
    workers: int = typer.Option(2, help="Processes, one thread each."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    again: bool = typer.Option(False, help="Make tables and figures again; trained networks are kept."),
) -> None:
    """Run the parts of a study that have no result yet."""
    from gapscope.cli.progress import stoppable
    from gapscope.studies.base import Setting, load_study, run_study

    study = load_study(name)
    setting = Setting(
        scale=scale,
        work=work / name / scale,
        workers=workers,
        data_root=None if data_root is None else str(data_root),
        say=typer.echo,
    )
    with stoppable():
        written = run_study(study, setting, results, parts=only, again=again)
    typer.echo(f"{len(written)} parts written to {results / name / scale}")
