"""`gapscope labels`: suspected label errors as a table, an HTML page or a review list."""

from __future__ import annotations

from pathlib import Path

import typer

from gapscope.cli.options import JSON, LABEL_COLUMN, NO_ANSWER


def labels(
    target: Path = typer.Argument(
        ..., help="module:function that returns (network, data) or (None, data); or a CSV file."
    ),
    column: str | None = LABEL_COLUMN,
    precision: float | None = typer.Option(None, help="Expected fraction of errors among the flagged samples."),
    test: Path | None = typer.Option(
        None, help="CSV file of test samples; reports those that repeat a training sample."
    ),
    html: Path | None = typer.Option(None, help="Write a self-contained HTML page for review."),
    csv: Path | None = typer.Option(None, help="Write a review list with an empty column `label`."),
    seed: int = typer.Option(0, help="Random seed."),
    json: bool = JSON,
) -> None:
    """Rank samples by the probability that their label is wrong, with or without a network."""
    from gapscope.cli.arguments import read_labelled_table
    from gapscope.cli.factories import call_factory, is_factory
    from gapscope.cli.output import check_outputs, print_json, print_lines
    from gapscope.cli.progress import handle_interrupts
    from gapscope.labels.label_issues import find_label_issues

    check_outputs(html, csv)
    with handle_interrupts(resumes=False):
        if is_factory(target):
            columns, (network, data) = None, call_factory(target, what="network or None")
        else:
            network, data = None, read_labelled_table(target, column)
            columns = data[0]
        held_out = None if test is None else read_labelled_table(test, column, like=columns)
        issues = find_label_issues(network, data, precision=precision, test=held_out, seed=seed)
    if html is not None:
        issues.write_html(html)
        typer.echo(f"written: {html}", err=True)
    if csv is not None:
        issues.to_csv(csv)
        typer.echo(f"written: {csv}", err=True)
    if json:
        print_json(issues)
    else:
        print_lines(repr(issues))
    if issues.noise is None:
        raise typer.Exit(NO_ANSWER)
