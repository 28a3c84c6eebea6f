"""Tables of networks for a leaderboard: a CSV file, a pool folder, or a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.base.tables import check_columns, with_numbers
from gapscope.gap.columns import (
    complete_rows,
    full_name,
    has_unknown_settings,
    hyperparameter_columns,
    is_varied,
)
from gapscope.results.readings import BASELINE
from gapscope.statistics.intervals import configuration_ids, sample_configurations

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool
    from gapscope.results.records import Record

SEEDS = ("seed", "data.seed", "hp.seed")
# Fraction of the networks that may lack a measure: all measures are ranked on the same networks, nearly all.
MAX_MISSING = 0.1
SIZES = (BASELINE, f"m.{BASELINE}", "m.params", "m.vc_dim")


@dataclass(frozen=True)
class NetworkTable:
    """Networks with finite gaps and measures, and the roles of their columns."""

    rows: pandas.DataFrame
    measures: tuple[str, ...]
    hyperparameters: tuple[str, ...]  # varying ones, without seeds
    baseline: str | None  # column of the parameter count
    left_out: dict[str, str]  # excluded measure -> reason
    dropped: (
        int  # number of networks without a gap or a finite value, or without settings beside others
    )
    source: str
    sampled_from: int = 0  # number of networks from which the rows were sampled; 0 for all

    def sample(self, max_networks: int | None, seed: int = 0) -> NetworkTable:
        """Return at most `max_networks` rows, a random sample of whole training configurations."""
        if max_networks is None or len(self.rows) <= max_networks:
            return self
        clusters = configuration_ids(self.rows, list(self.hyperparameters))
        chosen = sample_configurations(clusters, max_networks, seed)
        rows = self.rows.iloc[chosen].reset_index(drop=True)
        varied = tuple(name for name in self.hyperparameters if is_varied(rows[name]))
        return replace(self, rows=rows, hyperparameters=varied, sampled_from=len(self.rows))


def _measures_of(table: pandas.DataFrame, where: str) -> list[str]:
    """Return the columns of the measures: the readings of a pool's table, else m.NAME."""
    columns = [str(name) for name in table.columns]
    if "gap_kind" in columns:
        from gapscope.measures.registry import list_measures

        measures = set(list_measures())
        names = [
            name for name in columns if name.split(".")[0] in measures and not name.endswith(".se")
        ]
        return [name for name in names if table[name].nunique() > 1]
    names = [name for name in columns if name.startswith("m.")]
    if not names:
        raise InvalidInput(
            f"{where} must have measures, columns named m.NAME, in addition to gap and hp.NAME; it has "
            f"{', '.join(columns)[:80]}. Rename its columns, or pass measures=[...]."
        )
    return names


def measures_lacking_values(table: pandas.DataFrame, names: Iterable[str]) -> dict[str, str]:
    """Return the measures that are not ranked, since too many networks lack them, and the reasons.

    Args:
        table: One row per network.
        names: Columns of the measures.
    """
    left_out: dict[str, str] = {}
    for name in names:
        is_missing = ~numpy.isfinite(table[name].to_numpy(dtype=float))
        if is_missing.mean() > MAX_MISSING:
            left_out[name] = f"{is_missing.sum()} of {len(table)} networks have no finite value"
    return left_out


def network_table(
    source: str | Path | Pool | pandas.DataFrame | Sequence[Record],
    *,
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] | None = None,
    target: str = "gap",
    baseline: str | None = None,
) -> NetworkTable:
    """Read the networks of a leaderboard, with the parameters of `rank_measures`.

    Raises:
        InvalidInput: A column is missing, or contains other values than numbers.
        UnreadableFile: There is no such file, or it is no table.
    """
    import pandas

    from gapscope.pools import Pool, open_pool, records_to_pandas

    if isinstance(source, str | Path) and Path(source).is_dir():
        source = open_pool(source)
    where = "the table"
    if isinstance(source, Pool):
        index = source.index()
        table = index.table()
        where = f"pool {source.folder}"
        if measures is None:
            measures = [name for name in index.readings() if table[name].nunique() > 1]
    elif isinstance(source, str | Path):
        from gapscope.data.tables import read_table  # gapscope.data loads torch

        where = str(source)
        if not Path(source).exists():
            raise UnreadableFile(
                f"{where} must be a CSV file or a pool folder; there is no such file."
            )
        table = read_table(Path(source))[0]
    elif isinstance(source, pandas.DataFrame):
        table = source
    else:
        table = records_to_pandas(source)
        where = "the list of records"
    n_networks = len(table)
    table = complete_rows(table, target=target)
    # only `_measures_of` imports the registry of measures, which loads torch
    if measures is None:
        names = _measures_of(table, where)
    else:
        names = [full_name(table, name, ("m.",)) for name in measures]
    size = baseline or next((name for name in SIZES if name in table.columns), None)
    if size is not None and size not in names:
        names.append(size)
    if hyperparameters is not None:
        hyperparameters = [full_name(table, name) for name in hyperparameters]
    check_columns(table, [*names, *(hyperparameters or ())])
    table = with_numbers(table, names)
    if hyperparameters is None:
        hyperparameters = [name for name in hyperparameter_columns(table) if name not in SEEDS]
        unknown = has_unknown_settings(table)
        if unknown.all():
            hyperparameters = []
        else:
            table = table.loc[~unknown]
    left_out = measures_lacking_values(table, names)
    complete = [name for name in names if name not in left_out]
    if not complete:
        raise InvalidInput(f"{where} must have a measure with finite values; it has none.")
    rows = complete_rows(table, complete, target=target)
    settings = [name for name in hyperparameters if is_varied(rows[name])]
    return NetworkTable(
        rows.reset_index(drop=True),
        tuple(complete),
        tuple(settings),
        size,
        left_out,
        n_networks - len(rows),
        where,
    )
