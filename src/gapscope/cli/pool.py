"""`gapscope pool`: train and measure a grid, or add your own networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gapscope.base.errors import InvalidInput
from gapscope.base.files import as_word
from gapscope.cli.arguments import distinct_names
from gapscope.cli.factories import call_for_all, call_function, import_function, is_factory
from gapscope.cli.options import DATA_ROOT, JSON, POOL, SAMPLES, WORKERS
from gapscope.cli.output import print_json, print_lines, print_table
from gapscope.cli.progress import handle_interrupts, progress
from gapscope.results.formatting import pluralize
from gapscope.results.records import Record

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    help="Train and measure many networks, or add your own. Run the same command again to continue.",
    no_args_is_help=True,
)

GRID = typer.Argument(
    help="TOML file with the grid: tables base, [\\[cases]], axes, and a list measures."
)


@app.command("run")
def run(
    grid: Path = GRID,
    folder: Path = POOL,
    workers: int = WORKERS,
    engine: str = typer.Option("local", help="'local' processes, or 'ray' for a cluster."),
    ray_address: str | None = typer.Option(
        None, help="Address of a running Ray cluster, such as 10.0.0.1:6379."
    ),
    gpus: float = typer.Option(0.0, help="GPUs per network on a Ray cluster; fractions share one."),
    mirror: str | None = typer.Option(
        None, help="Folder or URL to copy finished runs to, such as s3://bucket/pool."
    ),
    data_root: str | None = DATA_ROOT,
    device: str = typer.Option("cpu", help="Torch device."),
    measure_samples: int | None = SAMPLES,
    retry_failed: bool = typer.Option(False, help="Run failed networks again."),
    json: bool = JSON,
) -> None:
    """Train, score and measure a grid. Finished networks are skipped."""
    from gapscope.data import find_dataset
    from gapscope.pools import Grid, Pool

    specs = Grid.from_toml(grid)
    pool = Pool(folder)
    for name in dict.fromkeys(spec.data.name for spec in specs):
        find_dataset(name, root=data_root)  # raise before the first line of output
    to_run = pool.missing(specs, measures=specs.measures, retry_failed=retry_failed)
    missing = len(to_run)
    unreadable = pool.status(specs).unreadable - pool.status(to_run).unreadable
    print_lines(
        f"{pluralize(len(specs), 'network')}, {len(specs) - missing - unreadable} done, {missing} to run with "
        f"{pluralize(workers, 'worker')}" + (f", {unreadable} unreadable" if unreadable else ""),
        err=json,
    )
    with handle_interrupts(resumes=True), progress(f"pool {folder}", missing) as show:
        records = pool.run(
            specs,
            workers=workers,
            engine=engine,
            address=ray_address,
            gpus=gpus,
            mirror=mirror,
            data_root=data_root,
            device=device,
            measure_samples=measure_samples,
            retry_failed=retry_failed,
            on_record=show,
        )
    counts = {
        status: sum(r.status == status for r in records)
        for status in ("finished", "diverged", "failed")
    }
    if json:
        rows = [
            {"id": r.id, "status": r.status, "message": r.message, "gap": r.gap, **r.scores}
            for r in records
        ]
        print_json({"folder": str(folder), **counts, "networks": rows})
    else:
        print_lines(
            ", ".join(f"{count} {status}" for status, count in counts.items())
            + f"; records in {folder}"
        )
    if counts["failed"]:
        first = next(record for record in records if record.status == "failed")
        print_lines(f"first failure: {first.id}: {first.message}", err=True)
        print_lines("to run failed networks again: --retry-failed", err=True)
    if not counts["finished"]:
        print_lines("no network finished", err=True)
        raise typer.Exit(1)
    if not json:
        print_lines(f"next: gapscope report {as_word(folder)}")


@app.command("status")
def status(grid: Path = GRID, folder: Path = POOL, json: bool = JSON) -> None:
    """Show how many runs of a grid are finished."""
    from dataclasses import asdict

    from gapscope.pools import Grid, Pool

    state = Pool(folder).status(Grid.from_toml(grid))
    if json:
        print_json({"total": state.total, **asdict(state)})
        return
    print_lines(
        f"{pluralize(state.total, 'network')}: {state.finished} finished, {state.diverged} diverged, "
        f"{state.failed} failed, {state.started} started, {state.waiting} waiting"
        + (f", {state.unreadable} unreadable" if state.unreadable else "")
    )


@app.command("show")
def show(folder: Path = POOL, json: bool = JSON) -> None:
    """List the networks of a pool with the settings that vary, accuracies and gaps; the best test accuracy first."""
    from gapscope.gap.columns import hyperparameter_columns, merge_passed_settings
    from gapscope.pools import open_pool

    table = open_pool(folder).to_pandas().reset_index()
    if not len(table):
        raise InvalidInput(
            f"{folder} has no finished network. Run `gapscope pool run`, or add networks: `gapscope pool add`."
        )
    varied = hyperparameter_columns(table)
    table, filled = merge_passed_settings(table)
    varied += [name for name in filled if table[name].nunique() > 1]
    scores = ("train_accuracy", "test_accuracy", "train_loss", "test_loss", "gap")
    order = dict.fromkeys(("name", "network.name", *varied, "status", *scores))
    columns = [name for name in order if name in table and not table[name].isna().all()]
    if "gap_kind" in table and set(table["gap_kind"]) >= {"accuracy", "loss"}:
        columns.append("gap_kind")
    table = table[["id", *columns]]
    for column, ascending in (("name", True), ("test_accuracy", False)):  # the last one decides
        if column in table:
            table = table.sort_values(column, ascending=ascending, kind="stable")
    if json:
        print_json({"folder": str(folder), "networks": table.to_dict("records")})
        return
    # the last part of a path such as training.epochs, unless two columns share it
    short = [name.split(".")[-1] for name in table.columns]
    unique = {name: part for name, part in zip(table, short, strict=True) if short.count(part) == 1}
    print_table(table.rename(columns=unique), f"{pluralize(len(table), 'network')} of {folder}")


def _check_checkpoints(paths: list[Path], load: str | None) -> list[Path]:
    """Return each checkpoint once, or raise InvalidInput before the first is read."""
    if load is not None:
        import_function(load)
    for path in paths:
        if load is None and not is_factory(path):
            raise InvalidInput(
                f"{path} needs a function that reads it, as gapscope never unpickles files. Write load(path), which "
                "returns (network, training data), and pass --load my_models:load."
            )
        if load is not None and not path.exists():
            raise InvalidInput(f"{path} must be a file; there is no such file.")
    if load is None:
        return list(dict.fromkeys(paths))
    return list({path.resolve(): path for path in paths}.values())


def _parse_settings(texts: list[str]) -> dict[str, Any]:
    """Return settings of --set: numbers, true, false and null as in JSON, everything else as text."""
    import json

    settings: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise InvalidInput(f"--set needs NAME=VALUE, such as --set width=64; got {text!r}.")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _join_settings(common: dict[str, Any], own: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Return the settings of --set and those of the function, or raise InvalidInput if they contradict each other."""
    for name in common.keys() & own.keys():
        if common[name] != own[name]:
            raise InvalidInput(
                f"{source} has the setting {name} = {own[name]!r} from its function, and --set {name}={common[name]}. "
                "Omit one of them."
            )
    return {**common, **own}


