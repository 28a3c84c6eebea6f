"""Numbers and tables of README.md and the pages, read from the stored results that `numbers.toml` names.

Pages contain the values. A comment names the key: after a number (`0.93<!--numbers.KEY-->`), or on the line above a
table and an empty line (`<!--tables.KEY-->`). For a new one write `{{ numbers.KEY }}`, or `{{ tables.KEY }}` on its own
line.

    python docs/page_numbers.py    # rewrite every number and table with its stored value

A test compares the pages with the stored values.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
REDUCTIONS = {"mean": fmean, "min": min, "max": max}
FORMATS = ("integer", "number", "interval", "percent", "points", "text")
NUMBER = re.compile(
    r"(?:–|[+-]?\d[\d,.]*(?:\s%)?(?:\spoints)?(?:\s\(95\s%\sCI\s[^()]*\))?)<!--numbers\.(?P<key>\w+)-->"
    r"|\{\{\s*numbers\.(?P<new>\w+)\s*\}\}"
)
TABLE = re.compile(
    r"^<!--tables\.(?P<key>\w+)-->\n\n(?:\|.*\n)+|^\{\{ tables\.(?P<new>\w+) \}\}\n", re.MULTILINE
)
COMMENT = re.compile(r"<!--(?:numbers|tables)\.\w+-->\n*")


@cache
def _read(file: str) -> Any:
    path = ROOT / file if file.startswith("benchmarks/") else ROOT / "results" / file
    return json.loads(path.read_text())


def find(file: str, steps: Sequence[Any]) -> Any:
    """Follow steps into a JSON file: a key, an index, or a table that selects the first row with these values.

    "mean", "min" and "max" as the last step reduce a list.

    Returns:
        The value.

    Raises:
        KeyError: No row has these values.
    """
    value = _read(file)
    for step in steps:
        if isinstance(step, Mapping):
            rows = [
                row
                for row in value
                if all(row.get(key) == expected for key, expected in step.items())
            ]
            if not rows:
                raise KeyError(f"{file} has no row with {dict(step)}")
            value = rows[0]
        elif isinstance(value, list) and step in REDUCTIONS:
            value = REDUCTIONS[step](value)
        else:
            value = value[step]
    return value


def show(value: Any, form: str) -> str:
    """Format a value: "integer", "number .3f", "interval .3f", "percent .0f", "points +.1f" (with interval) or "text".

    >>> show(0.0676, "number .3f"), show([0.0676, 0.0572, 0.0771], "interval .3f"), show(0.912, "percent .0f")
    ('0.068', '0.068 (95 % CI 0.057 to 0.077)', '91 %')
    >>> show({"value": 0.044, "low": 0.014, "high": 0.081}, "points +.1f")
    '+4.4 points (95 % CI +1.4 to +8.1)'

    Returns:
        The text.

    Raises:
        ValueError: An unknown format.
    """
    kind, _, digits = form.partition(" ")
    if kind not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; got {form!r}")
    if value is None or value == "NaN" or value != value:
        return "–"
    if kind == "text":
        return str(value).replace("**", "")
    if kind == "integer":
        return f"{len(value) if isinstance(value, list) else round(float(value)):,}"
    if kind == "percent":
        return f"{format(100 * float(value), digits)} %"
    if kind in ("interval", "points"):
        if isinstance(value, Mapping):
            value = [value[name] for name in ("value", "low", "high")]
        factor = 100 if kind == "points" else 1
        middle, low, high = (format(factor * float(number), digits) for number in value)
        return f"{middle} {'points ' if kind == 'points' else ''}(95 % CI {low} to {high})"
    return format(float(value), digits)


def table(entry: Mapping[str, Any]) -> str:
    """Write a Markdown table: one line per selected row, one column per [heading, step or steps, format].

    Rows are a list of mappings, or a mapping whose keys become the column "name".

    Returns:
        The table.
    """
    rows = find(entry["file"], entry["at"])
    if isinstance(rows, Mapping):
        rows = [{"name": name, **row} for name, row in rows.items()]
    names = entry.get("rows", {})
    if names:
        key = entry["by"]
        rows = [
            {**next(row for row in rows if row[key] == name), key: shown}
            for name, shown in names.items()
        ]
    columns = entry["columns"]
    lines = [
        "| " + " | ".join(heading for heading, *_ in columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for row in rows:
        cells = []
        for _, steps, form in columns:
            value: Any = row
            for step in steps if isinstance(steps, list) else [steps]:
                if value is not None:
                    value = value.get(step) if isinstance(value, Mapping) else value[step]
            cells.append(show(value, form))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@cache
def entries() -> dict[str, Any]:
    """Content of `numbers.toml`."""
    return tomllib.loads((Path(__file__).parent / "numbers.toml").read_text())


@cache
def all_numbers() -> dict[str, str]:
    """Every number by its key, formatted."""
    return {
        key: show(find(entry["file"], entry["at"]), entry["format"])
        for key, entry in entries()["numbers"].items()
    }


@cache
def all_tables() -> dict[str, str]:
    """Every table by its key, as Markdown."""
    return {key: table(entry) for key, entry in entries()["tables"].items()}


def pages() -> list[Path]:
    """README.md and every page of this folder."""
    return [ROOT / "README.md", *sorted(Path(__file__).parent.rglob("*.md"))]


def fill(text: str) -> str:
    """Replace every number and table of a page by its stored value, with its key in a comment.

    Returns:
        The page.

    Raises:
        KeyError: `numbers.toml` has no such key.
    """

    def number(match: re.Match[str]) -> str:
        key = match["key"] or match["new"]
        return f"{all_numbers()[key]}<!--numbers.{key}-->"

    def whole_table(match: re.Match[str]) -> str:
        key = match["key"] or match["new"]
        return f"<!--tables.{key}-->\n\n{all_tables()[key]}\n"

    return TABLE.sub(whole_table, NUMBER.sub(number, text))


def without_keys(text: str) -> str:
    """Remove the comments that name keys."""
    return COMMENT.sub("", text)


if __name__ == "__main__":
    for page in pages():
        page.write_text(fill(page.read_text()))
