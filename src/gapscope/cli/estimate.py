"""`gapscope estimate fit | predict`: from the readings of a pool to the generalization gap of a new network."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="Fit a gap estimator on a pool, and ask it about a new network.", no_args_is_help=True)

POOL = typer.Argument(..., help="Folder of a pool.")


@app.command("fit")
def fit(
    pool: Path = POOL,
    measure: list[str] = typer.Option([], help="Reading to use, such as unit_sparsity.zeta; again for more."),
    kind: str = typer.Option("ridge", help="'linear', 'ridge' or 'monotone'."),
    output: Path | None = typer.Option(None, help="Where to write the estimator; default POOL/estimator.json."),
) -> None:
    """Fit a gap estimator on the finished networks of a pool and say how good it is beside the plain baselines."""
    from rich.console import Console

    from gapscope.cli.tables import table_of
    from gapscope.estimation import cross_validate, suggested_estimator, usable_rows
    from gapscope.pools import open_pool

    opened = open_pool(pool)
    records = opened.records()
    estimator = suggested_estimator(records, features=measure or None, kind=kind)
    table = usable_rows(opened.to_pandas(), estimator.features or [])
    quality = cross_validate(estimator, table, scheme="leave_one_out")
    shown = quality.pivot(index="model", columns="metric", values="value").sort_values(by=["rmse"]).reset_index()
    estimator.fit(table, table["gap"])
    path = output or pool / "estimator.json"
    estimator.save(path)
    console = Console()
    kinds = table["gap_kind"].unique()
    console.print(f"fitted on {len(table)} networks; gap of {' and '.join(kinds)}", highlight=False)
    columns = ["model", "rmse", "mae", "pearson", "coverage"]
    console.print(table_of(shown.filter(items=columns), "Each network predicted from all others"))
    for name, coefficient in zip(estimator.feature_names_, estimator.coef_, strict=True):
        term = f"log {name}" if name in estimator.logarithm else name
        console.print(f"  {coefficient:+.4g} × {term}", highlight=False)
    typer.echo(f"written: {path}")
    typer.echo(f"next: gapscope estimate predict {pool} NETWORK.safetensors")


@app.command("predict")
def predict(
    pool: Path = POOL,
    network: Path = typer.Argument(..., help="Weights that a pool wrote (they carry their spec)."),
    estimator: Path | None = typer.Option(None, help="The fitted estimator; default POOL/estimator.json."),
    level: float = typer.Option(0.9, help="Nominal coverage of the interval."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
) -> None:
    """Measure a network on its training data and print its gap, an interval, and whether to trust them."""
    from gapscope.base.errors import InvalidInput
    from gapscope.base.records import records_to_pandas
    from gapscope.estimation import GapEstimator
    from gapscope.pools import open_pool
    from gapscope.pools.readings import RunOptions
    from gapscope.pools.stored import read_network

    path = estimator or pool / "estimator.json"
    if not path.exists():
        raise InvalidInput(f"{path} must hold a fitted estimator; there is none. Run: gapscope estimate fit {pool}")
    fitted = GapEstimator.load(path)
    options = RunOptions(
        measures=tuple(dict.fromkeys(name.split(".")[0] for name in fitted.feature_names_)),
        measure_samples=max((record.measured_samples or 0 for record in open_pool(pool)), default=0) or None,
        data_root=None if data_root is None else str(data_root),
    )
    record = read_network(network, options)
    row = records_to_pandas([record])
    for name in fitted.feature_names_:
        if name not in row:
            row[name] = float("nan")
    answer = fitted.assess(row, level=level).iloc[0]
    if answer["verdict"] == "inside":
        typer.echo(f"gap {answer['prediction']:.3f}, {level:.0%} interval {answer['low']:.3f} to {answer['high']:.3f}")
        typer.echo("trust: yes, it is like the networks the estimator was fitted on")
    else:
        typer.echo("gap: no answer")
        typer.echo(f"trust: no, {answer['reason']}")
        raise typer.Exit(2)
