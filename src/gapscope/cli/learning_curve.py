"""`gapscope learning-curve`: accuracy with all samples, from runs on subsets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON


def _runs(source: Path, data_root: str | None) -> list[tuple[str, str, Any, Any]]:
    """Return name, cache folder, training function or spec, and data of each run."""
    from torch import nn

    from gapscope.base.errors import InvalidInput
    from gapscope.cli.arguments import read_grid
    from gapscope.cli.factories import call_factory, is_factory

    if not is_factory(source):
        return [(name, spec.id, spec, None) for name, spec in read_grid(source, data_root).items()]
    train_fn, data = call_factory(source, what="train_fn")
    if isinstance(train_fn, nn.Module):
        raise InvalidInput(
            f"{source} must return (train_fn, data) with a function (x, y) -> trained network; got a "
            f"{type(train_fn).__name__}. To evaluate a network use gapscope forecast or gapscope estimate."
        )
    return [(str(source), re.sub(r"[:/\\]", ".", str(source)), train_fn, data)]


def _print(curves: dict[str, Any]) -> None:
    import pandas

    from gapscope.cli.output import print_table

    if len(curves) == 1:
        typer.echo(repr(*curves.values()))
        return
    table = pandas.DataFrame(
        {"settings": name, "samples": curve.samples, "accuracy": curve.score, "90 % from": curve.low, "to": curve.high,
         "cost": curve.cost}
        for name, curve in curves.items()
    )  # fmt: skip
    print_table(table, "Predicted on data like the training data (90 % interval; cost in full-training equivalents)")
    for note in dict.fromkeys(curve.note for curve in curves.values() if curve.note):
        typer.echo(note)


def learning_curve(
    target: Path = typer.Argument(
        ...,
        help="TOML grid, as for `gapscope pool run`; or module:function that returns (train_fn, data).",
    ),
    max_width: float | None = typer.Option(None, help="Maximum width of the 90 % interval."),
    design: str = typer.Option(
        "auto", help="Design of the subset runs; auto selects the cheapest that reaches --max-width."
    ),
    cache_dir: Path = typer.Option(Path("gapscope-learning-curve"), help="Folder of finished training runs."),
    workers: int = typer.Option(1, help="Number of training processes."),
    seed: int = typer.Option(0, help="Seed of the subsets and of the training runs."),
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Train on subsets, score on the rest, and extrapolate to all samples."""
    from gapscope.cli.output import print_json
    from gapscope.cli.progress import handle_interrupts, steps
    from gapscope.prediction.learning_curves import learning_curve as extrapolate

    runs, curves = _runs(target, data_root), {}
    with handle_interrupts(), steps("training") as show:
        for name, folder, train_fn, data in runs:
            show(len(curves), len(runs))
            curve = curves[name] = extrapolate(
                train_fn, data, max_interval_width=max_width, design=design, seed=seed, cache_dir=cache_dir / folder,
                workers=workers, data_root=data_root,
            )  # fmt: skip
            if curve.is_interrupted:
                break
    if json:
        print_json([{"recipe": name, **curve.to_dict()} for name, curve in curves.items()])
    else:
        _print(curves)
    if any(curve.is_interrupted for curve in curves.values()):
        raise typer.Exit(130)
