"""`gapscope report`: one self-contained HTML page about a pool."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.cli.check import stored_network
from gapscope.cli.options import DATA_ROOT, JSON, POOL
from gapscope.cli.output import check_outputs, print_json, print_lines
from gapscope.cli.progress import steps
from gapscope.results.records import Record


def _estimates(records: Sequence[Record]) -> dict[str, Any]:
    """Return the gap estimator and its held-out estimates (nothing below twelve networks)."""
    from gapscope.gap.cross_validation import cross_validate_pool
    from gapscope.report.pool_view import MIN_NETWORKS

    if sum(record.status == "finished" for record in records) < MIN_NETWORKS:
        return {}
    try:
        with steps("cross-validating the gap estimator") as show:
            estimator, held_out = cross_validate_pool(records, on_fit=show)
    except InvalidInput:  # no reading varies, or none is finite
        return {}
    return {"estimator": estimator, "held_out": held_out}


def _check(records: Sequence[Record], pool: Path, data_root: str | None) -> dict[str, Any]:
    """Return the checks of the most accurate stored network (nothing without weights or data)."""

    def score(record: Record) -> float:
        return record.scores.get("test_accuracy", -record.scores.get("train_loss", math.inf))

    finished = [record for record in records if record.status == "finished"]
    for record in sorted(finished, key=score, reverse=True):
        # a string, not a Path: a pool may hold 100,000 networks without weights
        path = f"{pool}/runs/{record.id}/weights.safetensors"
        if os.path.exists(path):  # noqa: PTH110 - as above
            break
    else:
        return {}  # before the imports of torch and the checks, which take seconds
    from gapscope.base.budget import DEFAULT_BUDGET
    from gapscope.checks.run import check

    try:
        network, data, options = stored_network(Path(path), data_root)
        options["train_fn"] = None
        # half of the default, for the report has other parts
        result = check(network, data, time_budget=DEFAULT_BUDGET / 2, **options)
        return {"check": (record.id, result)}
    except GapscopeError as error:
        print_lines(f"note: the network was not checked: {error}", err=True)
        return {}


def report(
    pool: Path = POOL,
    output: Path | None = typer.Option(None, help="Output file. Default: POOL/report.html."),
    title: str | None = typer.Option(None, help="Title of the page. Default: name of the folder."),
    checks: bool = typer.Option(
        True, help="Begin with the findings of `gapscope check` for the most accurate network."
    ),
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Write one HTML page about a pool.

    From 12 finished networks on, the report compares each gap with a leave-one-out estimate (from 100 on, 20-fold).
    Above 1,000 networks, statistics and figures use a random sample of training configurations; counts, best networks
    and failures use all.
    """
    from gapscope.pools import open_pool
    from gapscope.report import summary, write_report
    from gapscope.report.pool_view import PoolView
    from gapscope.results.formatting import pluralize

    path = output or pool / "report.html"
    view = PoolView(open_pool(pool))
    if not json:
        check_outputs(path)
    estimates = _estimates(view.records)
    name = title or pool.resolve().name
    if json:
        print_json({"title": name, **summary(view, estimates.get("held_out"))})
        return
    if checks:
        estimates |= _check(view.all_records, pool, data_root)
    write_report(view, path, title=name, **estimates)
    print_lines(
        f"written: {path} ({path.stat().st_size / 1e3:.0f} kB, {pluralize(len(view.all_records), 'network')})"
    )
