"""`gapscope correct`: a table with the labels of a reviewed list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapscope.cli.options import LABEL_COLUMN
from gapscope.cli.output import check_outputs, print_lines
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas


def _check_formats(table: Path, output: Path) -> str:
    """Return the ending that table and output share, without .gz."""
    from gapscope.base.errors import InvalidInput

    endings = [path.name.lower().removesuffix(".gz") for path in (table, output)]
    given, wanted = (Path(name).suffix for name in endings)
    if given != wanted or output.name.lower().endswith(".gz"):
        raise InvalidInput(
            f"{output} must end in {given}, since the corrected table has the format of {table}. Pass such a path."
        )
    return given


def _as_bytes(frame: pandas.DataFrame, ending: str, separator: str) -> str | bytes:
    """Return the content of a file with a table."""
    from gapscope.data.tables import JSON_ENDINGS

    if ending == ".parquet":
        return frame.to_parquet(index=False)
    if ending in JSON_ENDINGS:
        return frame.to_json(orient="records", lines=ending != ".json", date_format="iso") or ""
    return frame.to_csv(index=False, sep=separator)


def correct(
    table: Path = typer.Argument(
        help="Table (CSV, JSON lines, Parquet) of which `gapscope labels` made the list."
    ),
    reviewed: Path = typer.Argument(
        help="The list with correct labels in its column `label`, or `drop` to remove the row."
    ),
    output: Path = typer.Argument(
        help="File of the corrected table, in the format of the first. Other cells of a CSV file are as before."
    ),
    column: str | None = LABEL_COLUMN,
) -> None:
    """Write a table with the labels of a reviewed list, and without the rows that it drops."""
    from gapscope.base.errors import InvalidInput
    from gapscope.base.files import write_output
    from gapscope.base.samples import as_samples
    from gapscope.cli.arguments import is_table, split_target
    from gapscope.data.frames import encode_inputs
    from gapscope.data.tables import read_separator, read_table
    from gapscope.labels.corrections import corrected_table, read_decisions

    check_outputs(output, sources=(table, reviewed))
    if not is_table(table):
        raise InvalidInput(
            f"{table} must be a table (CSV, JSON lines, Parquet). Pass other data to "
            "`gapscope.apply_label_corrections` in Python; move pictures of a folder by the names in the list."
        )
    ending = _check_formats(table, output)
    typed, notes = read_table(table)
    for note in notes:
        print_lines(note, err=True)
    inputs, labels = split_target(typed, column, table)
    data, _, _ = encode_inputs((inputs, labels))
    samples = as_samples(data)
    decisions = read_decisions(samples, reviewed)
    separator = read_separator(table)
    cells, _ = read_table(table, as_text=[str(name) for name in typed])
    values = cells[labels.name]
    if separator:
        values = values.astype(object)
    elif samples.kind == "regression":
        values = labels.astype(float)
    corrected = corrected_table(cells, labels.name, values, samples, decisions)
    write_output(output, _as_bytes(corrected, ending, separator))
    n_dropped = len(cells) - len(corrected)
    changed = pluralize(len(decisions) - n_dropped, "label")
    print_lines(
        f"{changed} set, {pluralize(n_dropped, 'row')} dropped; written: {output}", err=True
    )
