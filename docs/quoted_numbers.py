"""Numbers that README.md and the docs quote from stored results: rewritten from the JSON, and checked by a test.

A quotation is the number between two comments, which name the file, the way into it and a format:

    <!--n zhao2022/small/worth.json :: rmse > digits > mean gap :: .3f-->.313<!--/n-->

A way begins at the file's "numbers", where it has any, or at its "claims", and is names and list indices between " > ".
`[noise <= 0.15]` keeps the items of a list that fulfil it, `kept - final` is the difference of two fields of all items,
and `mean`, `len`, `min` and `max` end a way through a list; `R2 of m.NAME` ends one through networks, by the straight
line to the gap of each from the others. A format ends with "%" for per cent, with "p" for points (hundredths) and with
"d" for whole numbers; leading zeros are left out, as the docs do; "0" before it keeps them. In brackets it is that of a
value with its interval.

A whole table is quoted by what stands above it: the file and the way to its rows (a list, or a dictionary, whose keys
are their names), the headings of what is written by hand, a line for every column of numbers, and a line for every row:

    <!--t overfitting_alarm/small/judging.json :: rules
    # alarm | looks at
    hit rate = hit rate [.2f]
    > joint :: `joint` | the sum of three others
    -->

A way within a row is as above. What a row lacks, or has no value for, is a dash, and a row named "-" has no numbers.
Without lines for rows all of them are written, with their text columns (`heading = way`).

    python docs/quoted_numbers.py    # rewrites README.md and docs/
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gapscope.leaderboard.line_fit import cross_validated_line

ROOT = Path(__file__).parents[1]
QUOTED = re.compile(r"<!--n (?P<file>\S+) :: (?P<way>.+?) :: (?P<form>\S+?)-->(?P<text>.*?)<!--/n-->")
TABLE = re.compile(r"<!--t (?P<file>\S+) :: (?P<way>[^\n]+)\n(?P<lines>.*?)\n-->.*?<!--/t-->", re.DOTALL)
COLUMN = re.compile(r"(?P<heading>.+?) = (?P<way>.+?)(?: (?P<form>\[?[+0]*(?:\.\d+[fp%]|d)\]?))?")
COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "=": operator.eq}
FILTER = re.compile(r"\[(?P<name>.+?) (?P<sign><=|>=|<|>|=) (?P<value>.+?)\]")
ENDS: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values), "len": len, "min": min, "max": max,
}  # fmt: skip


def _plain(value: str) -> Any:
    try:
        return float(value)
    except ValueError:
        return value


def _r_squared(networks: list[dict[str, float]], measure: str) -> float:
    """How well the line of all other networks predicts each one's gap."""
    values, gaps = (np.array([network[name] for network in networks]) for name in (measure, "gap"))
    one_each = np.arange(len(gaps))
    return cross_validated_line(values, gaps, one_each, np.empty((0, len(gaps)), dtype=int), n_bootstrap=1).r_squared


def _step(found: Any, name: str) -> Any:
    """What lies one step further on a way."""
    if isinstance(found, dict):
        return found[name]
    if chosen := FILTER.fullmatch(name):
        wanted, holds = _plain(chosen["value"]), COMPARE[chosen["sign"]]
        return [item for item in found if holds(item[chosen["name"]], wanted)]
    if name in ENDS:
        return ENDS[name](found)
    if name.startswith("R2 of "):
        return _r_squared(found, name.removeprefix("R2 of "))
    if name.lstrip("-").isdigit():
        return found[int(name)]
    first, *second = name.split(" - ")
    return [item[first] - item[second[0]] if second else item[first] for item in found]


@cache
def _content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def value_at(file: str, way: str, root: Path = ROOT) -> Any:
    """The value that a quotation names, in a file below results/ or from the repository's folder."""
    path = next(path for path in (root / "results" / file, root / file) if path.exists())
    found = _content(path)
    found = found if way.startswith("claims > ") else found.get("numbers", found)
    for name in re.split(r" > (?![^\[]*\])", way):  # not within a filter
        found = _step(found, name)
    return found


