"""Damages of a stored file: cut off, corrupted, another thing in its place, JSON of another form."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

Damage = Callable[[Path], None]


def _rewritten(change: Callable[[bytes], bytes]) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def _bit_flipped(at: float) -> Damage:
    def change(content: bytes) -> bytes:
        place = int(at * (len(content) - 1))
        return content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]

    return _rewritten(change)


def _replaced(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


# Each is done to a whole file, whatever it holds.
BYTES: dict[str, Damage] = {
    "empty": _rewritten(lambda content: b""),
    "a tenth": _rewritten(lambda content: content[: len(content) // 10]),
    "half": _rewritten(lambda content: content[: len(content) // 2]),
    "all but the last byte": _rewritten(lambda content: content[:-1]),
    "all but the first byte": _rewritten(lambda content: content[1:]),
    "zeros as a power cut leaves them": _rewritten(lambda content: bytes(len(content))),
    "zeros in its second half": _rewritten(
        lambda content: content[: len(content) // 2] + bytes(len(content) // 2)
    ),
    "a bit of its beginning flipped": _bit_flipped(0),
    "a bit of its first tenth flipped": _bit_flipped(0.1),
    "a bit of its middle flipped": _bit_flipped(0.5),
    "a bit of its end flipped": _bit_flipped(1),
    "twice": _rewritten(lambda content: 2 * content),
    "with garbage behind it": _rewritten(lambda content: content + b"\xff\xfe\x00garbage"),
    "in two bytes a letter": _rewritten(lambda content: content.decode("latin-1").encode("utf-16")),
    "with a byte order mark": _rewritten(lambda content: b"\xef\xbb\xbf" + content),
    "a pickle": _rewritten(
        lambda content: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07boom.py\x94."
    ),
    "brackets without end": _rewritten(lambda content: b"[" * 100_000),
    "a number of 5,000 digits": _rewritten(lambda content: b"9" * 5000),
    "a size of 2^63": _rewritten(lambda content: b"\xff" * 7 + b"\x7f" + content[8:]),
    "absent": _replaced(lambda path: None),
    "a folder": _replaced(lambda path: path.mkdir()),
    "a link to nowhere": _replaced(lambda path: path.symlink_to("nowhere")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a link to zeros without end": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a pipe": _replaced(os.mkfifo),
}
if os.geteuid() != 0:  # root reads everything
    BYTES["not to be read"] = lambda path: path.chmod(0)

# In place of any value of a JSON file; the huge ones cannot all be floating-point numbers.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "a text": "x",
    "an empty text": "",
    "a list": [1, [None]],
    "a table": {"a": {"b": None}},
    "minus one": -1,
    "10^400": 10**400,
    "infinity": float("inf"),
    "NaN": float("nan"),
    "NaN as text": "NaN",
    "a script": "</script><script>alert(1)</script>",
}


def _places(content: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    """Paths of keys and indices to the values of a JSON document, at most `depth` long; of a list the first entry."""
    keys = (
        list(content)
        if isinstance(content, dict)
        else [0]
        if isinstance(content, list) and content
        else []
    )
    for key in keys:
        yield (key,)
        if depth > 1:
            yield from ((key, *rest) for rest in _places(content[key], depth - 1))


def json_damages(path: Path, *, depth: int, lines: bool = False) -> dict[str, Damage]:
    """Every value down to a depth taken out, or replaced by each of `VALUES`; of JSON lines those of the last."""

    def read(path: Path) -> list[Any]:
        text = path.read_text()
        return [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]

    def at(place: tuple[Any, ...], act: Callable[[Any, Any], None]) -> Damage:
        def damage(path: Path) -> None:
            documents = read(path)
            table = documents[-1]
            for key in place[:-1]:
                table = table[key]
            act(table, place[-1])
            path.write_text("\n".join(json.dumps(document) for document in documents) + "\n")

        return damage

    result: dict[str, Damage] = {}
    for place in _places(read(path)[-1], depth):
        name = ".".join(map(str, place))
        result[f"without {name}"] = at(place, lambda table, key: table.__delitem__(key))
        for what, value in VALUES.items():
            result[f"{name}: {what}"] = at(
                place, lambda table, key, value=value: table.__setitem__(key, value)
            )
    return result


def tensor_damages(path: Path) -> dict[str, Damage]:
    """Whole safetensors files with other tensors or facts, and no checksum that would tell."""
    names = sorted(load(path.read_bytes()))
    acts: dict[str, Callable[[Tensor], Tensor | None]] = {
        "taken out": lambda tensor: None,
        "of eight bits": lambda tensor: (100 * tensor.double()).char(),
        "in double precision": lambda tensor: tensor.double(),
        "with a row more": lambda tensor: tensor.new_zeros(tensor.numel() + 1),
        "empty": lambda tensor: tensor.new_zeros(0),
    }
    facts = {
        "no JSON": "{",
        "null": "null",
        "a list": "[1]",
        "no epoch": "{}",
        "epoch a text": '{"epoch": "3", "scaler": {}}',
        "epoch negative": '{"epoch": -3, "scaler": {}}',
        "epoch huge": '{"epoch": 1' + "0" * 400 + "}",
        "spec a number": '{"spec": 3, "corruption": 1}',
        "spec of unknown settings": '{"spec": {"dat": 1}, "corruption": {}}',
    }
    result: dict[str, Damage] = {}
    for name in dict.fromkeys([names[0], names[len(names) // 2], names[-1]]):
        for what, act in acts.items():
            result[f"{name} {what}"] = lambda path, name=name, act=act: _change_tensor(
                path, name, act
            )
    for what, text in facts.items():
        result[f"facts: {what}"] = _rewritten(
            lambda content, text=text: save(load(content), metadata={"facts": text})
        )
    return result


def _change_tensor(path: Path, name: str, act: Callable[[Tensor], Tensor | None]) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    facts = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"])
    facts.pop("crc32")
    tensors = load(content)
    changed = act(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed
    path.write_bytes(save(tensors, metadata={"facts": json.dumps(facts)}))
