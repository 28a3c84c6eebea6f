"""Tables of users as files: CSV of any encoding and separator, JSON, and Parquet.

Whatever is guessed is said in a note: encoding, separator, decimal commas, a missing header line, words that stand for
missing numbers. Lines with more or fewer fields than the others are refused, because they shift columns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.columns import unique_names
from gapscope.base.errors import MissingExtra, UnreadableFile, join_names
from gapscope.data.cell_text import DECIMAL_COMMA, THOUSANDS, clean_columns
from gapscope.data.file_text import READABLE, read_text
from gapscope.data.json_tables import is_json, read_json_table
from gapscope.data.plain_columns import are_numbers
from gapscope.results.formatting import pluralize

if TYPE_CHECKING:
    import pandas

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""A number with a decimal comma, in files whose columns are not separated by commas."""
# the first line by which some spreadsheet programs learn the separator
_SEPARATOR_LINE = re.compile(r"\s*\"?sep=([,;\t|])\"?[ ,;\t|]*(\n|$)", re.IGNORECASE)
REPEATED = "gapscope_repeated"
"""Name of an attribute of a table: columns that share their name in the file, with that name."""


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line and the fields of every row that is not blank."""
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    for row in reader:
        if row:
            yield reader.line_num, row


def _first_rows(text: str, separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    for _, row in _rows(text, separator):
        rows.append(row)
        # 100 lines decide separator and header
        if len(rows) == 100:
            break
    return rows


def _find_separator(text: str) -> str:
    """Return the separator that cuts most lines into as many fields as the first one."""

    def quality(separator: str) -> tuple[float, int]:
        widths = [len(row) for row in _first_rows(text, separator)]
        if not widths or widths[0] == 1:
            return 0.0, 0
        return sum(width == widths[0] for width in widths) / len(widths), widths[0]

    return max(SEPARATORS, key=quality)


def _extra_fields(text: str, separator: str, path: Path) -> int:
    """Return by how many fields every row exceeds the first one (0 or 1).

    Raises:
        UnreadableFile: The rows differ in their number of fields.
    """
    if '"' in text:
        widths = [(line, len(row)) for line, row in _rows(text, separator)]
    else:
        lines = enumerate(text.split("\n"), start=1)
        widths = [(number, line.count(separator) + 1) for number, line in lines if line.strip()]
    heads, first = widths[0][1], widths[min(1, len(widths) - 1)][1]
    if first == heads + 1:
        expected = first
    else:
        expected = heads
    for line, width in widths[1:]:
        if width != expected:
            _check_no_title(widths, path)
            raise UnreadableFile(
                f"{path}, line {line} has {width} fields where {expected} are needed, separated by "
                f"{SEPARATORS[separator]}. Correct the line; put text that contains the separator into quotes."
            )
    return expected - heads


def _check_no_title(widths: Sequence[tuple[int, int]], path: Path) -> None:
    """Raise UnreadableFile if the first lines have fewer fields than all lines below them, as titles have.

    Args:
        widths: Number of the line and its fields, of every line.
        path: File, for messages.

    Raises:
        UnreadableFile: They have.
    """
    width = widths[-1][1]
    n = next((k for k, (_, fields) in enumerate(widths) if fields == width), 0)
    if n and n < len(widths) - 1 and all(fields == width for _, fields in widths[n:]):
        titles = join_names(line for line, _ in widths[:n])
        raise UnreadableFile(
            f"{path} must begin with the names of its columns; line {titles} has {widths[0][1]} of the {width} fields "
            f"of those from line {widths[n][0]} on, as titles have. Remove it, or begin it with #."
        )


def _check_quotes(text: str, separator: str, path: Path) -> None:
    """Raise UnreadableFile if the names in the first line are quoted by ' or `, which no CSV file uses."""
    header = [cell.strip() for cell in _first_rows(text, separator)[0]]
    for mark in ("'", "`"):
        if all(len(cell) > 1 and cell[0] == cell[-1] == mark for cell in header):
            raise UnreadableFile(
                f'{path} must quote text by "; the first line does by {mark}, such as {header[0]}. Save it with double '
                f'quotes, or without: pandas.read_csv(path, quotechar="{mark}").to_csv(...).'
            )


