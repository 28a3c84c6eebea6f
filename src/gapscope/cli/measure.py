"""`gapscope measure` and `gapscope compare`: readings of stored networks on the data they were trained on."""

from __future__ import annotations

from pathlib import Path

import typer

NAMES = typer.Option([], "--measure", help="A measure; again for more. Default: all of linear cost.")
SAMPLES = typer.Option(None, help="Measure on this many training samples; default all.")
ROOT = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache).")
JSON = typer.Option(False, "--json", help="Print everything as JSON.")


def measure(
    network: Path = typer.Argument(..., help="Weights that a pool wrote (they carry their spec)."),
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    data_root: Path | None = ROOT,
    json: bool = JSON,
) -> None:
    """Measure a stored network on the data it was trained on; every number with direction and units."""
    from gapscope.pools.readings import RunOptions
    from gapscope.pools.stored import read_network

    options = RunOptions(
        measures=tuple(measures) or None,
        measure_samples=samples,
        data_root=None if data_root is None else str(data_root),
    )
    record = read_network(network, options)
    if json:
        from gapscope.base.files import to_json

        content = {"readings": record.readings.to_dict(), "unmeasured": record.unmeasured}
        typer.echo(to_json({"id": record.id, "measured_samples": record.measured_samples, **content}, indent=1))
        return
    typer.echo(repr(record.readings))
    for name, reason in record.unmeasured.items():
        typer.echo(f"{name}: no value: {reason}", err=True)


def compare(
    networks: list[Path] = typer.Argument(..., help="Two or more weights of one pool, trained on the same data."),
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    data_root: Path | None = ROOT,
    json: bool = JSON,
) -> None:
    """Rank stored networks by every measure on the first one's training data, with intervals and the size beside."""
    from rich.console import Console

    from gapscope.assessment.compare import compare as compare_networks
    from gapscope.cli.tables import table_of
    from gapscope.pools.stored import load_network

    loaded = [load_network(path, None if data_root is None else str(data_root)) for path in networks]
    named = {path.parent.name[:8]: network for path, (network, _) in zip(networks, loaded, strict=True)}
    train = loaded[0][1].train
    import torch

    chosen = train if samples is None else train.subset(torch.arange(min(samples, len(train))))
    found = compare_networks(named, chosen, measures or None)
    if json:
        typer.echo(found.to_json(indent=1))
        return
    Console().print(table_of(found.summary().reset_index(), f"{len(chosen)} training samples"))
    for sentence in found.verdict:
        typer.echo(sentence)
