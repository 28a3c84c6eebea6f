"""`gapscope check`: limits of a network, and remedies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gapscope.base.errors import InvalidInput
from gapscope.base.options import as_codes
from gapscope.base.specs import RunSpec
from gapscope.cli.arguments import (
    LabelledTable,
    call_for_network,
    check_checkpoint,
    is_grid,
    is_table,
    load_network,
    read_grid,
    read_labelled_table,
    read_pictures,
    read_second,
    weights_of_run,
)
from gapscope.cli.factories import call_for_all, import_function, is_factory, split_returned
from gapscope.cli.options import DATA_ROOT, JSON, LABEL_COLUMN, LOAD, NO_ANSWER, SIDE, TIME_BUDGET
from gapscope.cli.output import check_outputs, print_json, print_lines
from gapscope.cli.wording import in_a_shell
from gapscope.results.records import Record

if TYPE_CHECKING:
    from gapscope.checks.result import CheckResult

# every code, for --fail-on
ANY = "ANY"


def _with_shell_advice(result: CheckResult) -> CheckResult:
    """Return a result whose findings and reasons advise in the words of the command line."""
    from dataclasses import replace

    return replace(
        result,
        findings=tuple(replace(item, action=in_a_shell(item.action)) for item in result.findings),
        not_checked=tuple(
            replace(item, reason=in_a_shell(item.reason)) for item in result.not_checked
        ),
        not_judged=in_a_shell(result.not_judged),
    )


def _targets(
    target: Path,
    data_root: str | None,
    max_networks: int,
    load: str | None,
    column: str | None,
    side: int,
    test: Path | None,
) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Yield name, network, data and options of every network of the target."""
    from gapscope.data.image_folder import has_image_folders
    from gapscope.data.table_targets import split_frame

    check_checkpoint(target, load)
    if load is None and is_table(target):
        yield str(target), None, read_labelled_table(target, column), {}
    elif is_factory(target):
        returned = call_for_all(target, what="network or None")
        data = split_returned(returned.data, column, target, test)
        own_test = returned.options.get("test")
        if column is not None and data is not returned.data and own_test is not None:
            returned.options["test"] = split_frame(own_test, column, data[1])
        yield str(target), returned.network, data, returned.options
    elif is_grid(target):
        from gapscope.pools.from_spec import network_from_spec, prepare_data

        for name, spec in list(read_grid(target, data_root).items())[:max_networks]:
            problem, _ = prepare_data(spec, data_root)
            options = {"seed": spec.seed, "train_fn": spec.training}
            yield name, network_from_spec(spec, problem), problem.train, options
    elif target.is_dir() and not (target / "runs").exists() and has_image_folders(target):
        yield str(target), None, read_pictures(target, side), {}
    elif target.is_dir():
        weights = sorted(target.glob("runs/*/weights.safetensors"))[:max_networks]
        if not weights:
            raise InvalidInput(
                f"{target} must be a pool with stored weights, or have one folder of pictures per class; it has "
                "neither. Pass a weights file, or move the pictures of each class into a folder."
            )
        for path in weights:
            yield path.parent.name, *stored_network(path, data_root)
    elif (own := call_for_network(target, load)) is not None:
        yield str(target), own.network, own.data, own.options
    else:
        yield target.parent.name, *stored_network(target, data_root)


def stored_network(weights: Path, data_root: str | None) -> tuple[Any, Any, dict[str, Any]]:
    """Return network, data, and initial state, history, batch size and training as options of `check`."""
    network, data, initial = load_network(weights, data_root)
    options: dict[str, Any] = {"initial_state": initial}
    if (weights.parent / "record.json").exists():
        record = Record.read(weights.parent)
        training = RunSpec.from_dict(record.spec).training
        options |= {
            "history": record.history,
            "batch_size": training.batch_size,
            "train_fn": training,
        }
    return network, data, options


def _codes(text: str) -> list[str]:
    return as_codes(text.upper())