def _parse(text: str, separator: str, path: Path, **options: Any) -> pandas.DataFrame:
    import pandas

    try:
        return pandas.read_csv(
            io.StringIO(text.lstrip("\n")),
            sep=separator,
            keep_default_na=False,
            index_col=False,
            **options,
        )
    except ValueError as error:
        raise UnreadableFile(
            f"{path} must be a CSV file; reading it failed: {str(error).strip()}."
        ) from None


def _without_comments(text: str) -> tuple[str, int]:
    """Return a text whose first lines are blank where they are comments, and their number.

    A comment of as many fields as the lines below is the header, unless they have one.
    """
    lines = text.split("\n")
    n = next((k for k, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    body = "\n".join(lines[n:])
    if not n or not lines[n - 1].startswith("#"):
        return text, 0
    separator = _find_separator(body)
    rows = _first_rows(body, separator)
    last = next(csv.reader([lines[n - 1]], delimiter=separator))
    if len(last) == len(rows[0]) > 1 and _lacks_header(rows):
        n -= 1
        body = "\n".join(lines[n:])
    return "\n" * n + body, sum(bool(line.strip()) for line in lines[:n])


def _check_one_header(text: str, separator: str, path: Path) -> None:
    """Raise UnreadableFile if a line repeats the header, as in files that were joined."""
    lines = [line.replace('"', "").replace(" ", "") for line in text.split("\n")]
    header = next(line for line in lines if line)
    repeated = [number for number, line in enumerate(lines, start=1) if line == header][1:]
    if not repeated or separator not in header or _lacks_header(_first_rows(text, separator)):
        return
    subject, rest = f"line {repeated[0]} repeats", "it"
    if len(repeated) > 1:
        subject, rest = f"lines {join_names(repeated)} repeat", "them"
    raise UnreadableFile(f"{path}: {subject} the header. Remove {rest}.")


def _load_text(path: Path, needed: str = READABLE) -> tuple[str, str, int, list[str]]:
    """Return text, separator, number of extra fields per row and notes of a CSV file."""
    text, encoding = read_text(path, needed)
    named = _SEPARATOR_LINE.match(text)
    if named is not None:  # its line stays, blank, so that numbers of lines are those of the file
        text = "\n" * named.group(0).count("\n") + text[named.end() :]
    text, comments = _without_comments(text)
    if not text.strip():
        raise UnreadableFile(f"{path} must hold a table; it is empty. Pass another file.")
    try:
        if named is not None:
            separator = named.group(1)
        else:
            separator = _find_separator(text)
        _check_quotes(text, separator, path)
        _check_one_header(text, separator, path)
        extra = _extra_fields(text, separator, path)
    except csv.Error as error:
        raise UnreadableFile(
            f"{path} must be a CSV file; {error}. Is a quote not closed?"
        ) from None
    notes: list[str] = []
    if comments:
        notes.append(
            f"{path}: skipped the first {pluralize(comments, 'line')}, since # marks comments."
        )
    if encoding:
        notes.append(f"{path} is read as {encoding}, not UTF-8.")
    if separator != ",":
        notes.append(f"{path}: columns are separated by {SEPARATORS[separator]}.")
    return text, separator, extra, notes


@dataclass(frozen=True)
class Cells:
    """Cells of a file as text.

    Attributes:
        frame: The cells; the index holds the number of the line of each row.
        has_decimal_commas: Whether numbers may have decimal commas, because columns are not separated by commas.
        notes: Sentences about encoding and separator.
    """

    frame: pandas.DataFrame
    has_decimal_commas: bool
    notes: tuple[str, ...]

    def with_point(self, cell: str) -> str:
        """Return a number with a decimal point where it has a decimal comma, any other text as it is.

        Args:
            cell: Text of a cell.
        """
        if self.has_decimal_commas and re.fullmatch(DECIMAL_COMMA, cell.strip()):
            return cell.strip().replace(",", ".")
        return cell


def read_cells(path: str | Path) -> Cells:
    """Return the cells of a CSV file with a header line, or of a Parquet file, as text.

    Args:
        path: Parquet file; or text in UTF-8, UTF-16 or Latin-1, with commas, semicolons, tabs or vertical bars.

    Raises:
        UnreadableFile: The file is missing, empty or no text, or its lines differ in their number of fields.
    """
    import pandas

    path = Path(path)
    if is_parquet(path):
        table = read_table(path)[0]
        cells = {
            str(name): ["" if pandas.isna(cell) else str(cell) for cell in table[name]]
            for name in table.columns
        }
        rows_of_file = range(1, len(table) + 1)
        return Cells(pandas.DataFrame(cells, index=rows_of_file, dtype=str), False, ())
    text, separator, extra, notes = _load_text(path, "a CSV file")
    (_, header), *rows = _rows(text, separator)
    for line, row in rows if extra else []:  # of an empty last field a separator is too many
        if row[-1].strip():
            raise UnreadableFile(
                f"{path}, line {line} has {len(row)} fields where {len(header)} are needed, as the first line names. "
                "Name each column there."
            )
    names = unique_names(header)
    frame = pandas.DataFrame(
        [row[: len(names)] for _, row in rows],
        columns=names,
        index=[line for line, _ in rows],
        dtype=str,
    )
    return Cells(frame, separator != ",", tuple(notes))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lacks_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row looks like data: numbers, and values that its columns hold below."""
    first, below = rows[0], rows[1:]
    values = [{row[k] for row in below if k < len(row)} for k in range(len(first))]
    is_number = [_is_number(cell) for cell in first]
    # years may be names of columns; decimal numbers are not
    is_datum = [
        cell in seen or (number and not cell.strip().isdigit())
        for cell, seen, number in zip(first, values, is_number, strict=True)
    ]
    return bool(below) and 2 * sum(is_number) >= len(first) and 2 * sum(is_datum) >= len(first)


def _named_once(frame: pandas.DataFrame, path: Path, notes: list[str]) -> pandas.DataFrame:
    """Return a table whose columns have names that are text and differ, with a note about those that were equal."""
    names = [str(name) for name in frame.columns]
    unique = unique_names(names)
    repeated = dict.fromkeys(name for name in names if names.count(name) > 1)
    for name in repeated:
        own = [new for old, new in zip(names, unique, strict=True) if old == name]
        notes.append(
            f"{path}: {len(own)} columns are named {name!r}; they are read as {', '.join(own)}."
        )
    frame = frame.set_axis(unique, axis=1)
    pairs = zip(names, unique, strict=True)
    frame.attrs[REPEATED] = {new: old for old, new in pairs if old in repeated}
    return frame


def is_parquet(path: Path) -> bool:
    """Return whether a file is Parquet, by its first bytes.

    Args:
        path: File.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _read_parquet(path: Path) -> pandas.DataFrame:
    import pandas

    try:
        return pandas.read_parquet(path).reset_index(drop=True)
    except ImportError:
        raise MissingExtra(
            f"{path} is a Parquet file, which needs pyarrow. Run: pip install pyarrow"
        ) from None
    except (ValueError, OSError) as error:
        raise UnreadableFile(
            f"{path} must be a whole Parquet file; reading it failed: {error}."
        ) from None


@dataclass(frozen=True)
class CsvFields:
    """Where a CSV file has its columns.

    Attributes:
        separator: What separates its fields.
        n_skipped: Number of its first lines that are comments, blank, or name the separator.
        has_header: Whether the next line has the names of columns.
        numbers: By the name of a column in the table, the number of its field, from 0.
    """

    separator: str
    n_skipped: int
    has_header: bool
    numbers: dict[str, int]


def find_fields(path: str | Path) -> CsvFields | None:
    """Return where a CSV file has the columns of its table (see `read_table`); None for another format.

    Args:
        path: File that `read_table` reads.
    """
    path = Path(path)
    if is_parquet(path) or is_json(path):
        return None
    return _read_csv(path, ())[2]


def text_columns(table: pandas.DataFrame) -> tuple[str, ...]:
    """Return the names of the columns that hold text, which a second file must hold as well (see `read_table`).

    Args:
        table: The table.
    """
    return tuple(str(name) for name in table if not are_numbers(table[name]))


def read_table(
    path: str | Path, *, as_text: Collection[str] = ()
) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """Return a table with a row per line, and notes about everything that was guessed.

    Columns of numbers are numeric; empty cells are missing. "NA" and similar words are missing numbers in columns of
    numbers, and values in columns of text. Names of columns are text; without a header line they are "1", "2", ...

    Args:
        path: CSV file (UTF-8, UTF-16 or Latin-1; commas, semicolons, tabs or vertical bars; also gzipped), JSON
            (.jsonl, .ndjson, .json: one object per line, a list of objects, or columns) or Parquet.
        as_text: Columns of a CSV file whose numbers stay text, because they are text in the first file.

    Raises:
        UnreadableFile: The file is missing, empty or no table, or its lines differ in their number of fields.
        MissingExtra: It is a Parquet file, and pyarrow is not installed.
    """
    path = Path(path)
    if is_parquet(path):
        found: list[str] = []
        return _named_once(_read_parquet(path), path, found), tuple(found)
    if is_json(path):
        return read_json_table(path), ()
    return _read_csv(path, as_text)[:2]


def _read_csv(
    path: Path, as_text: Collection[str]
) -> tuple[pandas.DataFrame, tuple[str, ...], CsvFields]:
    """Return the table of a CSV file, notes, and where the file has its columns."""
    text, separator, extra, notes = _load_text(path)
    first = _first_rows(text, separator)
    names: list[str] | None = None
    if not extra and _lacks_header(first):
        names = [str(number) for number in range(1, len(first[0]) + 1)]
        notes.append(f"{path} has no header line: its columns are named 1 to {len(names)}.")
    elif extra:
        # R writes names of rows without a name of their column; other programs end every line with a separator
        ends_empty = all(not row[-1] for row in first[1:])
        if ends_empty:
            names = [*first[0], ""]
        else:
            names = ["row", *first[0]]
    options: dict[str, Any] = {}
    # text in a second file too, where all of its cells may look like numbers
    columns = names or unique_names([name or f"Unnamed: {k}" for k, name in enumerate(first[0])])
    dtype = {k if names else name: str for k, name in enumerate(columns) if name.strip() in as_text}
    if names is not None:
        options = {"header": None, "names": range(len(names)), "skiprows": 1 if extra else 0}
    options |= {"na_values": [""], "low_memory": False}
    if re.search(r"(?<![\d.:/-])0\d", text):  # perhaps ZIP codes, which lose their zeros as numbers
        cells = _parse(text, separator, path, dtype=str, **options)
        dtype |= {name: str for name in cells if cells[name].str.fullmatch(r"\s*0\d+\s*").any()}
    frame = _parse(text, separator, path, dtype=dtype, **options)
    if names is None:  # pandas numbers equal names, and names columns without a name
        pairs = zip(first[0], frame.columns, strict=True)
        names = [(name.strip() and name) or str(other) for name, other in pairs]
    frame.columns = [name.strip() for name in names]
    # pandas names columns without a name like this
    unnamed = [re.fullmatch(r"(Unnamed: \d+)?", name) is not None for name in frame.columns]
    used = [k for k, blank in enumerate(unnamed) if not (blank and frame.iloc[:, k].isna().all())]
    frame = _named_once(frame.iloc[:, used], path, notes)
    n_skipped = len(text) - len(text.lstrip("\n"))
    numbers = dict(zip(frame.columns, used, strict=True))
    fields = CsvFields(separator, n_skipped, bool(extra) or not options.get("names"), numbers)
    cells = None
    if separator != "," and re.search(rf"(?<![\w.]){THOUSANDS}(?![\w.])", text):
        cells = _parse(text, separator, path, dtype=str, **options).iloc[:, used]
        cells.columns = frame.columns
    frame, more = clean_columns(frame, as_text, separator, cells)
    return frame, (*notes, *more), fields
