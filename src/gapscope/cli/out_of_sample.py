"""`gapscope out-of-sample`: held-out predictions of every row, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gapscope.cli.arguments import read_source
from gapscope.cli.options import GROUPS, JSON, LABEL_COLUMN, NO_ANSWER, SEED, SIDE
from gapscope.cli.output import check_outputs, print_json, print_lines

if TYPE_CHECKING:
    from gapscope.accuracy.held_out_result import HeldOutPredictions


def _rows(result: HeldOutPredictions) -> list[dict[str, Any]]:
    """Return row number, place within the sample, given label or targets, and predictions of each row."""
    numbers = range(len(result)) if result.rows is None else result.rows.tolist()
    places: list[dict[str, Any]] = [{"sample": number} for number in numbers]
    if result.positions is not None:
        places = [
            {"sample": sample, "position": place} for sample, *place in result.positions.tolist()
        ]
    given = result.targets.tolist()
    if result.task in ("classification", "positions"):
        given = [result.classes[number] for number in given]
    return [
        {**place, "given": label, "predictions": row}
        for place, label, row in zip(places, given, result.predictions.tolist(), strict=True)
    ]


def _write(result: HeldOutPredictions, path: Path) -> None:
    """Write a CSV file: row number, a column per class or target, and the given label or targets.

    Args:
        result: The predictions.
        path: The file.
    """
    from gapscope.labels.prediction_columns import free_name
    from gapscope.results.csv_files import write_csv

    table = result.to_pandas()
    if result.positions is None:
        table.insert(0, free_name("sample", list(table)), table.index)
    write_csv(path, table)
    print_lines(f"written: {path}", err=True)


def out_of_sample(
    target: Path = typer.Argument(
        help="A table (CSV, JSON lines, Parquet); module:function that returns (network, data) or (None, data); or a "
        "folder with one folder of pictures per class.",
    ),
    column: str | None = LABEL_COLUMN,
    groups: str | None = GROUPS,
    side: int = SIDE,
    output: Path | None = typer.Option(
        None, help="Write a CSV file: row number, probability of each class, and given label."
    ),
    seed: int = SEED,
    json: bool = JSON,
) -> None:
    """Predict every row by a model that was fitted without it."""
    from gapscope.accuracy.held_out_predictions import out_of_sample as predict

    check_outputs(output, sources=(target,))
    source, data, of_groups = read_source(target, column, groups, side)
    result = predict(source, data, groups=of_groups, seed=seed)
    if output is not None:
        _write(result, output)
    if json:
        print_json({**result.to_dict(), "rows": _rows(result)})
    else:
        print_lines(repr(result))
    if result.abstained_because:
        raise typer.Exit(NO_ANSWER)
