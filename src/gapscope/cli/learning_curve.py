"""`gapscope learning-curve`: the accuracy that runs reach with all their samples, from trainings on parts of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def _recipes(source: Path) -> list[tuple[str, Any, Any]]:
    """Name, recipe and data (None for a spec's own) of everything that is named on the command line."""
    from gapscope.cli.network_argument import call_factory, is_factory
    from gapscope.pools import Grid

    if is_factory(source):
        return [(str(source).replace(":", "."), *call_factory(source, "recipe"))]
    return [(spec.id, spec, None) for spec in Grid.from_toml(source)]


def _shown(names: list[str], found: list[Any]) -> None:
    import pandas
    from rich.console import Console

    from gapscope.cli.tables import table_of

    if len(found) == 1:
        typer.echo(repr(found[0]))
        return
    shown = pandas.DataFrame(
        {"recipe": name, "samples": one.samples, "expected": one.score, "from": one.low, "to": one.high,
         "trainings": one.cost}
        for name, one in zip(names, found, strict=True)
    )  # fmt: skip
    Console().print(table_of(shown, "Expected on data like the training data (90 % interval)"))
    for note in dict.fromkeys(one.note for one in found if one.note):
        typer.echo(note)


def learning_curve(
    recipes: Path = typer.Argument(
        ..., help="TOML file with the grid, as for `gapscope pool run`; or module:function that returns (recipe, data)."
    ),
    width: float | None = typer.Option(None, help="Width that the 90 % interval shall have at most."),
    design: str = typer.Option(
        "auto", help="What is trained, by name; auto takes the cheapest that reaches the width."
    ),
    folder: Path = typer.Option(Path("gapscope-twin"), help="Where finished trainings are kept."),
    workers: int = typer.Option(1, help="Processes that train side by side."),
    stack: str = typer.Option("never", help="Train folds of a grid's recipes in one stack: never, auto, always."),
    seed: int = typer.Option(0, help="Seed of the parts and of the trainings."),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
) -> None:
    """Train a recipe on parts of its data, score it on the rest, and say what it will reach with all of them."""
    from rich.console import Console
    from rich.progress import track

    from gapscope.base.files import to_json
    from gapscope.cli.progress import handle_interrupts
    from gapscope.prediction.learning_curves import learning_curve as extrapolate

    named = _recipes(recipes)
    found, screen = [], Console(stderr=True)
    with handle_interrupts():
        for name, recipe, data in track(named, "training twins", console=screen, transient=True):
            one = extrapolate(
                recipe, data, max_interval_width=width, design=design, seed=seed, cache_dir=folder / name,
                workers=workers,
                stack=stack,  # pyright: ignore[reportArgumentType]
                data_root=None if data_root is None else str(data_root),
            )  # fmt: skip
            found.append(one)
    names = [name for name, _, _ in named]
    if json:
        typer.echo(
            to_json([{"recipe": name, **one.to_dict()} for name, one in zip(names, found, strict=True)], indent=1)
        )
        return
    _shown(names, found)
