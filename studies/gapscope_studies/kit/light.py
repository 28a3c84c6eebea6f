"""Light forms of what results/ stores: JSON of five digits, records on one line. SVG of tenths of a point."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import numpy as np

DIGITS, DEEPEST = 5, 2
TOLERANCE = 0.4  # points; less than a line is wide
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_POINT = re.compile(r"[ML] (-?[\d.e-]+) (-?[\d.e-]+)")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def light_json(text: str) -> str:
    """The same JSON with numbers of five significant digits. What lies deeper than two levels is on one line.

    >>> print(light_json('{"a": {"b": [0.123456789, 1]}, "c": 2}'))
    {
     "a": {
      "b": [0.12346,1]
     },
     "c": 2
    }
    <BLANKLINE>
    """

    def lines(value: Any, depth: int) -> str:
        if not value or depth >= DEEPEST or not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        pad = " " * (depth + 1)
        if isinstance(value, dict):
            items = [f"{json.dumps(str(key))}: {lines(item, depth + 1)}" for key, item in value.items()]
        else:
            items = [lines(item, depth + 1) for item in value]
        first, last = "{}" if isinstance(value, dict) else "[]"
        return first + "\n" + ",\n".join(pad + item for item in items) + "\n" + " " * depth + last

    return lines(_rounded(json.loads(text)), 0) + "\n"


def simplified(points: np.ndarray, tolerance: float = TOLERANCE) -> np.ndarray:
    """The corners [n, 2] of a line from which none that is left out is farther than the tolerance (Douglas-Peucker).

    >>> simplified(np.array([[0.0, 0.0], [1.0, 0.01], [2.0, 0.0], [3.0, 5.0]])).tolist()
    [[0.0, 0.0], [2.0, 0.0], [3.0, 5.0]]
    """
    corners, parts = np.zeros(len(points), dtype=bool), [(0, len(points) - 1)]
    corners[[0, -1]] = True
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        start, chord = points[first], points[last] - points[first]
        away, length = points[first + 1 : last] - start, float(np.hypot(*chord))
        distance = np.abs(away[:, 0] * chord[1] - away[:, 1] * chord[0]) / length if length else np.hypot(*away.T)
        farthest = int(distance.argmax())
        if distance[farthest] > tolerance:
            middle = first + 1 + farthest
            corners[middle] = True
            parts += [(first, middle), (middle, last)]
    return points[corners]


def _piece(text: str) -> str:
    points = simplified(np.array(_POINT.findall(text), dtype=float))
    return " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))


def _path(match: re.Match[str]) -> str:
    text = match[1]
    if re.search("[A-KN-Ya-y]", text.replace("z", "").replace("e-", "")):  # curves stay
        return f'd="{_tenths(text)}"'
    pieces = [piece for piece in re.split(r"(?=M )", text) if piece.strip()]
    closed = [" z" if "z" in piece else "" for piece in pieces]
    return 'd="' + " ".join(_piece(piece) + end for piece, end in zip(pieces, closed, strict=True)) + '"'


def _tenths(text: str) -> str:
    return " ".join(_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", text).split())


def _classes(text: str) -> str:
    """The same with styles that return as classes of one style sheet."""
    frequent = [style for style, n in Counter(re.findall(r'style="([^"]+)"', text)).most_common() if n > 2]
    names = {style: f"s{number}" for number, style in enumerate(frequent)}
    sheet = "".join(f".{name}{{{style}}}" for style, name in names.items())
    text = re.sub(r'style="([^"]+)"', lambda m: f'class="{names[m[1]]}"' if m[1] in names else m[0], text)
    return text.replace("<defs>", f"<defs><style>{sheet}</style>", 1)


def _short_names(text: str) -> str:
    """The same with short names of what is referred to, and none of what is not."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', text))
    names = {name: f"i{number}" for number, name in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", text)
    return re.sub(r'(href="|url\()#([\w.-]+)', lambda m: f"{m[1]}#{names[m[2]]}", text)


def _without_empty_groups(text: str) -> str:
    """The same without groups that have no attribute: they change nothing."""
    opened: list[bool] = []

    def kept(tag: re.Match[str]) -> str:
        if tag[0] != "</g>":
            opened.append(tag[0] != "<g>")
            return tag[0] if opened[-1] else ""
        return tag[0] if opened.pop() else ""

    return re.sub(r"<g(?: [^>]*)?>|</g>", kept, text)


def light_svg(text: str) -> str:
    """The same figure: lines without points that cannot be seen, numbers to tenths, styles written once."""
    if "<style>.s0{" in text:  # light already
        return text
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bd="([^"]*)"', _path, text)
    text = re.sub(r'\b(x|y|x1|y1|x2|y2)="(-?\d+\.\d+)"', lambda m: f'{m[1]}="{float(m[2]):.1f}"', text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(translate\()([^)]*)\)", lambda m: f"{m[1]}{_tenths(m[2])})", text)
    text = re.sub(r"font(-family)?: ([\d.]+px )?'[^;\"]*sans-serif[^;\"]*", r"font\1: \2sans-serif", text)
    text = _without_empty_groups(_short_names(text))
    return _classes(re.sub(r"\s*\n\s*", "\n", text))
