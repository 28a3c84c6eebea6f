"""Shared view of all report sections: records, their table and names of networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

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
MOST_DRAWN = 1000
GAP_WORDS = {"accuracy": "train minus test accuracy", "loss": "test minus train loss"}


@dataclass(frozen=True)
class PoolView:
    """Records and what follows from them.

    Attributes:
        records: Networks of the statistics and figures: all, or a sample of a large pool.
        logarithm: Names of readings on a logarithmic axis; None chooses positive ones that span a factor of more than
            10 and whose logarithm is less skewed.
    """

    records: Sequence[Record]
    logarithm: frozenset[str] | None = None
    pool: LargePool | None = None

    @property
    def all_records(self) -> Sequence[Record]:
        """All networks, those outside the sample without settings, readings and epochs."""
        return self.records if self.pool is None else self.pool.summaries

    @cached_property
    def whole(self) -> pandas.DataFrame:
        """One row per network of `all_records`, as in `records_to_pandas`."""
        return records_to_pandas(self.records) if self.pool is None else self.pool.table

    def setting(self, run: str, name: str) -> Any:
        """Value of one column of `whole` for one network, as a plain value."""
        value = self.whole.at[run, name]
        return value.tolist() if isinstance(value, numpy.generic) else value  # pyright: ignore[reportUnknownVariableType]

    def complete(self, record: Record) -> Record:
        """Return the full record of one of `all_records`."""
        return record if self.pool is None else self.pool.read(record)

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row per record, as in `records_to_pandas`."""
        return self.whole if self.pool is None else self.whole.loc[[record.id for record in self.records]]

    @cached_property
    def finished(self) -> list[Record]:
        """Those of `records` that are finished, with a finite gap."""
        return finished(self.records)

    @cached_property
    def all_finished(self) -> list[Record]:
        """Those of `all_records` that are finished, with a finite gap."""
        return self.finished if self.pool is None else finished(self.all_records)

    @cached_property
    def gap_kind(self) -> str:
        """Kind of the gap: "accuracy" or "loss"."""
        return self.finished[0].gap_kind if self.finished else "accuracy"

    @property
    def gap_label(self) -> str:
        """Name of the gap on an axis."""
        return f"gap ({self.gap_words})"

    @property
    def gap_words(self) -> str:
        """Definition of the gap in words."""
        return GAP_WORDS[self.gap_kind]

    @cached_property
    def varied(self) -> list[str]:
        """Settings that differ between finished networks."""
        return hyperparameter_columns(self.whole.loc[[record.id for record in self.all_finished]])

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

    def on_logarithmic_axis(self, name: str, values: Sequence[float]) -> bool:
        """Return True if a reading needs a logarithmic axis."""
        if self.logarithm is not None:
            return name in self.logarithm and min(values) > 0
        from scipy.stats import skew  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

        plain = numpy.array(values, dtype=float)
        return spans_a_decade(values) and bool(abs(skew(numpy.log(plain))) < abs(skew(plain)))

    @cached_property
    def descriptions(self) -> Mapping[str, str]:
        """Run id -> the network in a few words: the settings in which it differs from others."""
        return _Descriptions(self)


class _Descriptions(dict[str, str]):
    """Words about networks, found when they are asked for."""

    def __init__(self, view: PoolView) -> None:
        super().__init__()
        self._view, self._whole = view, view.whole
        self._varied, self._every = view.varied, hyperparameter_columns(view.whole)

    def __missing__(self, key: str) -> str:
        columns = self._varied if self._whole.at[key, "status"] == "finished" else self._every
        # a network that was trained elsewhere has a name
        name = self._whole.at[key, "name"] if "name" in self._whole else None
        settings = {name: self._view.setting(key, name) for name in columns}
        self[key] = name if isinstance(name, str) and name else _description(settings) or key[:8]
        return self[key]


def finished(records: Iterable[Record]) -> list[Record]:
    """Finished networks with a finite gap."""
    return [record for record in records if record.status == "finished" and math.isfinite(record.gap)]


@dataclass(frozen=True)
class LargePool:
    """View of a pool too large for figures: index of all, records on demand.

    Attributes:
        pool: The pool.
        table: One row per network, as `records_to_pandas` makes it.
        summaries: Its records without settings, readings and epochs, in the same order.
    """

    pool: Pool
    table: pandas.DataFrame
    summaries: Sequence[Record]

    def read(self, record: Record) -> Record:
        """Return the full record (unchanged if its file is missing)."""
        return self.pool.get_record(record.id) or record


def make_view(records: Iterable[Record] | Pool, logarithm: frozenset[str] | None = None) -> PoolView:
    """Return a view of records or a pool (large pools sampled by training configuration)."""
    if not isinstance(records, Pool):
        return PoolView(list(records), logarithm)
    pool = records
    if len(pool) <= MOST_DRAWN:
        return PoolView(pool.records(), logarithm)
    index = pool.index()
    table = index.table()
    settings = [name for name in hyperparameter_columns(table) if name not in SEEDS]
    rows = sample_configurations(configuration_ids(table, settings), MOST_DRAWN)
    drawn = [record for name in table.index[rows] if (record := pool.get_record(str(name))) is not None]
    return PoolView(drawn, logarithm, LargePool(pool, table, index.summaries()))


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
