"""What measuring yields and what a pool keeps: Estimate, Reading, Readings, Record (plain JSON, never torch)."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from gapscope.base.errors import DamagedFile, DamagedFileWarning, NotMeasurable, UnreadableFile, nearest
from gapscope.base.files import read_json, read_json_lines, to_json, write_atomically
from gapscope.base.readings_table import html_of, text_of
from gapscope.base.results import Rows

if TYPE_CHECKING:
    import pandas

SCHEMA = 1
# The measure that stands beside all others: whoever predicts no better than the size tells nothing.
BASELINE = "parameter_count"
Direction = Literal["lower", "higher", "none"]
Status = Literal["finished", "diverged", "failed"]


class Estimate(float):
    """A number that a measure returned: a plain float that knows its standard error.

    `standard_error` is None where the value is exact (up to rounding).

    >>> trace = Estimate(2.0, standard_error=0.1)
    >>> trace + 1, trace
    (3.0, 2 ± 0.1)
    """

    standard_error: float | None

    def __new__(cls, value: float, standard_error: float | None = None) -> Estimate:
        """Make the float and attach its standard error."""
        estimate = super().__new__(cls, value)
        estimate.standard_error = None if standard_error is None else float(standard_error)
        return estimate

    @property
    def exact(self) -> bool:
        """Whether the value was computed exactly, not estimated."""
        return self.standard_error is None

    def __repr__(self) -> str:
        return f"{float(self):.6g}" if self.exact else f"{float(self):.6g} ± {self.standard_error:.2g}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimate, (float(self), self.standard_error)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One number of one measure, with the facts needed to read it.

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
        note: What else one must know: on how many of the samples it was estimated, or why there is no number.
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
        known = {item.name for item in fields(cls)}
        content = {key: value for key, value in content.items() if key in known}
        error = content.get("standard_error")
        return cls(
            **{
                **content,
                "value": float(content["value"]),
                "standard_error": None if error is None else float(error),
            }
        )


class Readings(Rows[Reading]):
    """The readings of one network: a tuple that is also indexed by name and shows itself as a table.

    Attributes:
        unmeasured: Measure name -> why it has no value for this network and these data.
        notes: What was noticed, one sentence each.
    """

    unmeasured: dict[str, str]
    notes: tuple[str, ...]

    def __new__(
        cls, readings: Iterable[Reading] = (), unmeasured: Mapping[str, str] | None = None, notes: Iterable[str] = ()
    ) -> Readings:
        """Collect the readings."""
        found = super().__new__(cls, tuple(readings))
        found.unmeasured, found.notes = dict(unmeasured or {}), tuple(notes)
        return found

    def __getitem__(self, key: Any) -> Any:
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
        raise NotMeasurable(f"The readings hold {', '.join(names) or 'nothing'}; got {key!r}.{nearest(key, names)}")

    def values(self) -> dict[str, float]:
        """Name -> value."""
        return {reading.name: reading.value for reading in self}

    def to_pandas(self) -> pandas.DataFrame:
        """One row a reading, indexed by its name."""
        import pandas

        columns = [item.name for item in fields(Reading)]
        table = pandas.DataFrame([asdict(reading) for reading in self], columns=columns)
        table.index = pandas.Index([reading.name for reading in self], name="name")
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return readings, reasons and notes as plain values."""
        return {"schema": SCHEMA, **super().to_dict(), "unmeasured": self.unmeasured, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, text: str) -> Readings:
        """Build from what `to_json` returned."""
        return cls._from(json.loads(text))

    def save(self, path: str | Path) -> None:
        """Write a JSON file; it exists whole or not at all."""
        write_atomically(Path(path), self.to_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Readings:
        """Read a file that `save` wrote.

        Args:
            path: The file.

        Returns:
            The readings.

        Raises:
            UnreadableFile: It is truncated, or holds something else.
        """
        content = read_json(Path(path))
        if not isinstance(content, dict) or "rows" not in content or "notes" not in content:
            raise UnreadableFile(f"{path} must hold readings; it does not. Name a file that Readings.save wrote.")
        return cls._from(content)

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

    def plot(self, axes: Any = None) -> Any:
        """Draw each reading in its own row, with its standard error, and return the matplotlib axes.

        Args:
            axes: Where to draw; None makes a figure.

        Returns:
            The axes.
        """
        from gapscope.base.plots import plot_readings

        return plot_readings(self, axes)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Everything that is kept of one network, as plain JSON: `record.json` with `history.jsonl` beside it.

    Attributes:
        id: The run's id, the hash of its spec.
        spec: The spec as nested plain values.
        status: "finished", "diverged" (non-finite loss), or "failed" (the message says why).
        message: What happened, for a network that did not finish.
        scores: Final train_loss and test_loss (and train_accuracy, test_accuracy for classification), each a mean
            over the whole split in evaluation mode; train scores are against the training (possibly corrupted) labels.
        corruption: What was corrupted, as the corruption functions stated it.
        readings: What was measured.
        measured_samples: Number of training samples that the readings were taken on.
        unmeasured: Measure name -> why it has no value for this network.
        history: One mapping an epoch.
        environment: Versions and machine.
        seconds: Wall time of training and measuring.
        epochs_trained: Number of finished epochs.
        stopped: Why training ended.
    """

    id: str
    spec: Mapping[str, Any]
    status: Status
    message: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    corruption: Mapping[str, Any] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    measured_samples: int | None = None
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    epochs_trained: int = 0
    stopped: str = ""

    @property
    def gap_kind(self) -> str:
        """What `gap` is made of: "accuracy" (train minus test) or "loss" (test minus train)."""
        return "accuracy" if "train_accuracy" in self.scores else "loss"

    @property
    def gap(self) -> float:
        """Generalization gap: train minus test accuracy, or test minus train loss where there is no accuracy."""
        if "test_loss" not in self.scores or "train_loss" not in self.scores:
            return math.nan
        if self.gap_kind == "accuracy":
            return self.scores["train_accuracy"] - self.scores["test_accuracy"]
        return self.scores["test_loss"] - self.scores["train_loss"]

    def missing_measures(self, names: Iterable[str]) -> list[str]:
        """Those of the named measures that were neither taken nor tried."""
        done = {reading.measure for reading in self.readings} | set(self.unmeasured)
        return [name for name in names if name not in done]

    def write(self, folder: Path) -> None:
        """Write record.json into `folder`: it exists whole or not at all (the history is written by training)."""
        content = {"schema": SCHEMA}
        for item in fields(self):
            if item.name not in ("history", "readings"):
                content[item.name] = getattr(self, item.name)
        content["readings"] = [asdict(reading) for reading in self.readings]  # type: ignore[assignment]
        write_atomically(folder / "record.json", to_json(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read the record of one run.

        Args:
            folder: Folder with record.json and, usually, history.jsonl.

        Returns:
            The record.

        Raises:
            DamagedFile: It is truncated or garbled, or no record at all.
            UnreadableFile: It was written by a newer gapscope, or cannot be read.
        """
        path = folder / "record.json"
        content = read_json(path)
        schema = content.get("schema") if isinstance(content, dict) else None
        if not isinstance(schema, int):
            raise DamagedFile(
                f"{path} must be a gapscope record; it has no 'schema' that is a number. Is this a pool folder?"
            )
        if schema > SCHEMA:
            raise UnreadableFile(
                f"{path} must have schema {SCHEMA} or older; got {schema}, written by a newer gapscope. "
                "Upgrade gapscope, or use another folder."
            )
        missing = {"id", "spec", "status"} - set(content)
        if missing:
            raise DamagedFile(f"{path} must name {', '.join(sorted(missing))}; the record is damaged. Delete it.")
        try:
            return cls(**_checked(content), history=_history(folder))
        except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise DamagedFile(
                f"{path} must be a gapscope record; {error}. Delete it; the next run of the pool makes it anew."
            ) from None


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "spec": dict,
    "message": str,
    "scores": dict,
    "corruption": dict,
    "readings": list,
    "measured_samples": (int, type(None)),
    "unmeasured": dict,
    "environment": dict,
    "epochs_trained": int,
    "stopped": str,
}


