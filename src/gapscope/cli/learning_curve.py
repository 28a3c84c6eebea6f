"""`gapscope learning-curve`: accuracy with all samples, from runs on subsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON


def _runs(source: Path, data_root: Path | None) -> list[tuple[str, str, Any, Any]]:
    """Return name, cache folder, training function or spec, and data of each run."""
    from gapscope.cli.network_argument import call_factory, check_no_network, is_factory
    from gapscope.cli.tables import varied_settings
    from gapscope.data import find_dataset
    from gapscope.pools import Grid

    if is_factory(source):
        train_fn, data = call_factory(source, "train_fn")
        check_no_network(train_fn, source)
        return [(str(source), str(source).replace(":", "."), train_fn, data)]
    specs = list(Grid.from_toml(source))
    for name in dict.fromkeys(spec.data.name for spec in specs):
        find_dataset(name, root=None if data_root is None else str(data_root))
    return [(name, spec.id, spec, None) for name, spec in zip(varied_settings(specs), specs, strict=True)]


def _print(names: list[str], curves: list[Any]) -> None:
    import pandas

    from gapscope.cli.output import print_table

    if len(curves) == 1:
        typer.echo(repr(curves[0]))
        return
    shown = pandas.DataFrame(
        {"settings": name, "samples": one.samples, "accuracy": one.score, "90 % from": one.low, "to": one.high,
         "cost": one.cost}
        for name, one in zip(names, curves, strict=True)
    )  # fmt: skip
    print_table(shown, "Predicted on data like the training data (90 % interval; cost in full-training equivalents)")
    for note in dict.fromkeys(one.note for one in curves if one.note):
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
    data_root: Path | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Train on subsets, score on the rest, and extrapolate to all samples."""
    from rich.console import Console
    from rich.progress import track

    from gapscope.cli.output import print_json
    from gapscope.cli.progress import handle_interrupts
    from gapscope.prediction.learning_curves import learning_curve as extrapolate

    runs = _runs(target, data_root)
    curves = []
    with handle_interrupts():
        for _, folder, train_fn, data in track(runs, "training", console=Console(stderr=True), transient=True):
            one = extrapolate(
                train_fn, data, max_interval_width=max_width, design=design, seed=seed, cache_dir=cache_dir / folder,
                workers=workers, data_root=None if data_root is None else str(data_root),
            )  # fmt: skip
            curves.append(one)
            if one.is_interrupted:
                break
    names = [name for name, *_ in runs[: len(curves)]]
    if json:
        print_json([{"recipe": name, **one.to_dict()} for name, one in zip(names, curves, strict=True)])
    else:
        _print(names, curves)
    if curves[-1].is_interrupted:
        raise typer.Exit(130)