def written(value: float, form: str) -> str:
    """The number as the docs write it.

    >>> written(0.7573, ".3f"), written(0.2071, ".0%"), written(-0.5, "0.1f"), written(38.0, "d")
    ('.757', '21 %', '-0.5', '38')
    >>> written(0.014, "+.1p")
    '+1.4'

    Args:
        value: The number.
        form: As in a quotation.

    Returns:
        Its text.
    """
    if form.endswith("d"):
        return f"{round(float(value)):,}"
    if form.endswith("p"):
        return f"{100 * float(value):{form.removesuffix('p')}f}"
    if form.endswith("%"):
        return f"{float(value):{form}}".replace("%", " %")
    text = f"{float(value):{form.removeprefix('0')}}"
    return text if form.startswith("0") else re.sub(r"^([+-]?)0\.", r"\1.", text)


def said(value: Any, form: str) -> str:
    """A number, or one with its interval, as the docs write it.

    >>> said(0.5, ".2f"), said([0.5, 0.25, 0.75], "[.2f]"), said({"value": 0.5, "low": 0, "high": 1}, "[+.0p]")
    ('.50', '.50 [.25, .75]', '+50 [+0, +100]')

    Args:
        value: The number, or three of them.
        form: As in a quotation; in brackets with an interval.

    Returns:
        Its text; a dash where there is no number.
    """
    parts: Any = [value[name] for name in ("value", "low", "high")] if isinstance(value, dict) else value
    numbers: list[Any] = list(parts) if form.startswith("[") else [value]
    first, *ends = numbers
    if float(first) != float(first):
        return "-"
    texts = [written(item, form.strip("[]")) for item in (first, *ends)]
    return f"{texts[0]} [{', '.join(texts[1:])}]" if ends else texts[0]


def _cell(row: Any, way: str, form: str | None) -> str:
    """What a row has at the end of a way, as a table shows it."""
    try:
        for name in way.split(" > "):
            row = _step(row, name)
    except (KeyError, IndexError, TypeError):
        return "-"
    return str(row) if form is None else said(row, form)


def table(found: Any, lines: list[str]) -> str:
    """A quoted table without its comments.

    >>> print(table({"a": {"rate": [0.5, 0.25, 0.75]}}, ["# rule", "hits = rate [.2f]", "> a :: first", "> - :: b"]))
    | rule | hits |
    |---|---|
    | first | .50 [.25, .75] |
    | b | - |

    Args:
        found: The rows: a list, or name -> row.
        lines: Headings, columns and rows, as in the comment.

    Returns:
        The table in Markdown.

    Raises:
        KeyError: A row does not exist, or no row has a value for a column.
    """
    rows = found if isinstance(found, dict) else {str(number): row for number, row in enumerate(found)}
    by_hand = [heading for line in lines if line.startswith("# ") for heading in line[2:].split(" | ")]
    columns = [match for line in lines if line[:2] not in ("# ", "> ") and (match := COLUMN.fullmatch(line))]
    named: list[tuple[Any, ...]] = [tuple(line[2:].split(" :: ", 1)) for line in lines if line.startswith("> ")]
    content = [[*by_hand, *(column["heading"] for column in columns)]]
    for key, cells in named or [(key, "") for key in rows]:
        row = {} if key == "-" else rows[key]
        numbers = [_cell(row, column["way"], column["form"]) for column in columns]
        content.append([*(cells.split(" | ") if by_hand else []), *numbers])
    for number, heading in enumerate(content[0]):
        if all(line[number] == "-" for line in content[1:]):
            raise KeyError(f"no row has a value for {heading!r}")
    content.insert(1, ["---"] * len(content[0]))
    return "\n".join(f"|{'|'.join(row)}|" if row[0] == "---" else f"| {' | '.join(row)} |" for row in content)


def rewritten(text: str, root: Path = ROOT) -> str:
    """The page with every quotation as the results have it."""

    def quote(found: re.Match[str]) -> str:
        head = f"<!--n {found['file']} :: {found['way']} :: {found['form']}-->"
        return head + said(value_at(found["file"], found["way"], root), found["form"]) + "<!--/n-->"

    def quote_table(found: re.Match[str]) -> str:
        head = f"<!--t {found['file']} :: {found['way']}\n{found['lines']}\n-->"
        lines = table(value_at(found["file"], found["way"], root), found["lines"].split("\n"))
        return f"{head}\n\n{lines}\n\n<!--/t-->"

    return QUOTED.sub(quote, TABLE.sub(quote_table, text))


def pages(root: Path = ROOT) -> Iterator[Path]:
    """README.md and every page of the docs."""
    yield root / "README.md"
    yield from sorted((root / "docs").rglob("*.md"))


def main() -> None:
    """Rewrite the pages whose quotations have changed."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"rewritten: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
