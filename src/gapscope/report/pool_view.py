"""View of a pool for the report: records, table and names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy

from gapscope.base.errors import InvalidInput
from gapscope.base.tables import check_comparable
from gapscope.gap.columns import (
    has_unknown_settings,
    hyperparameter_columns,
    spans_a_decade,
    training_configurations,
)
from gapscope.leaderboard.network_tables import SEEDS
from gapscope.pools import Pool
from gapscope.results.formatting import setting_name, setting_value
from gapscope.results.readings import Reading
from gapscope.results.records import Record, as_records, records_to_pandas
from gapscope.statistics.intervals import sample_configurations

if TYPE_CHECKING:
    import pandas

# a longer one makes the table wide
LONGEST_NAME = 160
# correlations take time, figures bytes; some grow with the square of the number of networks
MAX_POINTS = 1000
# items of one kind on the page, at once and in all: a screen, and what a reader scrolls through
MAX_SHOWN, MAX_SCROLLED = 12, 50
# by judgment: a gap estimator of fewer networks is not worth its error
MIN_NETWORKS = 12
GAP_DEFINITIONS = {"accuracy": "train minus test accuracy", "loss": "test minus train loss"}


class PoolView:
    """Records of a pool, and names and tables derived from them.

    For pools of more than 1,000 networks, `records` is a random sample of whole training configurations, and
    `all_records` come from the index, without settings, readings and epochs.

    Attributes:
        records: Networks of the statistics and figures.
        all_records: All networks.
        all_rows: One row per network of `all_records`, as in `records_to_pandas`.
    """

    def __init__(self, records: Iterable[Record] | Pool) -> None:
        self.all_records: Sequence[Record]
        if isinstance(records, Pool) and len(records) > MAX_POINTS:
            index = records.index()
            self.all_rows = index.table()
            self.all_records = index.summaries()
            clusters = training_configurations(self.all_rows, varied_settings(self.all_rows))
            ids = self.all_rows.index[sample_configurations(clusters, MAX_POINTS)]
            sampled = (records.get_record(str(key)) for key in ids)
            self.records = [record for record in sampled if record is not None]
        else:
            # the same record twice is one network
            by_id = {record.id: record for record in as_records(records)}
            self.records = self.all_records = list(by_id.values())
            self.all_rows = records_to_pandas(self.records)
        self._descriptions: dict[str, str] = {}

    @cached_property
    def finished(self) -> list[Record]:
        """Finished networks of `records` with a finite gap."""
        return _finished(self.records)

    @cached_property
    def all_finished(self) -> list[Record]:
        """Finished networks of `all_records` with a finite gap."""
        return _finished(self.all_records)

    @cached_property
    def all_finished_rows(self) -> pandas.DataFrame:
        """Rows of `all_rows` of the networks in `all_finished`."""
        return self.all_rows.loc[[record.id for record in self.all_finished]]

    @cached_property
    def finished_rows(self) -> pandas.DataFrame:
        """Rows of `table` of the networks in `finished`."""
        return self.table.loc[[record.id for record in self.finished]]

    @cached_property
    def table(self) -> pandas.DataFrame:
        """Rows of `all_rows` of the networks in `records`."""
        return self.all_rows.loc[[record.id for record in self.records]]

    @cached_property
    def varied(self) -> list[str]:
        """Settings that differ between finished networks."""
        return hyperparameter_columns(self.all_finished_rows)

    @cached_property
    def n_without_settings(self) -> int:
        """Number of finished networks of which no settings are known."""
        return int(has_unknown_settings(self.all_finished_rows).sum())

    @cached_property
    def _varied_in_all(self) -> list[str]:
        return hyperparameter_columns(self.all_rows)

    @cached_property
    def gap_kind(self) -> str:
        """Kind of the gap: "accuracy" or "loss"."""
        return (self.finished[0].gap_kind if self.finished else "") or "accuracy"

    @property
    def gap_definition(self) -> str:
        """Definition of the gap as text."""
        return GAP_DEFINITIONS[self.gap_kind]

    @property
    def gap_label(self) -> str:
        """Name of the gap on an axis."""
        return f"gap ({self.gap_definition})"

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
        return {
            name: readings[0].title or name.replace(".", ": ").replace("_", " ")
            for name, readings in self.readings.items()
        }

    def describe(self, key: str) -> str:
        """Describe a network by its name, the settings that vary in the pool, or its id."""
        if key not in self._descriptions:
            row: Any = self.all_rows.loc[key]
            columns = self.varied if row["status"] == "finished" else self._varied_in_all
            # networks trained elsewhere have one
            name = row.get("name") if isinstance(row.get("name"), str) else ""
            self._descriptions[key] = (
                name or _description({name: row[name] for name in columns}) or key[:8]
            )
        return self._descriptions[key]


def as_view(records: Iterable[Record] | Pool | PoolView) -> PoolView:
    """Return the view of records, or raise InvalidInput if there are none."""
    view = records if isinstance(records, PoolView) else PoolView(records)
    if not view.records:
        raise InvalidInput("A report needs at least one record; got none. Run the pool first.")
    check_comparable(view.all_finished_rows)
    return view


def _finished(records: Iterable[Record]) -> list[Record]:
    return [
        record for record in records if record.status == "finished" and math.isfinite(record.gap)
    ]


def varied_settings(table: pandas.DataFrame) -> list[str]:
    """Return the columns of the hyperparameters that vary, without seeds."""
    return [name for name in hyperparameter_columns(table) if name not in SEEDS]


def needs_logarithm(values: Sequence[float]) -> bool:
    """Return True for positive values over a factor of 10 whose logarithm is less skewed."""
    from scipy.stats import skew  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    array = numpy.array(values, dtype=float)
    return spans_a_decade(values) and bool(abs(skew(numpy.log(array))) < abs(skew(array)))


def _description(settings: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in sorted(settings.items(), key=lambda item: item[0] != "network.name"):
        text = setting_value(value)
        if name == "network.name":
            parts.append(text.replace("_", " "))
        elif name != "seed" and text not in ("–", "none"):
            parts.append(f"{setting_name(name)} {text}")
    text = ", ".join(parts)
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[: LONGEST_NAME - 1]}…"
