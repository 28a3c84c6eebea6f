"""Output of commands: standard JSON, and tables that are never truncated."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from numbers import Number
from typing import TYPE_CHECKING, Any

import typer

from gapscope.base.errors import NotWritten
from gapscope.base.files import check_output, to_json
from gapscope.cli.wording import in_a_shell
from gapscope.results.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from rich.console import Console

# wider than any table: piped output has no screen to fit, unless COLUMNS names its width
_PIPED = 1000
# what a terminal obeys or cannot show, in names from files: control codes, changes of the direction, halves of letters
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# keys of JSON whose text advises
_ADVICE = {
    "abstained_because",
    "action",
    "error",
    "not_judged",
    "note",
    "notes",
    "reason",
    "unclear",
}
# what the running command said of the data that it read
_NOTES: ContextVar[list[str]] = ContextVar("notes")


def start_notes() -> None:
    """Begin the notes of a command."""
    _NOTES.set([])


def print_note(text: str) -> None:
    """Print a sentence on how data were read to standard error; `print_json` adds it to its object.

    Args:
        text: The sentence.
    """
    _NOTES.get([]).append(text)
    print_lines(text, err=True)


def check_outputs(*paths: Path | None, sources: Sequence[Path | None] = ()) -> None:
    """Raise NotWritten before the work, if a file cannot be written, or holds the data (None: no file)."""
    written: list[Path] = []
    for path in paths:
        if path is None:
            continue
        check_output(path)
        if any(_is_same_file(path, source) for source in sources if source is not None):
            raise NotWritten(f"{path} is read as data. Pass the path of another file to write.")
        if any(_is_same_file(path, other) for other in written):
            raise NotWritten(f"{path} is named for two outputs. Pass two paths.")
        written.append(path)


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths are one file, which may not exist yet."""
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.resolve() == other.resolve()


def _for_programs(value: Any, key: str = "") -> Any:
    """Return JSON with advice for a shell, and with durations, which nothing is computed from, in milliseconds."""
    if isinstance(value, Mapping):
        return {name: _for_programs(item, name) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_for_programs(item, key) for item in value]
    if key == "seconds" and isinstance(value, float):
        return round(value, 3)
    return in_a_shell(value) if key in _ADVICE and isinstance(value, str) else value


def print_json(value: Result | Mapping[str, Any]) -> None:
    """Print one JSON object, as docs/json.md describes it: missing and infinite numbers are null.

    Its `notes` are those of `print_note`, and those of the results that it holds, which are printed as well.
    """
    content = value.to_dict() if isinstance(value, Result) else value
    content = _for_programs(content)
    own = [note for part in _results_in(content) for note in part.get("notes") or ()]
    said = [in_a_shell(note) for note in _NOTES.get([])]
    for note in dict.fromkeys(own):
        if note not in said:
            print_lines(note, err=True)
    notes = list(dict.fromkeys([*said, *own]))
    typer.echo(to_json({**content, "notes": notes}, indent=1, null=True))


def _results_in(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return an object of JSON, and the objects in it and in its lists."""
    rows = [item if isinstance(item, list) else [item] for item in content.values()]
    return [content, *(row for part in rows for row in part if isinstance(row, Mapping))]


def _visible(text: str) -> str:
    """Return text with an escape sequence in place of what a terminal would obey."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def output_width(*, err: bool = False) -> int:
    """Return the width in characters of the terminal, or of COLUMNS (very wide if the output is piped without it)."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return _PIPED


def make_console() -> Console:
    """Return a console of `output_width`."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)  # names are text as they stand
    if not console.is_terminal:
        console.width = output_width()
    return console


def _hanging_indent(line: str, width: int) -> int:
    """Return where the last cell of a line begins: below it, the line is continued."""
    indent = len(line) - len(line.lstrip())
    for match in re.finditer(r"\s{2,}", line):
        indent = match.end()
    # what begins in the right half is not continued below its own beginning
    return indent if indent <= 0.5 * width else 4


def print_lines(text: str, *, err: bool = False, color: str | None = None) -> None:
    """Print text in words of the command line, with lines wrapped to `output_width` below their last cell.

    Args:
        text: One line or several.
        err: Whether to print to standard error.
        color: Color of the text on a terminal; None for that of the terminal.
    """
    _print_wrapped(in_a_shell(text), err=err, color=color)


def _print_wrapped(text: str, *, err: bool = False, color: str | None = None) -> None:
    width = output_width(err=err)
    for line in _visible(text).split("\n"):
        if len(line) <= width:
            typer.secho(line, fg=color, err=err)
            continue
        # the beginning as it stands, so that columns stay aligned
        start = len(line) - len(line.lstrip())
        indent = " " * _hanging_indent(line, width)
        wrapped = textwrap.wrap(
            line[start:],
            width,
            initial_indent=line[:start],
            subsequent_indent=indent,
            replace_whitespace=False,
            drop_whitespace=True,
            break_on_hyphens=False,
        )
        typer.secho("\n".join(wrapped), fg=color, err=err)


def print_markdown(text: str) -> None:
    """Print Markdown, rendered on a terminal and as it stands elsewhere."""
    console = make_console()
    if not console.is_terminal:
        _print_wrapped(text)
        return
    from rich.markdown import Markdown

    console.print(Markdown(_visible(text)))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(value)
    if not isinstance(value, float):
        return _visible(str(value))
    if value != value:
        return "-"
    if value.is_integer() and abs(value) < 1e6:
        return f"{value:.0f}"
    if 1e-2 <= abs(value) < 1e3:
        return f"{value:.3f}"
    return f"{value:.4g}"


def print_table(content: pandas.DataFrame, title: str) -> None:
    """Print a data frame as a table with short, right-aligned numbers and unfolded text."""
    # a column is numeric if most of its cells are: a transposed table has text among its numbers
    table: Any = content.rename(columns=str)
    right = [
        name
        for name in table
        if 2 * sum(isinstance(cell, Number) for cell in table[name].tolist()) > len(table)
    ]
    print_rows(table.to_dict("records"), title, right=right, unfolded=list(table))


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    title: str | None = None,
    *,
    right: Iterable[str] = (),
    unfolded: Iterable[str] = (),
) -> None:
    """Print rows as a table within `output_width`; where that is too narrow, one line per cell.

    Columns in `right` are aligned right, columns in `unfolded` never break their text into lines.
    """
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table

    title = title and _visible(title)
    table = Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False
    )
    for name in rows[0] if rows else ():
        table.add_column(
            _visible(name),
            justify="right" if name in right else "left",
            no_wrap=name in unfolded,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console = make_console()
    if (
        Measurement.get(console, console.options.update(width=_PIPED), table).minimum
        <= console.width
    ):
        console.print(table)
        return
    print_lines(title or "")
    for row in rows:
        print_lines("\n".join(f"{name}: {_cell(value)}" for name, value in row.items()) + "\n")
