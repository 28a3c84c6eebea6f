"""What all sections of the report look at: the records, their table, and how one network is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.readings import Reading
from gapscope.base.records import Record, records_to_pandas
from gapscope.estimation.columns import hyperparameter_columns
from gapscope.estimation.suggestion import spans_widely
from gapscope.report.numbers import setting_name, setting_value

if TYPE_CHECKING:
    import pandas

LONGEST_NAME = 160
GAP_WORDS = {"accuracy": "train minus test accuracy", "loss": "test minus train loss"}


@dataclass(frozen=True)
class PoolView:
    """Records and what follows from them.

    Attributes:
        records: All records.
        logarithm: Names of readings to draw on a logarithmic axis; None chooses positive ones that span a factor
            of more than 10 and whose logarithm is less skewed.
    """

    records: Sequence[Record]
    logarithm: frozenset[str] | None = None

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row a record, as `records_to_pandas` makes it."""
        return records_to_pandas(self.records)

    @cached_property
    def finished(self) -> list[Record]:
        """Finished networks with a finite gap."""
        return [record for record in self.records if record.status == "finished" and numpy.isfinite(record.gap)]

    @cached_property
    def gap_kind(self) -> str:
        """What the gap is made of: "accuracy" or "loss"."""
        return self.finished[0].gap_kind if self.finished else "accuracy"

    @property
    def gap_label(self) -> str:
        """Name of the gap on an axis."""
        return f"gap ({self.gap_words})"

    @property
    def gap_words(self) -> str:
        """What the gap is, in words."""
        return GAP_WORDS[self.gap_kind]

    @cached_property
    def varied(self) -> list[str]:
        """Settings that differ between finished networks."""
        return hyperparameter_columns(self.table.loc[[record.id for record in self.finished]])

    @cached_property
    def readings(self) -> dict[str, list[Reading]]:
        """Reading name -> that reading of every finished network that has it."""
        found: dict[str, list[Reading]] = {}
        for record in self.finished:
            for reading in record.readings:
                found.setdefault(reading.name, []).append(reading)
        return found

    @cached_property
    def titles(self) -> dict[str, str]:
        """Reading name -> what it is, in words; older records hold its name only."""
        plain = {name: name.replace(".", ": ").replace("_", " ") for name in self.readings}
        return {name: readings[0].title or plain[name] for name, readings in self.readings.items()}

    def on_logarithmic_axis(self, name: str, values: Sequence[float]) -> bool:
        """Whether a reading is drawn on a logarithmic axis."""
        if self.logarithm is not None:
            return name in self.logarithm and min(values) > 0
        from scipy.stats import skew  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

        plain = numpy.array(values, dtype=float)
        return spans_widely(values) and bool(abs(skew(numpy.log(plain))) < abs(skew(plain)))

    @cached_property
    def descriptions(self) -> dict[str, str]:
        """Run id -> the network in a few words: the settings in which it differs from others."""
        every = hyperparameter_columns(self.table)
        found: dict[str, str] = {}
        for record, (_, row) in zip(self.records, self.table.iterrows(), strict=True):
            columns = self.varied if record.status == "finished" else every
            settings = _description({name: row[name] for name in columns}) or record.id[:8]
            # a network that was trained elsewhere has a name
            found[record.id] = str(record.spec.get("name") or settings)
        return found


def _description(settings: Mapping[str, Any]) -> str:
    words: list[str] = []
    for name, value in sorted(settings.items(), key=lambda item: item[0] != "network.name"):
        text = setting_value(value)
        if name == "network.name":
            words.append(text.replace("_", " "))
        elif name != "seed" and text not in ("–", "none"):
            words.append(f"{setting_name(name)} {text}")
    text = ", ".join(words)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
