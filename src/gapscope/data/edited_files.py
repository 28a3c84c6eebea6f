"""Changes of one column in the file of a table, which leave all else as it is: text byte for byte."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gapscope.base.errors import InvalidInput
from gapscope.data.file_text import FileText, read_stored_text
from gapscope.data.json_tables import JsonText, is_json, replace_spans
from gapscope.data.tables import CsvFields, find_fields, is_parquet

if TYPE_CHECKING:
    import pyarrow


@runtime_checkable
class EditedFile(Protocol):
    """File of a table of which one column is changed."""

    @property
    def cells(self) -> Sequence[Any]:
        """What the file holds in that column, by row."""
        ...

    def text_of(self, row: int) -> str | None:
        """Return the text in a cell; None for a number that is not text.

        Args:
            row: Number of the row.
        """
        ...

    def cell(self, value: float | str, row: int) -> Any:
        """Return what the file holds for a new value.

        Args:
            value: Number, or text.
            row: Its row, whose quotes the new cell gets.

        Raises:
            InvalidInput: The column cannot hold it.
        """
        ...

    def edited(self, cells: Mapping[int, Any], dropped: Collection[int]) -> bytes:
        """Return the content of the file with other cells, and without the dropped rows.

        Args:
            cells: New cells, by row.
            dropped: Rows.
        """
        ...


def written_number(value: float) -> str:
    """Return the shortest text of a number, without a point where it is whole.

    >>> written_number(9304.0), written_number(1e-11), written_number(0.5)
    ('9304', '1e-11', '0.5')
    """
    return repr(value).removesuffix(".0")


class _CsvFile:
    """Text whose records are those of the CSV format: quoted fields may hold separators and ends of lines."""

    def __init__(self, stored: FileText, fields: CsvFields, column: str) -> None:
        self.stored = stored
        self.separator = fields.separator
        text = stored.text
        ends = (match.end() for match in re.finditer(r"\r\n|\r|\n", text))
        start = 0
        for _ in range(fields.n_skipped):
            start = next(ends)
        mark = re.escape(self.separator)
        # a quoted field is one in which quotes are doubled; what follows its last quote belongs to it
        field = rf'(?:"[^"]*(?:""[^"]*)*")?[^{mark}\r\n]*'
        end_of_line = r"(?:\r\n|\r|\n|\Z)"
        rest = rf"(?:{mark}{field})*{end_of_line}"
        record = re.compile(rf"(?:{field}{mark}){{{fields.numbers[column]}}}({field}){rest}")
        blank = re.compile(rf"[^\S\r\n]*{end_of_line}")
        header = re.compile(f"{field}{rest}") if fields.has_header else None
        self.records: list[tuple[int, int]] = []
        self.places: list[tuple[int, int]] = []
        while start < len(text):
            found = blank.match(text, start)
            if found is None and header is not None:
                found = header.match(text, start)
                header = None
            elif found is None:
                found = record.match(text, start)
                assert found is not None, "every row has the field"
                self.records.append(found.span())
                self.places.append(found.span(1))
            assert found is not None, "any line is a record"
            start = found.end()
        self.cells = [text[first:end] for first, end in self.places]

    def text_of(self, row: int) -> str:
        cell = self.cells[row]
        if cell.startswith('"'):
            return cell.strip()[1:-1].replace('""', '"')
        return cell

    def cell(self, value: float | str, row: int) -> str:
        word = value if isinstance(value, str) else written_number(value)
        old = self.cells[row]
        if old.startswith('"') or self.separator in word:
            return '"' + word.replace('"', '""') + '"'
        return old.replace(old.strip(), word, 1)

    def edited(self, cells: Mapping[int, str], dropped: Collection[int]) -> bytes:
        changes = {self.records[row]: "" for row in dropped}
        changes |= {self.places[row]: cell for row, cell in cells.items()}
        return _encode(replace_spans(self.stored.text, changes), self.stored)


def _encode(text: str, stored: FileText) -> bytes:
    return stored.mark + text.encode(stored.codec, errors="surrogateescape")


class _JsonFile:
    """Text of JSON."""

    def __init__(self, stored: FileText, column: str) -> None:
        self.stored = stored
        self.json = JsonText(stored.text, column)
        self.cells = self.json.cells

    def text_of(self, row: int) -> str | None:
        value = json.loads(self.cells[row])
        return value if isinstance(value, str) else None

    def cell(self, value: float | str, row: int) -> str:
        if isinstance(value, str):
            return json.dumps(value, ensure_ascii=self.cells[row].isascii())
        if re.search(r"[.eE]", self.cells[row]):
            return repr(value)
        return written_number(value)

    def edited(self, cells: Mapping[int, str], dropped: Collection[int]) -> bytes:
        return _encode(self.json.edited(cells, dropped), self.stored)


class _ParquetFile:
    """Columns of Arrow, with their types and metadata."""

    def __init__(self, path: Path, column: str) -> None:
        from pyarrow import parquet

        self.table = parquet.ParquetFile(path).read()
        self.number = self.table.column_names.index(column)
        self.cells = self.table.column(self.number).to_pylist()

    def text_of(self, row: int) -> str | None:
        cell = self.cells[row]
        return cell if isinstance(cell, str) else None

    def cell(self, value: float | str, row: int) -> Any:
        old = self.cells[row]
        if isinstance(value, str) or isinstance(old, float):
            return value
        if isinstance(old, Decimal):
            return Decimal(repr(value))
        if value % 1:
            raise InvalidInput(
                f"Column {self.table.column_names[self.number]!r} holds integers; got {value}. Write integers into the "
                "list, or make it a column of floating-point numbers."
            )
        return int(value)

    def edited(self, cells: Mapping[int, Any], dropped: Collection[int]) -> bytes:
        import pyarrow
        from pyarrow import parquet

        kind = self.table.field(self.number).type
        column = self.table.column(self.number)
        rows = sorted(cells)
        if pyarrow.types.is_dictionary(kind):
            # declared categories stay, in their order
            column = column.unify_dictionaries().combine_chunks()
            words = list(dict.fromkeys([*column.dictionary.to_pylist(), *cells.values()]))
            codes = pyarrow.array([words.index(cells[row]) for row in rows], kind.index_type)
            dictionary = pyarrow.array(words, kind.value_type)
            added, column = (
                pyarrow.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)
                for indices in (codes, column.indices)
            )
            column = pyarrow.chunked_array([column], type=kind)
        else:
            added = pyarrow.array([cells[row] for row in rows], type=kind)
        order = list(range(len(self.table)))
        for number, row in enumerate(rows):
            order[row] = len(order) + number
        column = pyarrow.chunked_array([*column.chunks, added], type=kind).take(order)
        table = self.table.set_column(self.number, self.table.field(self.number), column)
        kept = sorted(set(range(len(order))) - set(dropped))
        if dropped:
            table = _with_written_index(table)
        buffer = io.BytesIO()
        parquet.write_table(table.take(kept), buffer)
        return buffer.getvalue()


def _with_written_index(table: pyarrow.Table) -> pyarrow.Table:
    """Return a table whose index is a column, where pandas stored it as a range of all rows.

    A range that only numbers the rows from 0 remains.
    """
    import pyarrow

    metadata = table.schema.pandas_metadata or {}
    for place, index in enumerate(metadata.get("index_columns", [])):
        if not isinstance(index, dict) or index.get("kind") != "range":
            continue
        name, start, stop, step = (index[key] for key in ("name", "start", "stop", "step"))
        numbers = range(start, stop, step)
        if len(numbers) != len(table) or (name is None and (start, step) == (0, 1)):
            continue
        if name is None or name in table.column_names:
            field = f"__index_level_{place}__"  # as pandas writes it
        else:
            field = str(name)
        table = table.append_column(field, pyarrow.array(numbers, type=pyarrow.int64()))
        metadata["index_columns"][place] = field
        column = {"name": name, "field_name": field, "metadata": None}
        column |= dict.fromkeys(("pandas_type", "numpy_type"), "int64")
        metadata["columns"].append(column)
        stored = {**(table.schema.metadata or {}), b"pandas": json.dumps(metadata).encode()}
        table = table.replace_schema_metadata(stored)
    return table


def open_for_edit(path: Path, column: str) -> EditedFile:
    """Return the file of a table, to change one of its columns.

    Args:
        path: File that `gapscope.data.tables.read_table` reads.
        column: Name of the column in its table.
    """
    if is_parquet(path):
        return _ParquetFile(path, column)
    stored = read_stored_text(path)
    if is_json(path):
        return _JsonFile(stored, column)
    fields = find_fields(path)
    assert fields is not None, "another format was excluded"
    return _CsvFile(stored, fields, column)
