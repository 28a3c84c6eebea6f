"""`gapscope demo`: from training to a report on real data, in about a minute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapscope.cli.options import JSON, WORKERS

if TYPE_CHECKING:
    import pandas

    from gapscope.prediction.gap_estimator import GapEstimator
    from gapscope.results.records import Record

GRID = Path(__file__).with_name("demo.toml")
MEASURE_SAMPLES = 400


def held_out_ids(ids: Iterable[str]) -> list[str]:
    """Return every third network by id (a hash, so unrelated to the settings)."""
    return sorted(ids)[::3]


def _network_name(record: Record) -> str:
    """One network in a few words: what the demo's grid varies."""
    options = record.spec["network"]["options"]
    name = str(record.spec["network"]["name"]).replace("_", " ")
    if "width" in options:
        name = f"dense {options['n_hidden']}x{options['width']}"
    if options.get("dropout"):
        name += " dropout"
    return name + "".join(f" {item['name'].split('_')[0]}" for item in record.spec["training"]["penalties"])


def _closing_table(records: Sequence[Record], assessed: pandas.DataFrame) -> pandas.DataFrame:
    import pandas

    from gapscope.report.formatting import expected_test_accuracy

    rows = []
    for record in records:
        ends = assessed.loc[[record.id], ["prediction", "low", "high"]].to_numpy(dtype=float)[0].tolist()
        trusted = assessed["verdict"][record.id] == "inside"
        rows.append(
            {
                "network": _network_name(record),
                "noise": f"{record.spec['data']['label_noise']:.0%}",
                "expect": expected_test_accuracy(record.scores["train_accuracy"], *ends) if trusted else "-",
                "test": f"{record.scores['test_accuracy']:.0%}",
                "training": f"{record.scores['train_accuracy']:.0%}",
                "gap": record.gap,
                "verdict": "inside" if trusted else "outside",
            }
        )
    return pandas.DataFrame(rows).sort_values(by=["gap"]).drop(columns="gap")


def _estimate(records: Sequence[Record]) -> tuple[list[Record], pandas.DataFrame, GapEstimator]:
    """Fit on two thirds of the networks; return the rest, their estimates and the estimator."""
    from gapscope.prediction.columns import complete_rows, suggest_estimator
    from gapscope.results.records import records_to_pandas

    finished = [record for record in records if record.status == "finished"]
    ids = held_out_ids(record.id for record in finished)
    held_out = [record for record in finished if record.id in ids]
    fitted_on = [record for record in finished if record.id not in ids]
    estimator = suggest_estimator(fitted_on)
    table = complete_rows(records_to_pandas(fitted_on), estimator.features or [])
    estimator.fit(table, table["gap"])
    return held_out, estimator.assess(records_to_pandas(held_out)), estimator


def _summary(records: Sequence[Record], held_out: Sequence[Record], assessed: pandas.DataFrame) -> list[str]:
    """The closing lines: error and that of the baseline, coverage, networks without an estimate."""
    seen = [record.gap for record in records if record.status == "finished" and record not in held_out]
    mean = sum(seen) / len(seen)
    rows = assessed.to_dict("index")
    answered = [(record.gap, rows[record.id]) for record in held_out if rows[record.id]["verdict"] == "inside"]
    lines = [f"{len(held_out) - len(answered)} of {len(held_out)} networks are outside the fitted range: no estimate"]
    if answered:
        error = (sum((row["prediction"] - gap) ** 2 for gap, row in answered) / len(answered)) ** 0.5
        plain = (sum((mean - gap) ** 2 for gap, _ in answered) / len(answered)) ** 0.5
        inside = sum(row["low"] <= gap <= row["high"] for gap, row in answered)
        width = sum(row["high"] - row["low"] for _, row in answered) / len(answered)
        lines = [
            f"root mean squared error {error:.3f}; always guessing the mean gap {plain:.3f}",
            f"{inside} of {len(answered)} lie in their 90 % interval, {width:.2f} wide on average",
            *(lines if len(answered) < len(held_out) else []),
        ]
    return lines


def demo(
    folder: Path = typer.Option(Path("gapscope-demo"), help="Folder of the pool and the report."),
    workers: int = WORKERS,
    json: bool = JSON,
) -> None:
    """Train 40 networks on digits, measure them, estimate their gaps, and write a report."""
    import time

    from gapscope.cli.output import print_json, print_rich
    from gapscope.cli.progress import handle_interrupts, progress
    from gapscope.cli.tables import table_of
    from gapscope.pools import Grid, Pool
    from gapscope.report import write_report

    start = time.perf_counter()
    grid, pool = Grid.from_toml(GRID), Pool(folder)
    missing = len(pool.missing(grid, measures=grid.measures))
    typer.echo(f"{len(grid)} networks on 1,797 handwritten digits, {missing} to train with {workers} workers", err=json)
    with handle_interrupts(), progress("training and measuring", missing) as show:
        records = pool.run(grid, workers=workers, measure_samples=MEASURE_SAMPLES, on_record=show)
    held_out, assessed, estimator = _estimate(records)
    page = write_report(
        records, folder / "report.html", title="gapscope demo: digits", estimator=estimator, held_out=assessed
    )
    if json:
        rows = assessed.rename_axis("id").reset_index().to_dict("records")
        gaps = {record.id: record.gap for record in held_out}
        found = [{**row, "gap": gaps[row["id"]]} for row in rows]
        print_json({"report": str(page.resolve()), "networks": len(records), "held_out": found})
        return
    title = "Accuracy to expect on clean labels, for networks the estimator has not seen (90 % intervals)"
    print_rich(table_of(_closing_table(held_out, assessed), title))
    for line in _summary(records, held_out, assessed):
        typer.echo(line)
    typer.echo(f"report: {page.resolve()} ({time.perf_counter() - start:.0f} s)")