def _names(networks: list[Path], name: str | None) -> list[str]:
    """Return the name of --name, else names from the paths."""
    if name is None:
        return distinct_names(networks)
    if len(networks) > 1:
        raise InvalidInput(
            f"--name names one network; got {len(networks)} networks. Add them one by one."
        )
    return [name]


@app.command("add")
def add(
    folder: Path = POOL,
    networks: list[Path] = typer.Argument(
        metavar="CHECKPOINT...",
        help="Files for --load; without it, one module:function per network.",
    ),
    load: str | None = typer.Option(
        None,
        help="module:function that maps the path of a checkpoint to (network, training data), or to (network, training "
        "data, settings) with a dict of its hyperparameters (a dict of tensors is the state before training).",
    ),
    test: str | None = typer.Option(
        None, help="module:function that returns the test data, for the gap."
    ),
    family: str = typer.Option("", help="Name of the architecture. Default: name of the class."),
    name: str | None = typer.Option(
        None, help="Name of the network, if it is the only one. Default: from its path."
    ),
    settings: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="Hyperparameter of all these networks; repeatable."
    ),
    replace: bool = typer.Option(
        False, help="Overwrite other networks of the same names and settings."
    ),
    measure: list[str] = typer.Option(
        [], help="Measure to run; repeatable. Default: the default measures."
    ),
    json: bool = JSON,
) -> None:
    """Score and measure networks trained elsewhere and add them to a pool.

    The named functions are imported and called; only `load` reads the checkpoints. Names are the shortest ends of the
    paths that differ. Measures are compared at equal hyperparameters, so pass these: as a third value of the function,
    or by --set.
    """
    from gapscope.pools import Pool

    networks = _check_checkpoints(networks, load)
    common = _parse_settings(settings)
    names = _names(networks, name)
    held_out = None if test is None else call_function(test, needed="test data")
    pool = Pool(folder)
    n_before = len(pool) if folder.exists() else 0
    records: list[Record] = []
    with handle_interrupts(resumes=True), progress(f"pool {folder}", len(networks)) as announce:
        for path, each in zip(networks, names, strict=True):
            own = call_for_all(path) if load is None else call_for_all(load, path)
            record = pool.add(
                own.network,
                own.data,
                settings=_join_settings(common, own.settings, path),
                initial_state=own.options.get("initial_state"),
                replace=replace,
                test=own.options.get("test") if held_out is None else held_out,
                name=each,
                family=family,
                measures=measure or None,
                progress=False,
            )
            records.append(record)
            announce(record)
    if json:
        rows = [{"id": r.id, "name": r.spec["name"], "gap": r.gap, **r.scores} for r in records]
        print_json({"folder": str(folder), "networks": rows})
        return
    n_added = len(pool) - n_before
    updated = f", {len(records) - n_added} updated" if n_added < len(records) else ""
    print_lines(f"{pluralize(n_added, 'network')} added to {folder}{updated}, {len(pool)} in total")
    for note in dict.fromkeys(note for record in records for note in record.readings.notes):
        print_lines(f"note: {note}")
    if not any("hp" in record.spec for record in records):
        print_lines(
            "note: no hyperparameters were passed (see --help): measures cannot be compared at equal settings"
        )
    word = as_word(folder)
    print_lines(f"next: gapscope pool show {word}; gapscope report {word}; gapscope gap fit {word}")
