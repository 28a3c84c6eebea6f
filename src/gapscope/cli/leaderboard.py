"""`gapscope leaderboard`: which measures say more of the gap than the hyperparameters do."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import typer

LEGEND = (
    "partial r: with the gap, given the hyperparameters, cross-fitted; p of its",
    "permutations, corrected over all rows (max-T). tau: Kendall. granul.: one hyper-",
    "parameter varies. CMI, PGDL: conditional mutual information, symmetric and as",
    "the competition's code computes it, x 100. R2: of a line, on held-out",
    "training configurations.",
)

SOURCE = typer.Argument(
    None, help="CSV file with columns gap, hp.NAME, m.NAME, or a pool folder; default the 2020 competition's networks."
)


def leaderboard(
    source: Path | None = SOURCE,
    measures: list[str] = typer.Option([], "--measure", help="A column; again for more. Default: all."),
    hyperparameters: list[str] = typer.Option(
        [], "--hyperparameter", help="A column; again for more. Default: all that vary."
    ),
    target: str = typer.Option("gap", help="Column of the gap."),
    baseline: str | None = typer.Option(None, help="Column of the size; default parameter_count or m.vc_dim."),
    networks: int = typer.Option(
        300, help="Maximum number of networks; of more, whole training configurations are sampled. Time grows as n^2."
    ),
    permutations: int = typer.Option(1000, help="Permutations behind the p-values."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    output: Path | None = typer.Option(None, help="Write everything to this JSON file."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Evaluate measures on networks whose gap is known: verdicts, scores and baselines."""
    from gapscope.cli.output import print_json
    from gapscope.cli.progress import steps
    from gapscope.leaderboard.ranking import rank_measures as judge

    with steps("judging measures") as show:
        found = judge(
            source, measures=measures or None, hyperparameters=hyperparameters or None, target=target,
            baseline=baseline, n_permutations=permutations, most_networks=networks, data_root=data_root,
            on_measure=lambda name, done, of: show(done, of),
        )  # fmt: skip
    if output is not None:
        found.save(output)
    if json:
        print_json(found)
        return
    for sentence in (*found.verdict, "", *found.facts.splitlines()):
        typer.echo(textwrap.fill(sentence, shutil.get_terminal_size().columns))
    typer.echo(found.table(columns=shutil.get_terminal_size().columns))
    for line in LEGEND:
        typer.echo(line)
    for name, why in found.left_out.items():
        typer.echo(f"left out: {name}: {why}", err=True)