def _checked(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record from plain JSON (non-finite values arrive as strings)."""
    known = {item.name for item in fields(Record)} - {"history"}
    content = {key: value for key, value in content.items() if key in known}
    for name, kind in _KINDS.items():
        if name in content and not isinstance(content[name], kind):
            raise ValueError(f"{name} is {str(content[name])[:60]!r}")
    if content["status"] not in get_args(Status):
        raise ValueError(f"status is {str(content['status'])[:60]!r}, none of {', '.join(get_args(Status))}")
    content["readings"] = Readings(Reading.from_dict(reading) for reading in content.get("readings", ()))
    content["scores"] = {key: float(value) for key, value in content.get("scores", {}).items()}
    if ("train_accuracy" in content["scores"]) != ("test_accuracy" in content["scores"]):
        raise ValueError("scores hold one accuracy without the other")
    if not all(isinstance(reason, str) for reason in content.get("unmeasured", {}).values()):
        raise ValueError("unmeasured holds what is no text")
    for name, value in (("seed", content["spec"].get("seed", 0)), ("epochs_trained", content.get("epochs_trained", 0))):
        if not _is_whole(value):
            raise ValueError(f"{name} is {str(value)[:60]!r}")
    content["seconds"] = float(content.get("seconds", 0.0))
    return content


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """Whether a value of an epoch is a number as `to_json` writes it: one that is not finite is a text."""
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, float) or _is_whole(value)


def _history(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The epochs; none where their file is damaged, for the record itself is whole without them."""
    path = folder / "history.jsonl"
    try:
        rows = tuple(read_json_lines(path))
        for row in rows:
            wrong = next((name for name, value in row.items() if not _is_number(value)), None)
            if not isinstance(row.get("epoch"), int) or wrong is not None:
                raise DamagedFile(f"{path} must hold numbers for every epoch; '{wrong or 'epoch'}' is none.")
        return rows
    except UnreadableFile as error:
        warnings.warn(f"{error} The record is read without its epochs.", DamagedFileWarning, stacklevel=3)
        return ()


def _flattened(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            flat.update(_flattened(name, value))
        elif isinstance(value, list | tuple):
            flat[name] = to_json(value)
        else:
            flat[name] = value
    return flat


def records_to_pandas(records: Iterable[Record]) -> pandas.DataFrame:
    """One row a network: spec settings, scores, gap and readings as columns, indexed by the run's id.

    Args:
        records: The records.

    Returns:
        The table. A reading's column has the reading's name; its standard error, if any, stands in `<name>.se`.
    """
    import pandas

    rows = []
    for record in records:
        row: dict[str, Any] = {"id": record.id, "status": record.status, **_flattened("", record.spec)}
        row |= dict(record.scores) | {"gap": record.gap, "gap_kind": record.gap_kind}
        for reading in record.readings:
            row[reading.name] = reading.value
            if reading.standard_error is not None:
                row[f"{reading.name}.se"] = reading.standard_error
        rows.append(row | {"epochs_trained": record.epochs_trained, "seconds": record.seconds})
    if not rows:
        return pandas.DataFrame(columns=["status", "gap"], index=pandas.Index([], name="id"))
    return pandas.DataFrame(rows).set_index("id")
