"""Tables in JSON files: rows or columns, and changes of single values that leave the other text as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput, UnreadableFile, first_line
from gapscope.data.file_text import read_text

if TYPE_CHECKING:
    import pandas

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def is_json(path: Path) -> bool:
    """Return whether a file is JSON, by the ending of its name.

    Args:
        path: File, perhaps gzipped.
    """
    return path.name.lower().removesuffix(".gz").endswith(JSON_ENDINGS)


def _json_rows(text: str) -> Any:
    """Return the one JSON value that a text holds, or the list of the values of its lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        lines = [line for line in text.split("\n") if line.strip()]
    rows: list[Any] = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {len(rows) + 1}: {error.msg}") from None
    return rows


def _refuse_parts(content: Mapping[str, Any]) -> None:
    """Refuse a table as pandas writes it with orient="split" or "table".

    Raises:
        ValueError: The object is one.
    """
    rows = content.get("data")
    is_split = set(content) == {"columns", "index", "data"}
    has_lists = isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    if set(content) == {"schema", "data"} or (is_split and has_lists):
        raise ValueError(f"it holds the parts {', '.join(content)}")


def read_json_table(path: Path) -> pandas.DataFrame:
    """Return objects as rows; keys of nested objects become columns such as "meta.source".

    Args:
        path: File with one object per line, a list of objects, or columns.

    Raises:
        UnreadableFile: The file is missing or holds something else.
    """
    import pandas

    text, _ = read_text(path)
    try:
        content = _json_rows(text)
        if isinstance(content, dict):
            _refuse_parts(content)
            frame = pandas.DataFrame(content).reset_index(drop=True)
        else:
            frame = pandas.json_normalize(content)
    except (ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise UnreadableFile(
            f"{path} must hold one JSON object per line, or a list of objects; reading it failed: "
            f"{first_line(error).rstrip('.')}. With pandas write it by frame.to_json(path, orient='records')."
        ) from None
    return frame.rename(columns=str)


@dataclass(frozen=True)
class _Member:
    """A member of an object or array: its key, and where it and its value lie in the text."""

    key: str
    start: int
    value: int
    end: int


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None, "the pattern matches nothing as well"
    return found.end()


def _members(text: str, start: int) -> list[_Member]:
    """Return the members of the object or array that begins at a place of a text (none for other values)."""
    members: list[_Member] = []
    is_object = text[start] == "{"
    if text[start] not in "{[":
        return members
    position = _after_space(text, start + 1)
    while text[position] not in "}]":
        first = position
        key = ""
        if is_object:
            key, position = _DECODER.raw_decode(text, position)
            position = _after_space(text, _after_space(text, position) + 1)
        end = _DECODER.raw_decode(text, position)[1]
        members.append(_Member(key, first, position, end))
        position = _after_space(text, end)
        if text[position] == ",":
            position = _after_space(text, position + 1)
    return members


def _value_of(text: str, start: int, name: str) -> tuple[int, int]:
    """Return where the value of a column lies in the row that begins at a place of a text.

    Raises:
        KeyError: The row has none.
    """
    for member in reversed(_members(text, start)):  # of equal keys the last one counts
        if member.key == name:
            return member.value, member.end
        if name.startswith(f"{member.key}."):
            try:
                return _value_of(text, member.value, name.removeprefix(f"{member.key}."))
            except KeyError:
                continue
    raise KeyError(name)


def _cuts(members: Sequence[_Member], dropped: Collection[int]) -> list[tuple[int, int]]:
    """Return what is cut from a text to remove members: each with its comma."""
    last = max(set(range(len(members))) - set(dropped))
    cuts = [(members[row].start, members[row + 1].start) for row in dropped if row < last]
    if last < len(members) - 1:
        cuts.append((members[last].end, members[-1].end))
    return cuts


class JsonText:
    """Text of a JSON file with a table.

    Args:
        text: The text.
        column: Column whose values are changed.

    Raises:
        InvalidInput: Its columns have their rows in different orders.
    """

    def __init__(self, text: str, column: str) -> None:
        self.text = text
        self.rows: list[list[_Member]] = []
        """Members of which each dropped row takes one: the rows, or the cells of every column."""
        self.lines: list[tuple[int, int]] = []
        start = _after_space(text, 0)
        try:
            json.loads(text)
        except json.JSONDecodeError:
            found = re.finditer(r"[^\r\n]+(\r\n|\r|\n|$)", text)
            self.lines = [match.span() for match in found if match[0].strip()]
            starts = [_after_space(text, first) for first, _ in self.lines]
            self.places = [_value_of(text, first, column) for first in starts]
            return
        members = _members(text, start)
        if text[start] == "[":
            self.rows = [members]
            self.places = [_value_of(text, member.value, column) for member in members]
            return
        columns = {member.key: _members(text, member.value) for member in members}
        self.rows = [
            cells for cells in columns.values() if cells
        ]  # one value may hold for all rows
        if len({tuple(cell.key for cell in cells) for cells in self.rows}) > 1:
            raise InvalidInput(
                "The columns of a JSON file must have the same rows in the same order; these differ. Save the table "
                'with an object per row: frame.to_json(path, orient="records", lines=True).'
            )
        self.places = [(member.value, member.end) for member in columns[column]]

    @property
    def cells(self) -> list[str]:
        """The JSON of each row's value of the column."""
        return [self.text[start:end] for start, end in self.places]

    def edited(self, cells: Mapping[int, str], dropped: Collection[int]) -> str:
        """Return the text with other values of the column, and without the dropped rows.

        Args:
            cells: JSON of the new value, by row.
            dropped: Rows.
        """
        cuts = [self.lines[row] for row in dropped if self.lines]
        for members in self.rows:
            cuts += _cuts(members, dropped)
        changes = {cut: "" for cut in cuts}
        changes |= {self.places[row]: cell for row, cell in cells.items()}
        return replace_spans(self.text, changes)


def replace_spans(text: str, changes: Mapping[tuple[int, int], str]) -> str:
    """Return a text with other words at some places.

    Args:
        text: The text.
        changes: What replaces the text between two positions, which overlap with no others.

    >>> replace_spans("a,b,c", {(2, 3): "x", (0, 1): ""})
    ',x,c'
    """
    parts: list[str] = []
    position = 0
    for (start, end), word in sorted(changes.items()):
        parts += [text[position:start], word]
        position = end
    return "".join([*parts, text[position:]])