def _require_codes(fail_on: str | None, ignore: str, only: str | None) -> None:
    """Raise an error of the command line for lists of codes that are empty, or leave out what `--fail-on` names."""
    for option, value in (("--fail-on", fail_on), ("--only", only)):
        if value is not None and not _codes(value):
            raise typer.BadParameter(f"{option} names no code; pass codes such as GS102,GS402.")
    named = set(_codes(fail_on or "")) - {ANY}
    left_out = named & set(_codes(ignore))
    if only is not None:
        left_out |= named - set(_codes(only))
    if left_out:
        raise typer.BadParameter(
            f"--fail-on names {', '.join(sorted(left_out))}, which --ignore or --only leaves out."
        )


def check(
    target: Path = typer.Argument(
        help="module:function that returns (network, data), (network, data, initial state) or a mapping with these and "
        "other arguments of gapscope.check; a table (CSV, JSON lines, Parquet); a folder with one folder of "
        "pictures per class; a weights file of a pool, or POOL/ID; a pool folder; or a TOML grid of untrained "
        "networks.",
    ),
    column: str | None = LABEL_COLUMN,
    side: int = SIDE,
    test: Path | None = typer.Option(
        None, help="Table or folder of held-out samples, as the target."
    ),
    train: str = typer.Option(
        "",
        help="Try the advice: module:function that takes (inputs, targets) and returns a trained network, or `spec` "
        "for the configuration of a grid or of a pool.",
    ),
    fail_on: str | None = typer.Option(
        None,
        help="Exit with status 1 on findings with these codes, such as GS102,GS402, or `any`, and with status 3 if one "
        "of these was not checked; with `any`, if the accuracy on new data was not judged.",
    ),
    ignore: str = typer.Option("", help="Codes to skip."),
    only: str | None = typer.Option(None, help="Codes to run. Default: all."),
    time_budget: float = TIME_BUDGET,
    html: Path | None = typer.Option(
        None, help="Write a self-contained HTML page (first network only)."
    ),
    max_networks: int = typer.Option(5, help="Maximum number of networks of a pool or grid."),
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Find what limits a network and what to do, from its training data."""
    from gapscope.checks.registry import get_checks
    from gapscope.checks.run import check as run_checks

    target = weights_of_run(target)
    fatal = set(_codes(fail_on or ""))
    get_checks(sorted(fatal - {ANY}))
    _require_codes(fail_on, ignore, only)
    check_outputs(html, sources=(target, test))
    results = []
    has_names = target.is_dir() or is_grid(target)
    for name, network, data, options in _targets(
        target, data_root, max_networks, load, column, side, test
    ):
        if test is not None:
            options["test"] = read_second(test, column, data)
        if train == "spec" and options.get("train_fn") is None:
            raise typer.BadParameter(
                f"--train spec needs a grid, a pool, or a function that returns train_fn; {target} has no training "
                "configuration. Pass --train module:function."
            )
        if train and train != "spec":
            options["train_fn"] = import_function(train)
        elif not train and not is_factory(target):
            options["train_fn"] = None
        result = run_checks(
            network,
            data.pair if isinstance(data, LabelledTable) else data,
            ignore=_codes(ignore),
            only=_codes(only or "") or None,
            time_budget=time_budget,
            **options,
        )
        results.append((name, result))
        if not json:
            text = repr(result)
            print_lines(f"{name}\n{text}\n" if has_names else text)
    if html is not None and results:
        _with_shell_advice(results[0][1]).write_html(html)
        print_lines(f"written: {html}", err=True)
    if json:
        networks = [{"network": name, **result.to_dict()} for name, result in results]
        print_json({"networks": networks})
    if any(result.interrupted for _, result in results):
        raise typer.Exit(130)
    codes = {code for _, result in results for code in result.codes}
    if codes & fatal or (codes and ANY in fatal):
        raise typer.Exit(1)
    missed = [item for _, result in results for item in result.not_checked if item.code in fatal]
    for item in missed:
        print_lines(f"{item.code} was not checked: {item.reason}", err=True)
    if missed or any(
        not (result.findings or result.fine) or (ANY in fatal and result.not_judged)
        for _, result in results
    ):
        raise typer.Exit(NO_ANSWER)
