"""Readings: measured numbers with uncertainty and source, and their table."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from gapscope.base.errors import NotMeasurable, did_you_mean
from gapscope.results.formatting import format_number
from gapscope.results.result import StoredRows

if TYPE_CHECKING:
    import pandas

HEAD = ("measure", "value", "error", "better", "what it is")
BETTER = {"lower": "lower", "higher": "higher", "none": "-"}
# a measure with at least this many numbers is one row of the printed table
FOLDED_FROM = 5
# lines that fit a terminal
MAX_LINES = 15
USAGE = "no reference values exist: compare networks that were trained alike"


def _describe(title: str, units: str, note: str) -> str:
    """Describe a number by title, units and caveats."""
    quantity = f"{title} [{units}]" if title and units else title or units
    return "; ".join(filter(None, (quantity, note)))


def _row(reading: Reading) -> tuple[str, ...]:
    value = "no value"
    error = ""
    if not math.isnan(reading.value):
        value = format_number(reading.value, 4)
        error = "exact"
    if reading.standard_error is not None:
        error = "± ?"
        if not math.isnan(reading.standard_error):
            error = f"± {reading.standard_error:.2g}"
    description = _describe(reading.title, reading.units, reading.note)
    return (reading.name, value, error, BETTER[reading.direction], description)


def _family_row(family: Sequence[Reading]) -> tuple[str, ...]:
    """Return one row for all numbers of a measure, with the medians or else the first two."""
    defined = [reading for reading in family if not math.isnan(reading.value)]
    medians = [reading for reading in defined if reading.number.endswith(".median")] or defined[:2]
    values = ", ".join(f"{reading.number} {reading.value:.3g}" for reading in medians)
    missing: dict[str, list[str]] = {}  # reason -> parts of the network without a value
    for reading in family:
        if math.isnan(reading.value) and reading.note:
            missing.setdefault(reading.note, []).append(reading.number.split(".")[0])
    notes = [f"{', '.join(dict.fromkeys(parts))}: {reason}" for reason, parts in missing.items()]
    notes += dict.fromkeys(reading.note for reading in defined if reading.note)
    first = family[0]
    title = ": ".join(filter(None, (first.title.split(": ")[0], values)))
    return (
        f"{first.measure}.*",
        f"{len(defined)} numbers" if defined else "no value",
        "exact" if all(each.standard_error is None for each in family) else "estimated",
        BETTER[first.direction],
        _describe(title, first.units, "; ".join(notes)),
    )


def _rows(readings: Sequence[Reading]) -> list[tuple[str, ...]]:
    """Return one row of text per reading, or per measure of `FOLDED_FROM` numbers or more."""
    rows: list[tuple[str, ...]] = []
    for _, group in groupby(readings, key=lambda reading: reading.measure):
        family = list(group)
        rows.extend([_family_row(family)] if len(family) >= FOLDED_FROM else map(_row, family))
    return rows


def missing_lines(unmeasured: Mapping[str, str], max_lines: int) -> list[str]:
    """List measures without a value, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in unmeasured.items():
        by_reason.setdefault(reason, []).append(name)
    lines = [f"not measured: {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    if len(lines) > max_lines:
        rest = [name for names in list(by_reason.values())[max_lines - 1 :] for name in names]
        lines = [*lines[: max_lines - 1], f"not measured: {', '.join(rest)}; reasons: .unmeasured"]
    return lines


# version of the JSON of readings and records
SCHEMA = 1
# the baseline of all measures: one that predicts the gap no better adds nothing
BASELINE = "parameter_count"
Direction = Literal["lower", "higher", "none"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One number of one measure, with its direction, units and source.

    Attributes:
        measure: Name of the measure in the registry.
        number: Name of the number, for measures with several.
        value: The number itself.
        standard_error: Standard error of an estimate, None for an exact value, NaN if it is unknown.
        direction: Direction of a smaller generalization gap: "lower", "higher" or "none" (unknown).
        units: Units of the value.
        aggregation: What the sum or mean runs over.
        reference: Source, with equation number.
        seconds: Wall time of the whole measure.
        note: Caveats, such as the number of samples of an estimate, or why there is no value.
        title: Description of the number.
    """

    measure: str
    number: str
    value: float
    standard_error: float | None = None
    direction: Direction = "none"
    units: str = ""
    aggregation: str = ""
    reference: str = ""
    seconds: float = 0.0
    note: str = ""
    title: str = ""

    @property
    def name(self) -> str:
        """`measure`, or `measure.number` for measures with several numbers."""
        if self.number == self.measure:
            return self.measure
        return f"{self.measure}.{self.number}"

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reading:
        """Build from JSON (non-finite values are strings).

        Args:
            content: What `to_dict` returned (non-finite values are strings).
        """
        values: dict[str, Any] = {
            key: value for key, value in content.items() if key in cls.__dataclass_fields__
        }
        values["value"] = float(values["value"])
        if values.get("standard_error") is not None:
            values["standard_error"] = float(values["standard_error"])
        return cls(**values)


class Readings(StoredRows[Reading]):
    """Readings of one network: a tuple, also indexed by name, shown as a table.

    Attributes:
        readings: One `Reading` per number.
        unmeasured: Measure name -> why it has no value; None for none.
        notes: Remarks on the measurement, one sentence each.
        interrupted: Whether Ctrl-C ended the measurement, so that measures are missing.
    """

    _kind, _keys = "readings", frozenset({"schema", "rows", "notes"})
    unmeasured: dict[str, str]
    notes: tuple[str, ...]
    interrupted: bool

    def __new__(
        cls,
        readings: Iterable[Reading] = (),
        unmeasured: Mapping[str, str] | None = None,
        notes: Iterable[str] = (),
        *,
        interrupted: bool = False,
    ) -> Readings:
        """Collect the readings."""
        return super().__new__(
            cls,
            readings,
            unmeasured=dict(unmeasured or {}),
            notes=tuple(notes),
            interrupted=interrupted,
        )

    @overload
    def __getitem__(self, key: str | SupportsIndex) -> Reading: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Reading, ...]: ...
    def __getitem__(self, key: str | SupportsIndex | slice) -> Reading | tuple[Reading, ...]:
        """Return the reading called `key` (a string), or index like a tuple.

        Raises:
            NotMeasurable: No reading has this name.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        reading = self.get(key)
        if reading is not None:
            return reading
        if key in self.unmeasured:
            raise NotMeasurable(f"{key} has no value: {self.unmeasured[key]}")
        names = [reading.name for reading in self]
        among = f" among {', '.join(names)}" if names else ""
        raise NotMeasurable(f"There is no reading {key!r}{among}.{did_you_mean(key, names)}")

    def __contains__(self, key: object) -> bool:
        """Return whether there is a reading called `key` (a string), or this reading."""
        if isinstance(key, str):
            return self.get(key) is not None
        return super().__contains__(key)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the reading of a name.

        Args:
            name: Name of the reading.
            default: What is returned if no reading has this name.
        """
        return next((reading for reading in self if reading.name == name), default)

    def values(self) -> dict[str, float]:
        """Return the values by name."""
        return {reading.name: reading.value for reading in self}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per reading, indexed by name."""
        import pandas

        columns = [item.name for item in fields(Reading)]
        table = pandas.DataFrame([asdict(reading) for reading in self], columns=columns)
        table.index = pandas.Index([reading.name for reading in self], name="name")
        return table

    def _content(self) -> dict[str, Any]:
        """Return readings, reasons and notes."""
        return {"schema": SCHEMA, **super()._content()}

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Readings:
        readings = map(Reading.from_dict, content["rows"])
        return cls(
            readings,
            content.get("unmeasured"),
            content.get("notes", ()),
            interrupted=content.get("interrupted", False),
        )

    def to_html(self) -> str:
        """Return a table with the missing measures and notes below, all text escaped."""
        head = "".join(f"<th>{name}</th>" for name in HEAD)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in _rows(self)
        )
        missing = [f"not measured: {name}: {reason}" for name, reason in self.unmeasured.items()]
        lines = "".join(
            f"<p>{html.escape(line)}</p>"
            for line in [*missing, *self.notes, *([USAGE] if self else [])]
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{lines}"

    _repr_html_ = to_html

    def __repr__(self) -> str:
        """Return rows, reasons for missing measures, and notes, in at most 15 lines."""
        rows = _rows(self)
        notes = [*(f"note: {note}" for note in self.notes[:3]), *([USAGE] if self else [])]
        missing = missing_lines(self.unmeasured, max(1, MAX_LINES - len(notes) - min(len(rows), 9)))
        max_rows = MAX_LINES - len(notes) - len(missing) - 1
        rest = []
        if len(rows) > max_rows:
            rest = [f"... and {len(rows) - max_rows + 1} more; .to_pandas() has all"]
            rows = rows[: max_rows - 1]
        if rows:
            rows = [HEAD, *rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *rest, *missing, *notes])
