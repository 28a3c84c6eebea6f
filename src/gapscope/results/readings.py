"""Readings of one network, one Reading per number (JSON, without torch)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from gapscope.base.errors import NotMeasurable, did_you_mean
from gapscope.results.readings_table import html_of, text_of
from gapscope.results.result import StoredRows

if TYPE_CHECKING:
    import pandas

# of the JSON of readings and of records
SCHEMA = 1
# The baseline of all measures: a measure that predicts the gap no better than this one adds nothing.
BASELINE = "parameter_count"
Direction = Literal["lower", "higher", "none"]


@cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(item.name for item in fields(cls))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One number of one measure, with its direction, units and source.

    Attributes:
        measure: Name of the measure in the registry.
        number: Name of the number among those the measure yields.
        value: The number itself.
        standard_error: Standard error where it was estimated, None where it is exact.
        direction: Which direction goes with a smaller generalization gap: "lower", "higher" or "none" (not known).
        units: Units of the value.
        aggregation: Over what it was summed or averaged.
        reference: Source, with equation number.
        seconds: Wall time of the whole measure.
        note: Caveats: number of samples of the estimate, or the reason why there is no number.
        title: What the number is, in words.
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
        """`measure`, or `measure.number` where the measure yields several numbers."""
        return self.measure if self.number == self.measure else f"{self.measure}.{self.number}"

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Reading:
        """Build from plain JSON (non-finite values arrive as strings)."""
        known = _names(cls)
        values: dict[str, Any] = {key: value for key, value in content.items() if key in known}
        error = values.get("standard_error")
        values |= {"value": float(values["value"]), "standard_error": None if error is None else float(error)}
        return cls(**values)


class Readings(StoredRows[Reading]):
    """Readings of one network: a tuple, also indexed by name, shown as a table.

    Attributes:
        unmeasured: Measure name -> why it has no value for this network and these data.
        notes: What was noticed, one sentence each.
    """

    _kind, _keys = "readings", frozenset({"rows", "notes"})
    unmeasured: dict[str, str]
    notes: tuple[str, ...]

    def __new__(
        cls, readings: Iterable[Reading] = (), unmeasured: Mapping[str, str] | None = None, notes: Iterable[str] = ()
    ) -> Readings:
        """Collect the readings."""
        result = super().__new__(cls, tuple(readings))
        result.unmeasured, result.notes = dict(unmeasured or {}), tuple(notes)
        return result

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
        for reading in self:
            if reading.name == key:
                return reading
        if key in self.unmeasured:
            raise NotMeasurable(f"{key} has no value: {self.unmeasured[key]}")
        names = [reading.name for reading in self]
        raise NotMeasurable(
            f"The readings hold {', '.join(names) or 'nothing'}; got {key!r}.{did_you_mean(key, names)}"
        )

    def values(self) -> dict[str, float]:
        """Name -> value."""
        return {reading.name: reading.value for reading in self}

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per reading, indexed by name."""
        import pandas

        columns = [item.name for item in fields(Reading)]
        table = pandas.DataFrame([asdict(reading) for reading in self], columns=columns)
        table.index = pandas.Index([reading.name for reading in self], name="name")
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return readings, reasons and notes as JSON-serializable values."""
        return {"schema": SCHEMA, **super().to_dict(), "unmeasured": self.unmeasured, "notes": list(self.notes)}

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Readings:
        readings = map(Reading.from_dict, content["rows"])
        return cls(readings, content.get("unmeasured"), content.get("notes", ()))

    def to_html(self) -> str:
        """Return a small table, every text escaped."""
        return html_of(self, self.unmeasured, self.notes)

    _repr_html_ = to_html

    def __repr__(self) -> str:
        return text_of(self, self.unmeasured, self.notes)
