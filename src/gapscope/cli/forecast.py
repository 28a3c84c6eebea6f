"""`gapscope forecast`: accuracy before training of a grid, a network or a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON, LABEL_COLUMN


def _specs(grid: Path, samples: int | None, time_budget: float | None, data_root: str | None) -> list[tuple[str, Any]]:
    """Forecast of every spec of a grid, named by the settings that vary."""
    from rich.console import Console
    from rich.progress import track

    from gapscope.cli.network_argument import first_samples
    from gapscope.cli.tables import varied_settings
    from gapscope.data import find_dataset
    from gapscope.pools import Grid
    from gapscope.pools.from_spec import network_from_spec, prepared
    from gapscope.prediction.forecast import forecast_accuracy

    specs = list(Grid.from_toml(grid))
    for name in dict.fromkeys(spec.data.name for spec in specs):
        find_dataset(name, root=data_root)  # an unknown data set is an error before anything runs
    forecasts = []
    for spec, name in track(
        list(zip(specs, varied_settings(specs), strict=True)),
        "forecasting",
        console=Console(stderr=True),
        transient=True,
    ):
        problem, _ = prepared(spec, data_root)
        train = first_samples(problem.train, samples)
        network = network_from_spec(spec, problem)
        forecasts.append((name, forecast_accuracy(network, train, time_budget=time_budget, seed=spec.seed)))
        if _is_interrupted(forecasts[-1][1]):
            break
    return forecasts


def _is_interrupted(forecast: Any) -> bool:
    return any(note.startswith("Interrupted") for note in forecast.notes)


def _one(target: Path, column: str | None, time_budget: float | None) -> Any:
    """Forecast of `module:function`, which returns (network, data), or of a CSV file."""
    from gapscope.cli.network_argument import call_factory, is_factory
    from gapscope.prediction.forecast import forecast_accuracy

    if is_factory(target):
        network, data = call_factory(target, "network")[:2]
        return forecast_accuracy(network, data, time_budget=time_budget)
    from gapscope.cli.tables import read_labelled_csv

    return forecast_accuracy(None, read_labelled_csv(target, column))


def forecast(
    target: Path = typer.Argument(
        ...,
        help="TOML grid, as for `gapscope pool run`; module:function that returns (network, data) or (None, data); or "
        "a CSV file.",
    ),
    column: str | None = LABEL_COLUMN,
    samples: int | None = typer.Option(None, help="Number of training samples of a grid. Default: all."),
    time_budget: float | None = typer.Option(
        None, help="Approximate seconds for the network's rows. Default: no limit."
    ),
    data_root: Path | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Forecast the accuracy on new data before training, next to baselines without a network."""
    from gapscope.cli.output import print_json
    from gapscope.cli.progress import handle_interrupts

    with handle_interrupts():
        if target.suffix.lower() == ".toml":
            forecasts = _specs(target, samples, time_budget, None if data_root is None else str(data_root))
        else:
            forecasts = [(str(target), _one(target, column, time_budget))]
    if json:
        print_json([{"name": name, **forecast.to_dict()} for name, forecast in forecasts])
    elif len(forecasts) == 1:
        typer.echo(repr(forecasts[0][1]))
    else:
        _print_table(forecasts)
    if _is_interrupted(forecasts[-1][1]):
        raise typer.Exit(130)


def _print_table(forecasts: list[tuple[str, Any]]) -> None:
    import pandas

    from gapscope.cli.output import print_table

    nan = float("nan")
    shown = pandas.DataFrame(
        {
            "network": name,
            "forecast": nan if one.abstained_because else one.score,
            "90 % from": nan if one.interval is None else one.interval[0],
            "to": nan if one.interval is None else one.interval[1],
            "NTK": getattr(one.row("NTK"), "score", nan),
            "RBF ridge": getattr(one.row("RBF ridge"), "score", nan),
            "twice the data": one.curve[-1].score if one.curve else nan,
        }
        for name, one in forecasts
    )
    print_table(shown, "Forecast on new data with the same label noise, before training")
