"""`gapscope leaderboard`: evaluation of measures on networks with known gaps."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from gapscope.cli.options import DATA_ROOT, JSON
from gapscope.cli.output import check_outputs, print_json, print_lines
from gapscope.cli.progress import steps

LEGEND = (
    "partial r: correlation with the gap given the hyperparameters, cross-fitted;",
    "p: its permutation p-value, corrected over all rows (max-T). tau: Kendall's.",
    "granul.: mean tau of groups in which one hyperparameter varies. CMI, PGDL:",
    "conditional mutual information x 100, symmetric and as in the competition.",
    "R2: of a straight line, on held-out training configurations.",
)

SOURCE = typer.Argument(
    None,
    help="Table (CSV, JSON, Parquet) with columns gap, hp.NAME, m.NAME; or a pool folder. Default: networks of the "
    "2020 competition.",
)


def leaderboard(
    source: Path | None = SOURCE,
    measures: list[str] = typer.Option(
        [], "--measure", help="Column of a measure; repeatable. Default: all."
    ),
    hyperparameters: list[str] = typer.Option(
        [],
        "--hyperparameter",
        help="Column of a hyperparameter; repeatable. Default: all that vary.",
    ),
    target: str = typer.Option("gap", help="Column of the gap."),
    baseline: str | None = typer.Option(
        None, help="Column of the network size. Default: parameter_count or m.vc_dim."
    ),
    networks: int = typer.Option(
        300,
        help="Maximum number of networks; above it, training configurations are sampled. Time grows as n^2.",
    ),
    permutations: int = typer.Option(1000, help="Number of permutations for p-values."),
    data_root: str | None = DATA_ROOT,
    output: Path | None = typer.Option(None, help="Write the results to this JSON file."),
    json: bool = JSON,
) -> None:
    """Evaluate measures on networks with a known gap: verdicts, scores and baselines.

    In Python: gapscope.rank_measures.
    """
    from gapscope.leaderboard.ranking import rank_measures

    check_outputs(output)
    with steps("evaluating measures") as show:
        board = rank_measures(
            source,
            measures=measures or None,
            hyperparameters=hyperparameters or None,
            target=target,
            baseline=baseline,
            n_permutations=permutations,
            most_networks=networks,
            data_root=data_root,
            on_measure=lambda name, done, of: show(done, of),
        )
    if output is not None:
        board.save(output)
    if json:
        print_json(board)
        return
    print_lines("\n".join((*board.verdict, "", board.description)))
    print_lines(board.table(columns=shutil.get_terminal_size().columns))
    print_lines("\n".join(LEGEND))
    for name, reason in board.left_out.items():
        print_lines(f"skipped: {name}: {reason}", err=True)
