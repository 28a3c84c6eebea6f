"""`gapscope demo`: from training to a report on real data, in about a minute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gapscope.cli.options import JSON, WORKERS
from gapscope.cli.output import print_json, print_lines, print_table
from gapscope.cli.progress import handle_interrupts, progress
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize
from gapscope.results.records import Record, records_to_pandas

if TYPE_CHECKING:
    import pandas

GRID = Path(__file__).with_name("demo.toml")


def _network_name(record: Record) -> str:
    """Name a network by the settings that the demo's grid varies."""
    options = record.spec["network"]["options"]
    name = str(record.spec["network"]["name"]).replace("_", " ")
    if "width" in options:
        name = f"dense {options['n_hidden']}x{options['width']}"
    if options.get("dropout"):
        name += " dropout"
    return name + "".join(
        f" {item['name'].split('_')[0]}" for item in record.spec["training"]["penalties"]
    )


def _print_estimates(
    held_out: Sequence[Record], assessed: pandas.DataFrame, mean_gap: float
) -> None:
    """Print the held-out networks, errors of the estimator and of the mean gap, and coverage."""
    import pandas

    from gapscope.results.formatting import expected_test_accuracy

    rows = []
    for record in sorted(held_out, key=lambda record: record.gap):
        row: Any = assessed.loc[record.id]
        expected = "-"
        if row["verdict"] == "inside":
            ends = map(float, row[["prediction", "low", "high"]])
            expected = expected_test_accuracy(record.scores["train_accuracy"], *ends)
        rows.append(
            {
                "network": _network_name(record),
                "noise": percent(record.spec["data"]["label_noise"]),
                "expect": expected,
                "test": percent(record.scores["test_accuracy"]),
                "training": percent(record.scores["train_accuracy"]),
                "verdict": row["verdict"],
            }
        )
    title = "Expected accuracy on clean labels of networks held out of the fit (90 % intervals)"
    print_table(pandas.DataFrame(rows), title)
    gaps = pandas.Series({record.id: record.gap for record in held_out})
    inside = assessed[assessed["verdict"] == "inside"].join(gaps.rename("gap"))
    if len(inside):
        error = ((inside["prediction"] - inside["gap"]) ** 2).mean() ** 0.5
        baseline_error = ((mean_gap - inside["gap"]) ** 2).mean() ** 0.5
        covered = inside["gap"].between(inside["low"], inside["high"]).sum()
        width = (inside["high"] - inside["low"]).mean()
        print_lines(
            f"root mean squared error {error:.3f}; predicting the mean gap: {baseline_error:.3f}"
        )
        print_lines(
            f"{covered} of {len(inside)} gaps lie in their 90 % interval, {width:.2f} wide on average"
        )
    if len(inside) < len(held_out):
        print_lines(
            f"{len(held_out) - len(inside)} of {len(held_out)} networks are outside the fitted range: no estimate"
        )


def demo(
    folder: Path = typer.Option(Path("gapscope-demo"), help="Folder of the pool and the report."),
    workers: int = WORKERS,
    json: bool = JSON,
) -> None:
    """Train 40 networks on digits, measure them, estimate their gaps, and write a report."""
    import time

    from gapscope.gap.columns import complete_rows, suggest_estimator
    from gapscope.pools import Grid, Pool
    from gapscope.report import write_report

    start = time.perf_counter()
    grid = Grid.from_toml(GRID)
    pool = Pool(folder)
    missing = len(pool.missing(grid, measures=grid.measures))
    print_lines(
        f"{len(grid)} networks on 1,797 handwritten digits, {missing} to train with {pluralize(workers, 'worker')}",
        err=json,
    )
    with handle_interrupts(resumes=True), progress("training and measuring", missing) as show:
        # for a demo of under two minutes
        records = pool.run(grid, workers=workers, measure_samples=400, on_record=show)
    finished = [record for record in records if record.status == "finished"]
    ids = sorted(record.id for record in finished)[::3]  # hashes, unrelated to the settings
    held_out = [record for record in finished if record.id in ids]
    rest = [record for record in finished if record.id not in ids]
    estimator = suggest_estimator(rest)
    table = complete_rows(records_to_pandas(rest), estimator.features or [])
    estimator.fit(table, table["gap"])
    assessed = estimator.assess(records_to_pandas(held_out))
    page = write_report(
        records,
        folder / "report.html",
        title="gapscope demo: digits",
        estimator=estimator,
        held_out=assessed,
    )
    if json:
        rows = assessed.rename_axis("id").reset_index().to_dict("records")
        gaps = {record.id: record.gap for record in held_out}
        result = [{**row, "gap": gaps[row["id"]]} for row in rows]
        print_json({"report": str(page.resolve()), "networks": len(records), "held_out": result})
        return
    _print_estimates(held_out, assessed, sum(record.gap for record in rest) / len(rest))
    print_lines(f"report: {page.resolve()} ({time.perf_counter() - start:.0f} s)")
