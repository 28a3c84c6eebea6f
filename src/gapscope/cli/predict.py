"""`gapscope estimate NETWORK` says its accuracy at once; `fit | predict` learn the gap from a pool of yours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
import typer.core

from gapscope.cli.network_argument import HELP


class _NetworkFirst(typer.core.TyperGroup):
    """A group that takes anything but its own verbs and --help for networks: `gapscope estimate NETWORK`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["network", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_NetworkFirst,
    help="Expected accuracy of trained networks: `gapscope estimate NETWORK...` answers at once; fit and predict "
    "estimate the gap from a pool of yours.",
    no_args_is_help=True,
)

FEWEST = 5
POOL = typer.Argument(..., help="Folder of a pool.")
JSON = typer.Option(False, "--json", help="Print everything as JSON.")


@app.command("network")
def predict_trained(
    networks: list[Path] = typer.Argument(..., metavar="NETWORK...", help=f"One or more: {HELP}."),
    label_noise: float | None = typer.Option(None, help="Share of wrong training labels, where it is known."),
    level: float = typer.Option(0.9, help="Nominal coverage of the intervals."),
    estimator: Path | None = typer.Option(None, help="What `estimate fit TABLE.csv` wrote; default the shipped one."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    json: bool = JSON,
) -> None:
    """Accuracy to expect of trained networks on new data, from their training data alone and without a pool."""
    from gapscope.base.files import to_json
    from gapscope.cli.network_argument import load_with_initial_state
    from gapscope.cli.progress import handle_interrupts
    from gapscope.prediction.accuracy_after_training import estimate_accuracy
    from gapscope.prediction.accuracy_estimator import AccuracyEstimator

    own = None if estimator is None else AccuracyEstimator.load(estimator)
    found = {}
    with handle_interrupts():
        for path in networks:
            network, data, initial = load_with_initial_state(path, data_root)
            found[path] = estimate_accuracy(network, data, initial_state=initial, label_noise=label_noise, level=level,
                                            estimator=own)  # fmt: skip
            if not json:
                typer.echo((f"{path}:\n" if len(networks) > 1 else "") + repr(found[path]))
    if json:
        typer.echo(to_json([{"network": str(path), **each.to_dict()} for path, each in found.items()], indent=1))
    if any(each.abstained_because for each in found.values()):
        raise typer.Exit(2)


@app.command("fit")
def fit(
    pool: Path = typer.Argument(
        ...,
        metavar="POOL|TABLE.csv",
        help="Folder of a pool; or a table, a row a network, of the readings that `gapscope estimate NETWORK --json` "
        "prints and a column accuracy, reached on new data.",
    ),
    measure: list[str] = typer.Option([], help="Reading to use, such as unit_sparsity.zeta; again for more."),
    kind: str | None = typer.Option(
        None, help="'linear', 'ridge', 'monotone' or 'gaussian_process'; default by the readings."
    ),
    output: Path | None = typer.Option(
        None, help="Where to write the estimator; default POOL/estimator.json, or TABLE.json beside the table."
    ),
    json: bool = JSON,
) -> None:
    """Fit a gap estimator on a pool and say how good it is, or the accuracy estimate on a table of known networks."""
    if pool.suffix.lower() == ".csv":
        _fit_table(pool, output or pool.with_suffix(".json"), json)
        return
    from rich.console import Console

    from gapscope.base.errors import InvalidInput
    from gapscope.base.files import to_json
    from gapscope.cli.progress import steps
    from gapscope.cli.tables import table_of
    from gapscope.pools import open_pool
    from gapscope.prediction.columns import complete_rows
    from gapscope.prediction.cross_validation import cross_validate
    from gapscope.prediction.defaults import suggest_estimator
    from gapscope.prediction.held_out import N_FOLDS, suggest_scheme, with_interval_for
    from gapscope.results.records import records_to_pandas

    def check_enough(n: int) -> None:
        if n < FEWEST:
            raise InvalidInput(
                f"An estimator needs {FEWEST} finished networks or more, better dozens; {pool} has {n}. Run a larger "
                "grid, or add networks with Pool.add."
            )

    records = open_pool(pool).records()
    check_enough(sum(record.status == "finished" for record in records))
    estimator = suggest_estimator(records, features=measure or None, kind=kind)
    table = complete_rows(records_to_pandas(records), estimator.features or [])
    check_enough(len(table))
    estimator, scheme = with_interval_for(estimator, len(table)), suggest_scheme(len(table))
    with steps("estimating each network from others") as show:
        quality = cross_validate(estimator, table, scheme=scheme, n_splits=N_FOLDS, on_fit=show)
    shown = quality.pivot(index="model", columns="metric", values="value").sort_values(by=["rmse"]).reset_index()
    estimator.fit(table, table["gap"])
    path = output or pool / "estimator.json"
    estimator.save(path)
    others = "all others" if scheme == "leave_one_out" else f"those of the other {N_FOLDS - 1} of {N_FOLDS} folds"
    if json:
        typer.echo(to_json({"networks": len(table), "predicted_from": others, "quality": quality.to_dict("records"),
                            "written": str(path)}, indent=1))  # fmt: skip
        return
    console = Console()
    kinds = table["gap_kind"].unique()
    console.print(f"fitted on {len(table)} networks; gap of {' and '.join(kinds)}", highlight=False)
    columns = ["model", "rmse", "mae", "pearson", "coverage"]
    console.print(table_of(shown.filter(items=columns), f"Each network predicted from {others}"))
    linear = estimator.kernel_ is None
    for name, coefficient in zip(estimator.feature_names_, estimator.coef_, strict=True) if linear else ():
        term = f"log {name}" if name in estimator.log_features else name
        console.print(f"  {coefficient:+.4g} × {term}", highlight=False)
    typer.echo(f"written: {path}")
    typer.echo(f"next: gapscope estimate predict {pool} NETWORK.safetensors")


def _fit_table(path: Path, output: Path, json: bool) -> None:
    from gapscope.base.files import to_json
    from gapscope.leaderboard.network_tables import read_csv_table
    from gapscope.prediction.recalibration import fit_accuracy_estimator

    table = read_csv_table(path)
    fitted = fit_accuracy_estimator(table)
    fitted.save(output)
    shift = fitted.shifts["like_training"]
    if json:
        typer.echo(to_json({"networks": len(table), "shift": shift, "written": str(output)}, indent=1))
        return
    typer.echo(f"fitted on {len(table)} known networks: every answer moves by {shift:+.3f}")
    typer.echo(f"written: {output}")
    typer.echo(f"next: gapscope estimate NETWORK --estimator {output}")


def _format_assessment(assessed: Mapping[Any, Any], level: float) -> list[str]:
    """What is said of one network: its gap and interval, or why there is no answer."""
    if assessed["verdict"] != "inside":
        return ["gap: no answer", f"trust: no, {assessed['reason']}"]
    interval = f"{level:.0%} interval {assessed['low']:.3f} to {assessed['high']:.3f}"
    if assessed["reason"]:  # it has no ends
        interval = f"no interval: {assessed['reason']} (--level asks for another)"
    return [
        f"gap {assessed['prediction']:.3f}, {interval}",
        "trust: yes, it is like the networks the estimator was fitted on",
    ]


@app.command("predict")
def predict(
    pool: Path = POOL,
    networks: list[Path] = typer.Argument(..., metavar="NETWORK...", help=f"One or more: {HELP}."),
    estimator: Path | None = typer.Option(None, help="The fitted estimator; default POOL/estimator.json."),
    level: float = typer.Option(0.9, help="Nominal coverage of the interval."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    json: bool = JSON,
) -> None:
    """Measure networks on their training data and say the gap of each, its interval, and whether to trust them."""
    import pandas

    from gapscope.base.errors import InvalidInput
    from gapscope.base.files import to_json
    from gapscope.cli.network_argument import record_from_argument
    from gapscope.pools import open_pool
    from gapscope.pools.readings import RunOptions
    from gapscope.prediction.gap_estimator import GapEstimator
    from gapscope.results.records import records_to_pandas

    path = estimator or pool / "estimator.json"
    if not path.exists():
        raise InvalidInput(f"{path} must hold a fitted estimator; there is none. Run: gapscope estimate fit {pool}")
    fitted = GapEstimator.load(path)
    options = RunOptions(
        measures=tuple(dict.fromkeys(name.split(".")[0] for name in fitted.feature_names_)),
        measure_samples=max((record.measured_samples or 0 for record in open_pool(pool)), default=0) or None,
        data_root=None if data_root is None else str(data_root),
    )
    table = records_to_pandas([record_from_argument(network, options) for network in networks])
    lacking = {name: float("nan") for name in fitted.feature_names_ if name not in table}
    answers = fitted.assess(pandas.DataFrame(table.assign(**lacking)), level=level).to_dict("records")
    if json:
        rows = [{"network": str(path), **row} for path, row in zip(networks, answers, strict=True)]
        typer.echo(to_json({"level": level, "answers": rows}, indent=1))
    else:
        for path, row in zip(networks, answers, strict=True):
            if len(networks) > 1:
                typer.echo(f"{path}:")
            for line in _format_assessment(row, level):
                typer.echo(line)
    if any(row["verdict"] != "inside" for row in answers):
        raise typer.Exit(2)
