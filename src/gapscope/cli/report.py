"""`gapscope report`: one self-contained HTML page about a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gapscope.results.records import Record

FEWEST = 12


def _estimates(records: Sequence[Record]) -> dict[str, Any]:
    """Estimator and what it says of each network when fitted on others; nothing where they are too few."""
    from gapscope.base.errors import InvalidInput
    from gapscope.cli.progress import steps
    from gapscope.estimation import estimated_from_others

    if sum(record.status == "finished" for record in records) < FEWEST:
        return {}
    try:
        with steps("estimating each network from others") as show:
            estimator, held_out = estimated_from_others(records, on_fit=show)
    except InvalidInput:  # no reading varies, or none is finite: there is nothing to estimate from
        return {}
    return {"estimator": estimator, "held_out": held_out}


def _suspects(records: Sequence[Record], data_root: Path | None) -> dict[str, Any]:
    """The most suspicious labels of the pool's training data, by the untrained network of its first record."""
    from gapscope.base.errors import InvalidInput
    from gapscope.base.specs import Spec
    from gapscope.labels.label_issues import suspect_labels
    from gapscope.pools.from_spec import build_network, prepared

    named = next((record for record in records if "network" in record.spec and "data" in record.spec), None)
    if named is None:
        raise InvalidInput(
            "--suspects needs a pool whose networks gapscope trained, which names their data; this one has none. Use "
            "gapscope.suspect_labels(network, data), and write_report(..., suspects=...)."
        )
    spec = Spec.from_dict(named.spec)
    problem, _ = prepared(spec, None if data_root is None else str(data_root))
    found = suspect_labels(build_network(spec, problem), problem.train)
    return {"suspects": found, "images": problem.train.inputs}


def report(
    pool: Path = typer.Argument(..., help="Folder of a pool."),
    output: Path | None = typer.Option(None, help="Where to write the page; default POOL/report.html."),
    title: str | None = typer.Option(None, help="Title of the page; default the folder's name."),
    suspects: bool = typer.Option(
        False, help="Also show the training samples whose labels are most suspicious, before training."
    ),
    data_root: Path | None = typer.Option(None, help="Where the data lie (else GAPSCOPE_DATA, else the user cache)."),
    json: bool = typer.Option(False, "--json", help="Print everything as JSON instead of writing the page."),
) -> None:
    """Write one HTML page about a pool: no network needed, readable on a phone and in the dark.

    From twelve finished networks on, it shows the gap of each as estimated from all others (from a hundred networks
    on: from those of the other nineteen of twenty folds). Of more than a thousand networks, statistics, estimates and
    figures are of whole recipes drawn at random; counts, best networks and failures are of all.
    """
    from gapscope.base.files import to_json
    from gapscope.pools import open_pool
    from gapscope.report import summary, write_report
    from gapscope.report.formatting import counted
    from gapscope.report.pool_view import view_of

    view = view_of(open_pool(pool))
    estimates, name = _estimates(view.records), title or pool.resolve().name
    if json:
        typer.echo(to_json({"title": name, **summary(view, estimates.get("held_out"))}, indent=1))
        return
    if suspects:
        estimates |= _suspects(view.records, data_root)
    path = write_report(view, output or pool / "report.html", title=name, **estimates)
    typer.echo(f"written: {path} ({path.stat().st_size / 1e3:.0f} kB, {counted(len(view.everyone), 'network')})")
