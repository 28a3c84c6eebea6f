"""Compact forms of stored results: JSON of five digits, SVG with tenths of a point."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

DIGITS, DEEPEST = 5, 2
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def light_json(text: str) -> str:
    """Format JSON with five significant digits, one line per value below the second level."""

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


def _tenths(text: str) -> str:
    return " ".join(_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", text).split())


def _classes(text: str) -> str:
    """Move styles that occur three times or more to one style sheet."""
    frequent = [style for style, n in Counter(re.findall(r'style="([^"]+)"', text)).most_common() if n > 2]
    names = {style: f"s{number}" for number, style in enumerate(frequent)}
    sheet = "".join(f".{name}{{{style}}}" for style, name in names.items())
    text = re.sub(r'style="([^"]+)"', lambda m: f'class="{names[m[1]]}"' if m[1] in names else m[0], text)
    return text.replace("<defs>", f"<defs><style>{sheet}</style>", 1)


def _short_names(text: str) -> str:
    """Shorten the ids that are referred to, and drop all others."""
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', text))
    names = {name: f"i{number}" for number, name in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda m: f' id="{names[m[1]]}"' if m[1] in names else "", text)
    return re.sub(r'(href="|url\()#([\w.-]+)', lambda m: f"{m[1]}#{names[m[2]]}", text)


def light_svg(text: str) -> str:
    """Round the numbers of a figure to tenths, and write each style once."""
    if "<style>.s0{" in text:  # light already
        return text
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bd="([^"]*)"', lambda m: f'd="{_tenths(m[1])}"'.replace("L ", "L"), text)
    text = re.sub(r'\b(x|y|x1|y1|x2|y2)="(-?\d+\.\d+)"', lambda m: f'{m[1]}="{float(m[2]):.1f}"', text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(translate\()([^)]*)\)", lambda m: f"{m[1]}{_tenths(m[2])})", text)
    text = re.sub(r"font(-family)?: ([\d.]+px )?'[^;\"]*sans-serif[^;\"]*", r"font\1: \2sans-serif", text)
    return _classes(re.sub(r"\s*\n\s*", "\n", _short_names(text)))
