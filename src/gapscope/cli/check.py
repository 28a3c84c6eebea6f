"""`gapscope check`: limits of a network, and remedies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gapscope.cli.options import DATA_ROOT, JSON, LABEL_COLUMN, LOAD, NO_ANSWER

# every code, for --fail-on
ANY = "ANY"


def _targets(
    target: Path, data_root: str | None, max_networks: int, load: str | None, column: str | None
) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Yield name, network, data and options of every network of the target."""
    from gapscope.base.errors import InvalidInput
    from gapscope.cli.arguments import call_for_network, is_grid, is_table, read_grid, read_labelled_table

    if is_grid(target):
        from gapscope.pools.from_spec import network_from_spec, prepare_data

        for name, spec in list(read_grid(target, data_root).items())[:max_networks]:
            problem, _ = prepare_data(spec, data_root)
            yield name, network_from_spec(spec, problem), problem.train, {"seed": spec.seed}
    elif target.is_dir():
        weights = sorted(target.glob("runs/*/weights.safetensors"))[:max_networks]
        if not weights:
            raise InvalidInput(
                f"{target} must be a pool with stored weights; it has none. Pass a weights file instead."
            )
        for path in weights:
            yield path.parent.name, *stored_network(path, data_root)
    elif load is None and is_table(target):
        yield str(target), None, read_labelled_table(target, column), {}
    elif (own := call_for_network(target, load, "network or None")) is not None:
        yield str(target), *own, {}
    else:
        yield target.parent.name, *stored_network(target, data_root)


def stored_network(weights: Path, data_root: str | None) -> tuple[Any, Any, dict[str, Any]]:
    """Return network, data, and initial state, history and batch size as options of `check`."""
    from gapscope.base.specs import RunSpec
    from gapscope.cli.arguments import load_network
    from gapscope.results.records import Record

    network, data, initial = load_network(weights, data_root)
    options: dict[str, Any] = {"initial_state": initial}
    if (weights.parent / "record.json").exists():
        record = Record.read(weights.parent)
        options |= {"history": record.history, "batch_size": RunSpec.from_dict(record.spec).training.batch_size}
    return network, data, options


def _codes(text: str) -> list[str]:
    return [code.strip().upper() for code in text.split(",") if code.strip()]


def check(
    target: Path = typer.Argument(
        ...,
        help="module:function that returns (network, data) or (None, data); a weights file of a pool; a pool folder; a "
        "TOML grid of untrained networks; or a table (CSV or Parquet), of which the data alone are checked.",
    ),
    column: str | None = LABEL_COLUMN,
    fail_on: str = typer.Option(
        "", help="Exit with status 1 on findings with these codes, such as GS102,GS402, or `any`."
    ),
    ignore: str = typer.Option("", help="Codes to skip."),
    only: str = typer.Option("", help="Codes to run. Default: all."),
    time_budget: float = typer.Option(60.0, help="Approximate seconds per network."),
    html: Path | None = typer.Option(None, help="Write a self-contained HTML page (first network only)."),
    max_networks: int = typer.Option(5, help="Maximum number of networks of a pool or grid."),
    load: str | None = LOAD,
    data_root: str | None = DATA_ROOT,
    json: bool = JSON,
) -> None:
    """Find what limits a network and what to do, from its training data."""
    from gapscope.checks.registry import get_checks
    from gapscope.checks.run import check as run_checks
    from gapscope.cli.arguments import is_grid
    from gapscope.cli.output import check_outputs, print_json, print_lines
    from gapscope.cli.progress import handle_interrupts

    fatal = set(_codes(fail_on))
    get_checks(sorted(fatal - {ANY}))
    check_outputs(html)
    results, has_names = [], target.is_dir() or is_grid(target)
    with handle_interrupts(resumes=False):
        for name, network, data, options in _targets(target, data_root, max_networks, load, column):
            result = run_checks(
                network, data, ignore=_codes(ignore), only=_codes(only) or None, time_budget=time_budget, **options
            )
            results.append((name, result))
            if not json:
                print_lines(f"{name}\n{result!r}\n" if has_names else repr(result))
    if html is not None and results:
        results[0][1].write_html(html)
        typer.echo(f"written: {html}", err=True)
    if json:
        print_json([{"network": name, **result.to_dict()} for name, result in results])
    if any(result.interrupted for _, result in results):
        raise typer.Exit(130)
    codes = {code for _, result in results for code in result.codes}
    if codes & fatal or (codes and ANY in fatal):
        raise typer.Exit(1)
    is_unanswered = any(not result.findings and not result.fine for _, result in results)
    is_not_judged = ANY in fatal and any(result.not_judged for _, result in results)
    if is_unanswered or is_not_judged:
        raise typer.Exit(NO_ANSWER)
