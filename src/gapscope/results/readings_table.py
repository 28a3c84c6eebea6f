"""Table of readings in text and HTML: one row per measure, families collapsed."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gapscope.results.readings import Reading

HEAD = ("measure", "value", "error", "better", "what it is")
BETTER = {"lower": "lower", "higher": "higher", "none": "-"}
# a measure with more numbers than these is folded into one row
FOLDED_FROM = 5
MOST_LINES = 15
# Measures that `gapscope.check` computes too, and the codes of the checks that rest on them.
CHECKS_THAT_USE = {
    "accuracy": ("GS401", "GS402"),
    "gradient_neighbours": ("GS401", "GS402"),
    "kernel_leave_one_out": ("GS103", "GS204", "GS401"),
}


def _error(reading: Reading) -> str:
    if reading.standard_error is None:
        return "exact" if math.isfinite(reading.value) or math.isinf(reading.value) else ""
    return "± ?" if math.isnan(reading.standard_error) else f"± {reading.standard_error:.2g}"


def _words(title: str, units: str, note: str) -> str:
    """Describe a number: title, units and caveats."""
    measured = f"{title} [{units}]" if title and units else title or units
    return "; ".join(part for part in (measured, note) if part)


def _row(reading: Reading) -> tuple[str, ...]:
    value = "no value" if math.isnan(reading.value) else f"{reading.value:.6g}"
    words = _words(reading.title, reading.units, reading.note)
    return (reading.name, value, _error(reading), BETTER[reading.direction], words)


def _folded(family: Sequence[Reading]) -> tuple[str, ...]:
    """Return one row for a family, with its medians if any, else its first numbers."""
    defined = [reading for reading in family if not math.isnan(reading.value)]
    medians = [reading for reading in defined if reading.number.endswith(".median")] or defined[:2]
    shown = ", ".join(f"{reading.number} {reading.value:.3g}" for reading in medians)
    notes = dict.fromkeys(
        f"{reading.number.split('.')[0]}: {reading.note}" if math.isnan(reading.value) else reading.note
        for reading in family
        if reading.note
    )
    lacking = [
        note.split(":")[0] for note in notes if ": " in note and note.split(": ", 1)[1] in _missing_reasons(family)
    ]
    if len(lacking) > 1:
        why = _missing_reasons(family)[0]
        notes = {f"{', '.join(lacking)}: {why}": None} | {n: None for n in notes if n.split(":")[0] not in lacking}
    first = family[0]
    return (
        f"{first.measure}.*",
        f"{len(defined)} numbers" if defined else "no value",
        "exact" if first.standard_error is None else "estimated",
        BETTER[first.direction],
        _words(": ".join(part for part in (first.title.split(": ")[0], shown) if part), first.units, "; ".join(notes)),
    )


def _missing_reasons(family: Sequence[Reading]) -> list[str]:
    return list(dict.fromkeys(reading.note for reading in family if math.isnan(reading.value) and reading.note))


def rows_of(readings: Sequence[Reading]) -> list[tuple[str, ...]]:
    """Return one row of text per reading; measures of five or more numbers are folded into one."""
    rows: list[tuple[str, ...]] = []
    for _, group in groupby(readings, key=lambda reading: reading.measure):
        family = list(group)
        rows.extend([_folded(family)] if len(family) >= FOLDED_FROM else map(_row, family))
    return rows


def _missing_lines(unmeasured: Mapping[str, str], most: int) -> list[str]:
    """List measures without a value, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in unmeasured.items():
        by_reason.setdefault(why, []).append(name)
    lines = [f"not measured: {', '.join(names)}: {why}" for why, names in by_reason.items()]
    if len(lines) > most:
        rest = [name for names in list(by_reason.values())[most - 1 :] for name in names]
        lines = [*lines[: most - 1], f"not measured: {', '.join(rest)}; reasons: .unmeasured"]
    return lines


def use_of(readings: Sequence[Reading]) -> str:
    """Name the checks that use the readings."""
    measures = dict.fromkeys(reading.measure for reading in readings)
    used = [f"{name} ({', '.join(CHECKS_THAT_USE[name])})" for name in measures if name in CHECKS_THAT_USE]
    others = "no check uses the others" if used else "no check uses these numbers"
    start = f"checks use {', '.join(used)}; " if used else ""
    return f"{start}{others}, and no reference values are shipped: compare networks that were trained alike"


def text_of(readings: Sequence[Reading], unmeasured: Mapping[str, str], notes: Sequence[str]) -> str:
    """Return readings, reasons for missing measures, and notes, in at most 15 lines."""
    rows = rows_of(readings)
    notes = [f"note: {note}" for note in notes[:3]] + ([use_of(readings)] if readings else [])
    missing = _missing_lines(unmeasured, max(1, MOST_LINES - len(notes) - min(len(rows), 9)))
    most = MOST_LINES - len(notes) - len(missing) - 1
    if len(rows) > most:
        rows = [*rows[: most - 1], (f"... and {len(rows) - most + 1} more; .to_pandas() has all",)]
    rows = [HEAD, *rows] if rows else []
    widths = [max((len(row[i]) for row in rows if len(row) > 1), default=0) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines, *missing, *notes])


def html_of(readings: Sequence[Reading], unmeasured: Mapping[str, str], notes: Sequence[str]) -> str:
    """Return a small table with what could not be measured under it, every text escaped."""
    head = "".join(f"<th>{name}</th>" for name in HEAD)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows_of(readings)
    )
    below = [*(f"not measured: {name}: {why}" for name, why in unmeasured.items()), *notes]
    below += [use_of(readings)] if readings else []
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in below)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{lines}"
