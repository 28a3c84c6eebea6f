"""What `--json` prints, compared with the tables of docs/json.md."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "null": type(None),
    "any": object,
}  # fmt: skip


def _pattern(path: str) -> re.Pattern[str]:
    """Return a pattern of a path, in which capitals stand for any name, NAME for one that may have dots."""
    text = re.escape(path).replace("NAME", ".+")
    return re.compile(re.sub(r"\b[A-Z]+\b", r"[^.[]+", text))


class Key(NamedTuple):
    """One documented key: its path as a pattern, the types of its value, and whether it is always present."""

    path: str
    types: tuple[str, ...]
    always: bool

    def matches(self, path: str) -> bool:
        return _pattern(self.path).fullmatch(path) is not None

    def is_inside(self, path: str) -> bool:
        """Whether this is a key of the object or list at `path`."""
        ends = [match.start() for match in re.finditer(r"\.|\[\]", self.path)]
        return any(_pattern(self.path[:end]).fullmatch(path) for end in ends)

    def allows(self, value: Any) -> bool:
        if isinstance(value, bool):
            return bool({"boolean", "any"} & set(self.types))
        return any(isinstance(value, TYPES[name]) for name in self.types)


@cache
def documented() -> dict[str, list[Key]]:
    """The keys of every command."""
    result: dict[str, list[Key]] = {}
    for section in re.split(r"^## gapscope ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        command, _, body = section.partition("\n")
        result[command] = [Key("notes[]", ("text",), always=True)]  # of every command
        result[command] += [
            Key("".join(path), tuple(re.split(r", | or ", value)), not meaning.startswith("only"))
            for keys, value, meaning in re.findall(r"^\| `([^`]+)` \| ([^|]+) \| ?([^|]*) \|$", body, re.MULTILINE)
            for path in itertools.product(*(
                part[1:-1].split(",") if part.startswith("{") else [part] for part in re.split(r"(\{[^}]*\})", keys)
            ))
        ]  # fmt: skip
    return result


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value with its path; of an object or a list its items as well."""
    if isinstance(value, dict):
        inside = [
            leaf
            for key, item in value.items()
            for leaf in _leaves(item, f"{path}.{key}" if path else key)
        ]
        return [(path, value), *inside] if path else inside
    if isinstance(value, list):
        return [(path, value), *(leaf for item in value for leaf in _leaves(item, f"{path}[]"))]
    return [(path, value)]


def _is_absent(value: Any, steps: list[str]) -> bool:
    """Whether an object on the way has not the next key (null and empty lists have nothing to lack)."""
    if not steps or not isinstance(value, dict | list):
        return False
    if isinstance(value, list):
        return any(_is_absent(item, steps) for item in value)
    name = steps[0].rstrip("[]")
    return name not in value or _is_absent(value[name], steps[1:])


def check_json(command: str, text: str) -> None:
    """Assert that a command printed what its table says: no other key, no other type, no key missing."""
    content = json.loads(text)
    assert isinstance(content, dict), f"{command} printed a {type(content).__name__}, not an object"
    if content.keys() == {"error", "notes"}:  # of every command
        return
    keys = documented()[command]
    for path, value in _leaves(content):
        if isinstance(value, list | dict) and any(key.is_inside(path) for key in keys):
            continue
        matches = [key for key in keys if key.matches(path)]
        if value is None and not matches:  # in place of a list
            matches = [key for key in keys if key.matches(f"{path}[]")]
        is_under_any = any(
            "any" in key.types and re.match(re.escape(key.path), path) for key in keys
        )
        assert matches or is_under_any, f"{command}: {path} = {value!r} is not in {PAGE.name}"
        exact = [
            key for key in matches if key.path == path
        ] or matches  # a name before a placeholder
        assert not exact or any(key.allows(value) for key in exact), (
            f"{command}: {path} = {value!r} has another type"
        )
    for key in keys:
        if key.always and not re.search(r"\b[A-Z]+\b", key.path):
            assert not _is_absent(content, key.path.split(".")), (
                f"{command} did not print {key.path}"
            )
