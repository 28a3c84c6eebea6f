"""View of a pool for all sections of the report: records, table and names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.leaderboard.network_tables import SEEDS
from gapscope.pools import Pool
from gapscope.prediction.columns import hyperparameter_columns, spans_a_decade
from gapscope.report.formatting import setting_name, setting_value
from gapscope.results.readings import Reading
from gapscope.results.records import Record, records_to_pandas
from gapscope.statistics.intervals import configuration_ids, sample_configurations

if TYPE_CHECKING:
    import pandas

LONGEST_NAME = 160
# correlations and figures grow with networks, some with their square
MAX_POINTS = 1000
GAP_WORDS = {"accuracy": "train minus test accuracy", "loss": "test minus train loss"}


class PoolView:
    """Records and what follows from them.

    Of a pool of more than 1,000 networks, `records` are whole training configurations sampled at random, for statistics
    and figures, and `all_records` come from the index, without settings, readings and epochs.

    Attributes:
        records: Networks of the statistics and figures.
        all_records: All networks.
        whole: One row per network of `all_records`, as in `records_to_pandas`.
    """

    def __init__(self, records: Iterable[Record] | Pool) -> None:
        self.all_records: Sequence[Record]
        if isinstance(records, Pool) and len(records) > MAX_POINTS:
            index = records.index()
            self.whole, self.all_records = index.table(), index.summaries()
            rows = sample_configurations(configuration_ids(self.whole, settings_of(self.whole)), MAX_POINTS)
            sampled = (records.get_record(str(name)) for name in self.whole.index[rows])
            self.records = [record for record in sampled if record is not None]
        else:
            self.records = self.all_records = list(records)
            self.whole = records_to_pandas(self.records)
        self._descriptions: dict[str, str] = {}

    @cached_property
    def finished(self) -> list[Record]:
        """Those of `records` that are finished, with a finite gap."""
        return _finished(self.records)

    @cached_property
    def all_finished(self) -> list[Record]:
        """Those of `all_records` that are finished, with a finite gap."""
        return _finished(self.all_records)

    @cached_property
    def table(self) -> pandas.DataFrame:
        """Rows of `whole` of the networks in `records`."""
        return self.whole.loc[[record.id for record in self.records]]

    @cached_property
    def varied(self) -> list[str]:
        """Settings that differ between finished networks."""
        return hyperparameter_columns(self.whole.loc[[record.id for record in self.all_finished]])

    @cached_property
    def _varied_in_all(self) -> list[str]:
        return hyperparameter_columns(self.whole)

    @cached_property
    def gap_kind(self) -> str:
        """Kind of the gap: "accuracy" or "loss"."""
        return self.finished[0].gap_kind if self.finished else "accuracy"

    @property
    def gap_words(self) -> str:
        """Definition of the gap in words."""
        return GAP_WORDS[self.gap_kind]

    @property
    def gap_label(self) -> str:
        """Name of the gap on an axis."""
        return f"gap ({self.gap_words})"

    @cached_property
    def readings(self) -> dict[str, list[Reading]]:
        """Reading name -> that reading of every finished network that has it."""
        by_name: dict[str, list[Reading]] = {}
        for record in self.finished:
            for reading in record.readings:
                by_name.setdefault(reading.name, []).append(reading)
        return by_name

    @cached_property
    def titles(self) -> dict[str, str]:
        """Descriptions by reading name (older records have names only)."""
        plain = {name: name.replace(".", ": ").replace("_", " ") for name in self.readings}
        return {name: readings[0].title or plain[name] for name, readings in self.readings.items()}

    def describe(self, key: str) -> str:
        """The network of this id in a few words: the settings in which it differs from others."""
        if key not in self._descriptions:
            row: Any = self.whole.loc[key]
            name = row.get("name")  # of a network that was trained elsewhere
            columns = self.varied if row["status"] == "finished" else self._varied_in_all
            given = name if isinstance(name, str) else ""
            self._descriptions[key] = given or _description({name: row[name] for name in columns}) or key[:8]
        return self._descriptions[key]


def view_of(records: Iterable[Record] | Pool | PoolView) -> PoolView:
    """Return the view of records (itself, or InvalidInput if there are none)."""
    view = records if isinstance(records, PoolView) else PoolView(records)
    if not view.records:
        raise InvalidInput("A report needs at least one record; got none. Run the pool first.")
    return view


def _finished(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.status == "finished" and math.isfinite(record.gap)]


def settings_of(table: pandas.DataFrame) -> list[str]:
    """Columns of the hyperparameters that vary, without seeds."""
    return [name for name in hyperparameter_columns(table) if name not in SEEDS]


def needs_logarithm(values: Sequence[float]) -> bool:
    """Return True for positive values over a factor of 10 whose logarithm is less skewed."""
    from scipy.stats import skew  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    plain = numpy.array(values, dtype=float)
    return spans_a_decade(values) and bool(abs(skew(numpy.log(plain))) < abs(skew(plain)))


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
