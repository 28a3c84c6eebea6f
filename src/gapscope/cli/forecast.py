"""`gapscope forecast`: the accuracy that the networks of a grid will reach, before any of them is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def _row(spec: Any, data_root: str | None, samples: int | None) -> dict[str, Any]:
    import torch

    from gapscope.pools.from_spec import network_from_spec, prepared
    from gapscope.prediction.forecast import forecast_accuracy

    problem, _ = prepared(spec, data_root)
    train = problem.train
    if samples is not None and samples < len(train):
        train = train.subset(torch.arange(samples))
    found = forecast_accuracy(network_from_spec(spec, problem), train, seed=spec.seed)
    return {"id": spec.id, "network": spec.network.name, "data": spec.data.name, "noise": spec.data.label_noise,
            **{name: value for name, value in found.to_dict().items() if name != "disagreeing_indices"}}  # fmt: skip


def forecast(
    grid: Path = typer.Argument(..., help="TOML file with the grid, as for `gapscope pool run`."),
    samples: int | None = typer.Option(None, help="Use this many training samples; default all."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Expected accuracy of untrained networks on data like their training data, and with twice as many samples."""
    from rich.console import Console
    from rich.progress import track

    from gapscope.base.files import to_json
    from gapscope.cli.progress import handle_interrupts
    from gapscope.cli.tables import table_of
    from gapscope.pools import Grid

    specs, rows, screen = list(Grid.from_toml(grid)), [], Console(stderr=True)
    with handle_interrupts():
        for spec in track(specs, "expecting", console=screen, transient=True):
            rows.append(_row(spec, None if data_root is None else str(data_root), samples))
    if json:
        typer.echo(to_json(rows, indent=1))
        return
    import pandas

    shown = pandas.DataFrame(
        {
            "network": row["network"],
            "data": row["data"],
            "noise": row["noise"],
            "samples": row["curve"][-2]["samples"],
            "expected": row["score"],
            "± (samples)": float("nan") if row["standard_error"] is None else row["standard_error"],
            "with twice the data": row["curve"][-1]["score"],
        }
        for row in rows
    )
    Console().print(table_of(shown, "Expected on data like the training data, before training"))
