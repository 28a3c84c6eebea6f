"""`gapscope list measures | penalties | networks`: names for commands and grids."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from gapscope.cli.options import JSON
from gapscope.cli.output import print_json, print_lines, print_rows

app = typer.Typer(
    help="List measures, penalties and networks with their options.", no_args_is_help=True
)


def _show(what: str, rows: list[dict[str, Any]], json: bool) -> None:

    if json:
        print_json({what: rows})
    else:
        print_rows(rows, unfolded=("name",))


def _settings(penalty: type) -> list[str]:
    """Return the settings with their defaults."""
    return [
        name if item.default is item.empty else f"{name}={item.default!r}"
        for name, item in inspect.signature(penalty).parameters.items()
    ]


@app.command("measures")
def measures(json: bool = JSON) -> None:
    """List every measure: name, title, needs and cost."""
    from gapscope.measures.registry import list_measures

    items = list_measures().values()
    rows = [
        {"name": item.name, "needs": list(item.needs), "cost": item.cost_class, "title": item.title}
        for item in items
    ]
    if json:
        for row, item in zip(rows, items, strict=True):
            row |= {
                "by_default": item.default,
                "options": list(item.options),
                "numbers": list(item.numbers),
            }
    _show("measures", rows, json)
    if not json:
        print_lines(f"Default measures: {', '.join(item.name for item in items if item.default)}.")
        print_lines("To run one of them: gapscope measure NETWORK --measure NAME")


@app.command("penalties")
def penalties(json: bool = JSON) -> None:
    """List every penalty: name in specs, class, and settings with defaults."""
    from gapscope.penalties.base import penalties as registered

    rows = [
        {"name": name, "class": penalty.__name__, "settings": _settings(penalty)}
        for name, penalty in registered().items()
    ]
    _show("penalties", rows, json)


@app.command("networks")
def networks(json: bool = JSON) -> None:
    """List every network: name in specs, and options with defaults."""
    from gapscope.networks.factory import network_names, network_options

    rows = [
        {
            "name": name,
            "options": [f"{key}={value!r}" for key, value in network_options(name).items()],
        }
        for name in network_names()
    ]
    _show("networks", rows, json)
