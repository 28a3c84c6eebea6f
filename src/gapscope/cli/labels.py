"""`gapscope labels`: suspected label errors as a table, an HTML page or a review list."""

from __future__ import annotations

from pathlib import Path

import typer

from gapscope.cli.arguments import read_labelled_table, read_second, read_source
from gapscope.cli.factories import is_factory
from gapscope.cli.options import GROUPS, JSON, LABEL_COLUMN, NO_ANSWER, SEED, SIDE, TIME_BUDGET
from gapscope.cli.output import check_outputs, print_json, print_lines


def labels(
    target: Path = typer.Argument(
        help="module:function that returns (network, data) or (None, data); a table (CSV, JSON lines, Parquet); or a "
        "folder with one folder of pictures per class.",
    ),
    column: str | None = LABEL_COLUMN,
    groups: str | None = GROUPS,
    side: int = SIDE,
    precision: float | None = typer.Option(
        None,
        help="Expected fraction of errors among the flagged samples. Default: labels more likely wrong than right.",
    ),
    test: Path | None = typer.Option(
        None, help="Table or folder of test samples; reports those that repeat a training sample."
    ),
    html: Path | None = typer.Option(None, help="Write a self-contained HTML page for review."),
    csv: Path | None = typer.Option(None, help="Write a review list, for `gapscope correct`."),
    time_budget: float = TIME_BUDGET,
    seed: int = SEED,
    json: bool = JSON,
) -> None:
    """Rank samples by the probability that their label is wrong, with or without a network."""
    from gapscope.labels.label_issues import find_label_issues

    check_outputs(html, csv, sources=(target, test))
    network = label_column = of_groups = held_out = None
    if is_factory(target) or target.is_dir():
        network, data, _ = read_source(target, column, groups, side, test)
        if test is not None:
            held_out = read_second(test, column, data)
    else:
        table = read_labelled_table(target, column, groups=groups)
        data, label_column, of_groups = table.frame, table.target, table.groups
        if test is not None:
            held_out = read_labelled_table(test, column, like=table).frame
            held_out = held_out.drop(columns=groups or [], errors="ignore")
    issues = find_label_issues(
        network,
        data,
        target=label_column,
        groups=of_groups,
        precision=precision,
        test=held_out,
        time_budget=time_budget,
        seed=seed,
    )
    for path, write in ((html, issues.write_html), (csv, issues.to_csv)):
        if path is not None:
            write(path)
            print_lines(f"written: {path}", err=True)
    if json:
        print_json(issues)
    else:
        print_lines(repr(issues))
    if not issues.is_answered:
        raise typer.Exit(NO_ANSWER)
