"""`gapscope forecast`: accuracy before training of a grid, a network or a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gapscope.cli.arguments import is_grid, read_grid, read_source
from gapscope.cli.options import DATA_ROOT, GROUPS, JSON, LABEL_COLUMN, NO_ANSWER, SIDE, TIME_BUDGET
from gapscope.cli.output import print_json, print_lines, print_table
from gapscope.cli.progress import steps


def _forecasts(
    target: Path,
    column: str | None,
    groups: str | None,
    side: int,
    samples: int | None,
    time_budget: float,
    data_root: str | None,
) -> dict[str, Any]:
    """Return forecasts by name: of each spec of a grid, of `module:function`, a table or a folder."""
    from gapscope.accuracy.forecast import forecast_accuracy

    if groups is not None or not is_grid(target):
        network, data, of_groups = read_source(target, column, groups, side)
        return {
            str(target): forecast_accuracy(network, data, groups=of_groups, time_budget=time_budget)
        }
    from gapscope.pools.from_spec import network_from_spec, prepare_data

    specs = read_grid(target, data_root)
    forecasts: dict[str, Any] = {}
    with steps("forecasting") as show:
        for name, spec in specs.items():
            show(len(forecasts), len(specs))
            problem, _ = prepare_data(spec, data_root)
            network = network_from_spec(spec, problem)
            train = problem.train.first(samples)
            forecasts[name] = forecast_accuracy(
                network, train, time_budget=time_budget, seed=spec.seed
            )
            if forecasts[name].interrupted:
                break
    return forecasts


def forecast(
    target: Path = typer.Argument(
        help="TOML grid, as for `gapscope pool run`; module:function that returns (network, data) or (None, data); or "
        "a table (CSV, JSON lines, Parquet); or a folder with one folder of pictures per class.",
    ),
    column: str | None = LABEL_COLUMN,
    groups: str | None = GROUPS,
    side: int = SIDE,
    samples: int | None = typer.Option(
        None, help="Number of training samples of a grid. Default: all."
    ),
    time_budget: float = TIME_BUDGET,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Forecast the accuracy on new data before training, next to baselines without a network."""
    forecasts = _forecasts(target, column, groups, side, samples, time_budget, data_root)
    *_, last = forecasts.values()
    if json:
        rows = [{"name": name, **forecast.to_dict()} for name, forecast in forecasts.items()]
        print_json({"forecasts": rows})
    elif len(forecasts) == 1:
        print_lines(repr(last))
    else:
        _print_table(forecasts)
    if last.interrupted:
        raise typer.Exit(130)
    if any(forecast.abstained_because for forecast in forecasts.values()):
        raise typer.Exit(NO_ANSWER)


def _print_table(forecasts: dict[str, Any]) -> None:
    import pandas

    nan = float("nan")
    table = pandas.DataFrame(
        {
            "network": name,
            "forecast": nan if forecast.abstained_because else forecast.score,
            "90 % from": forecast.low,
            "to": forecast.high,
            "NTK": getattr(forecast.row("NTK"), "score", nan),
            "RBF ridge": getattr(forecast.row("RBF ridge"), "score", nan),
            "twice the data": forecast.curve[-1].score if forecast.curve else nan,
        }
        for name, forecast in forecasts.items()
    )
    print_table(table, "Forecast on new data with the same label noise, before training")
