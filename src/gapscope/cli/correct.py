"""`gapscope correct`: a table with the labels of reviewed lists."""

from __future__ import annotations

from pathlib import Path

import typer

from gapscope.base.errors import InvalidInput
from gapscope.base.files import write_output
from gapscope.cli.arguments import is_table, read_labelled_table
from gapscope.cli.options import LABEL_COLUMN
from gapscope.cli.output import check_outputs, print_lines
from gapscope.results.formatting import pluralize


def _check_formats(table: Path, output: Path) -> None:
    """Raise InvalidInput if table and output differ in their ending, without .gz."""
    endings = [path.name.lower().removesuffix(".gz") for path in (table, output)]
    given, wanted = (Path(name).suffix for name in endings)
    if given != wanted or output.name.lower().endswith(".gz"):
        raise InvalidInput(
            f"{output} must end in {given}, since the corrected table has the format of {table}. Pass such a path."
        )


def correct(
    table: Path = typer.Argument(
        help="Table (CSV, JSON lines, Parquet) of which `gapscope labels` made the list."
    ),
    reviewed: list[Path] = typer.Argument(
        help="The list (CSV, Parquet) with correct labels in its column `label`, or `drop` to remove the row; or those "
        "of several reviewers."
    ),
    output: Path = typer.Argument(
        help="File of the corrected table, in the format of the first. Everything else in it is as before."
    ),
    column: str | None = LABEL_COLUMN,
) -> None:
    """Write a table with the labels of reviewed lists, and without the rows that they drop."""
    from gapscope.base.samples import as_samples
    from gapscope.data.frames import encode_inputs
    from gapscope.data.table_targets import FORMAT
    from gapscope.labels.corrected_files import corrected_file
    from gapscope.labels.corrections import read_lists
    from gapscope.labels.label_cells import are_equal

    check_outputs(output, sources=(table, *reviewed))
    if not is_table(table):
        raise InvalidInput(
            f"{table} must be a table (CSV, JSON lines, Parquet). Pass other data to "
            "`gapscope.apply_label_corrections` in Python; move pictures of a folder by the names in the list."
        )
    _check_formats(table, output)
    inputs, labels = read_labelled_table(table, column).pair
    data, _, _ = encode_inputs((inputs, labels))
    samples = as_samples(data)
    decisions = read_lists(samples, reviewed, labels.attrs.get(FORMAT))
    write_output(output, corrected_file(table, labels, samples, decisions))
    n_dropped = sum(decision is None for decision in decisions.values())
    old = samples.y.flatten().tolist()
    n_equal = sum(are_equal(value, old[index], samples) for index, value in decisions.items())
    changed = pluralize(len(decisions) - n_dropped - n_equal, "label")
    unchanged = (
        f" ({n_equal} already as in the {'list' if len(reviewed) == 1 else 'lists'})"
        if n_equal
        else ""
    )
    dropped = pluralize(n_dropped, "row")
    print_lines(f"{changed} set{unchanged}, {dropped} dropped; written: {output}", err=True)
