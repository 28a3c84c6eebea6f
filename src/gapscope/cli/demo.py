"""`gapscope demo`: the whole way on real data, from training to a report, in about a minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    import pandas

    from gapscope.records import Record

GRID = Path(__file__).with_name("demo.toml")
MEASURE_SAMPLES = 400


def held_out_ids(table: pandas.DataFrame) -> list[str]:
    """Every third network in the order of the ids, which are hashes: a fixed third, unrelated to the settings."""
    return sorted(table.index)[::3]


def _closing_table(table: pandas.DataFrame, assessed: pandas.DataFrame) -> pandas.DataFrame:
    import pandas

    rows = table.loc[assessed.index]
    names = rows["network.name"].str.replace("_", " ") + rows["parameter_count"].map(" ({:,.0f} parameters)".format)
    return pandas.DataFrame(
        {
            "held-out network": names,
            "label noise": rows["data.label_noise"],
            "gap": rows["gap"],
            "prediction": assessed["prediction"],
            "error": assessed["prediction"] - rows["gap"],
            "90 % low": assessed["low"],
            "90 % high": assessed["high"],
            "verdict": assessed["verdict"].map({"inside": "trust", "outside": "do not trust"}),
        }
    ).sort_values("gap")


def _estimate(records: list[Record]) -> tuple[pandas.DataFrame, pandas.DataFrame, object]:
    """Fit on two thirds of the networks, predict the rest."""
    from gapscope.estimation import suggested_estimator, usable_rows
    from gapscope.records import records_to_pandas

    table = records_to_pandas(records)
    held_out = held_out_ids(table[table["status"] == "finished"])
    fitted_on = [record for record in records if record.id not in held_out]
    estimator = suggested_estimator(fitted_on)
    fit_table = usable_rows(table.drop(index=held_out), estimator.features or [])
    estimator.fit(fit_table, fit_table["gap"])
    return table, estimator.assess(table.loc[held_out]), estimator


def demo(
    folder: Path = typer.Option(Path("gapscope-demo"), help="Where the pool and the report go."),
    workers: int = typer.Option(2, help="Processes, one thread each."),
) -> None:
    """Train 35 networks on handwritten digits, measure each, estimate the gap of those held out, write a report."""
    import time

    from rich.console import Console

    from gapscope.cli.progress import progress
    from gapscope.cli.tables import table_of
    from gapscope.pools import Grid, Pool
    from gapscope.report import write_report

    start = time.perf_counter()
    grid, pool = Grid.from_toml(GRID), Pool(folder)
    missing = len(pool.missing(grid))
    typer.echo(f"{len(grid)} networks on 1,797 handwritten digits, {missing} to train with {workers} workers")
    with progress("training and measuring", missing) as show:
        records = pool.run(grid, workers=workers, measure_samples=MEASURE_SAMPLES, on_record=show)
    table, assessed, estimator = _estimate(records)
    page = write_report(
        records, folder / "report.html", title="gapscope demo: digits", estimator=estimator, held_out=assessed
    )
    shown = _closing_table(table, assessed)
    console = Console()
    console.print(table_of(shown, "Networks the estimator has not seen (gap: train minus test accuracy)"))
    error = (shown["error"] ** 2).mean() ** 0.5
    mean = table.drop(index=assessed.index)["gap"].mean()
    baseline = ((shown["gap"] - mean) ** 2).mean() ** 0.5
    inside = ((shown["gap"] >= shown["90 % low"]) & (shown["gap"] <= shown["90 % high"])).sum()
    typer.echo(f"root mean squared error {error:.3f}; always guessing the mean gap {baseline:.3f}")
    typer.echo(f"{inside} of {len(shown)} gaps lie in their 90 % interval")
    typer.echo(f"report: {page.resolve()} ({time.perf_counter() - start:.0f} s)")
