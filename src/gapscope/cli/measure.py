"""`gapscope measure` and `gapscope compare`: readings of networks on training data."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapscope.cli.completion import complete_measures
from gapscope.cli.network_argument import HELP
from gapscope.cli.options import DATA_ROOT, JSON

if TYPE_CHECKING:
    from gapscope.leaderboard.leaderboard_result import Leaderboard

NAMES = typer.Option(
    [],
    "--measure",
    help="Measure to run (`gapscope list measures`); repeatable. Default: all of linear cost.",
    autocompletion=complete_measures,
)
SAMPLES = typer.Option(None, help="Number of training samples to measure on. Default: all.")


def measure(
    network: Path = typer.Argument(..., help=f"One network: {HELP}."),
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    data_root: Path | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Measure a network on its training data; each number has units and a direction."""
    from gapscope.cli.network_argument import record_from_argument
    from gapscope.pools.readings import RunOptions

    options = RunOptions(
        measures=tuple(measures) or None,
        measure_samples=samples,
        data_root=None if data_root is None else str(data_root),
    )
    record = record_from_argument(network, options)
    if json:
        from gapscope.cli.output import print_json

        content = {"readings": record.readings.to_dict(), "unmeasured": record.unmeasured}
        print_json({"id": record.id, "measured_samples": record.measured_samples, **content})
        return
    typer.echo(repr(record.readings))
    for name, reason in record.unmeasured.items():
        typer.echo(f"{name}: no value: {reason}", err=True)


def compare(
    networks: list[Path] = typer.Argument(..., help=f"Two or more, trained on the same data: {HELP}."),
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    evidence: Path | None = typer.Option(
        None, help="Networks with a known gap on which the measures are evaluated: a pool or a CSV file."
    ),
    data_root: Path | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Rank networks by every measure on the same training data, with intervals.

    With --evidence, only measures with evidence there vote (see `gapscope leaderboard`).
    """
    from gapscope.base.samples import as_samples
    from gapscope.cli.network_argument import first_samples, load_network_argument
    from gapscope.cli.output import print_json, print_rich
    from gapscope.cli.tables import table_of
    from gapscope.leaderboard.comparison_run import compare as compare_networks

    loaded = [load_network_argument(source, data_root) for source in networks]
    named = {name: network for name, network, _ in loaded}
    chosen = first_samples(as_samples(loaded[0][2]), samples)
    judged = None if evidence is None else _judged(evidence)
    found = compare_networks(named, chosen, measures or None, evidence=judged)
    if json:
        print_json(found)
        return
    width = shutil.get_terminal_size().columns
    for sentence in found.verdict:
        typer.echo(textwrap.fill(sentence, width))
    summary = found.summary()
    # as many columns as there are networks or measures, whichever are fewer, so that they fit
    shown = summary.T.rename_axis("").reset_index() if len(summary) < len(summary.columns) else summary.reset_index()
    print_rich(table_of(shown, f"{len(chosen)} training samples"))


def _judged(known: Path) -> Leaderboard:
    from gapscope.cli.progress import steps
    from gapscope.leaderboard.ranking import rank_measures

    with steps("judging measures") as show:
        return rank_measures(known, on_measure=lambda name, done, of: show(done, of))
