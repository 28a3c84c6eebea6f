"""`gapscope measure` and `gapscope compare`: readings of networks on training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gapscope.cli.arguments import distinct_names, load_network, record_from_argument
from gapscope.cli.options import DATA_ROOT, JSON, LOAD, NETWORK, ONE_NETWORK, SAMPLES
from gapscope.cli.output import print_json, print_lines, print_table
from gapscope.cli.progress import steps

if TYPE_CHECKING:
    from gapscope.leaderboard.comparison import Comparison

NAMES = typer.Option(
    [],
    "--measure",
    help="Measure to run (`gapscope list measures`); repeatable. Default: the default measures.",
)


def measure(
    network: Path = ONE_NETWORK,
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Measure a network on its training data, with units and directions."""
    from gapscope.pools.readings import RunOptions

    options = RunOptions(
        measures=tuple(measures) or None, measure_samples=samples, data_root=data_root
    )
    record = record_from_argument(network, options, load=load)
    if json:
        content = {"readings": record.readings.to_dict(), "unmeasured": record.unmeasured}
        print_json({"id": record.id, "measured_samples": record.measured_samples, **content})
    else:
        print_lines(repr(record.readings))
        for name, reason in record.unmeasured.items():
            print_lines(f"{name}: no value: {reason}", err=True)
    if record.readings.interrupted:
        raise typer.Exit(130)


def compare(
    networks: list[Path] = typer.Argument(
        help=f"Two or more, trained on the same data: {NETWORK}."
    ),
    measures: list[str] = NAMES,
    samples: int | None = SAMPLES,
    evidence: Path | None = typer.Option(
        None,
        help="Networks with a known gap, a pool or a table (CSV, JSON, Parquet): only measures that predict it there "
        "vote (see `gapscope leaderboard`).",
    ),
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Rank networks by every measure on the same training data, with intervals."""
    from gapscope.base.samples import as_samples
    from gapscope.leaderboard.comparison_run import compare as compare_networks
    from gapscope.leaderboard.ranking import rank_measures

    loaded = {}
    data = []
    for source, name in zip(networks, distinct_names(networks), strict=True):
        loaded[name], training_data, _ = load_network(source, data_root, load)
        data.append(training_data)
    train = as_samples(data[0]).first(samples)
    board = None
    if evidence is not None:
        with steps("evaluating measures") as show:
            board = rank_measures(evidence, on_measure=lambda name, done, of: show(done, of))
    result = compare_networks(loaded, train, measures or None, evidence=board)
    if json:
        print_json(result)
    else:
        _print_comparison(result, f"{len(train)} training samples")
    if result.interrupted:
        raise typer.Exit(130)


def _print_comparison(result: Comparison, title: str) -> None:
    print_lines("\n".join(result.verdict))
    table = result.summary()
    # networks as columns if they are fewer than the numbers, to fit a terminal
    if len(table) < len(table.columns):
        table = table.T.rename_axis("")
    print_table(table.reset_index(), title)
