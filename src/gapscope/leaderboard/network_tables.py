"""Tables of networks for a leaderboard: a CSV file, a pool folder, or a data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

from gapscope.base.errors import InvalidInput, UnreadableFile
from gapscope.prediction.columns import check_columns, complete_rows, hyperparameter_columns, takes_several
from gapscope.results.readings import BASELINE
from gapscope.statistics.intervals import configuration_ids, sample_configurations

if TYPE_CHECKING:
    import pandas

    from gapscope.pools import Pool

SETTING, MEASURE = "hp.", "m."
SEEDS = ("seed", "data.seed", "hp.seed")
SIZES = (BASELINE, f"m.{BASELINE}", "m.params", "m.vc_dim")
# A measure without values for a larger fraction of networks is excluded, so that all use the same networks.
MOST_MISSING = 0.1


@dataclass(frozen=True)
class NetworkTable:
    """Networks with finite gaps and measures, and which column is what.

    Attributes:
        rows: One row per network.
        measures: Columns of the measures.
        hyperparameters: Columns of the hyperparameters that vary, without seeds.
        baseline: Column of the parameter count; None without one.
        left_out: Measure -> why it is not among `measures`.
        dropped: Number of networks that were excluded because a number is not finite.
        source: Description of the table.
        sampled_from: Number of networks from which the rows were sampled; 0 if they are all.
    """

    rows: pandas.DataFrame
    measures: tuple[str, ...]
    hyperparameters: tuple[str, ...]
    baseline: str | None
    left_out: dict[str, str]
    dropped: int
    source: str
    sampled_from: int = 0

    def sampled(self, most: int | None, seed: int = 0) -> NetworkTable:
        """Return a random sample of whole training configurations, at most `most` networks (None for all)."""
        if most is None or len(self.rows) <= most:
            return self
        rows = self.rows.iloc[
            sample_configurations(configuration_ids(self.rows, list(self.hyperparameters)), most, seed)
        ]
        settings = [name for name in self.hyperparameters if rows[name].nunique(dropna=False) > 1]
        return replace(
            self, rows=rows.reset_index(drop=True), hyperparameters=tuple(settings), sampled_from=len(self.rows)
        )


def read_csv_table(path: Path) -> pandas.DataFrame:
    """Read a CSV file with a header line, or raise UnreadableFile."""
    import pandas

    try:
        table = pandas.read_csv(path)
    except FileNotFoundError:
        raise UnreadableFile(f"{path} must be a CSV file or a pool folder; there is no such file.") from None
    except (ValueError, OSError) as error:
        raise UnreadableFile(f"{path} must be a CSV file with a header line; reading it failed: {error}.") from None
    return table


def _settings_of(table: pandas.DataFrame) -> list[str]:
    return [name for name in hyperparameter_columns(table) if name not in SEEDS]


def _measures_of(table: pandas.DataFrame, where: str) -> list[str]:
    measures = [str(name) for name in table.columns if str(name).startswith(MEASURE)]
    if not measures:
        raise InvalidInput(
            f"{where} must have measures, columns named m.NAME, in addition to gap and hp.NAME; it has "
            f"{', '.join(map(str, table.columns))[:200]}. Rename its columns, or pass measures=[...]."
        )
    return measures


def _pool_readings(table: pandas.DataFrame) -> list[str]:
    """Return the columns whose names begin with that of a registered measure."""
    from gapscope.measures.registry import list_measures

    measures = set(list_measures())
    names = [str(name) for name in table.columns if str(name).split(".")[0] in measures]
    return [name for name in names if not name.endswith(".se")]


def _numbers(table: pandas.DataFrame, names: Sequence[str]) -> pandas.DataFrame:
    import pandas

    for name in names:
        try:
            table = table.assign(**{name: pandas.to_numeric(table[name])})
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"Column {name!r} must hold numbers; {error}. Correct or drop it.") from None
    return table


def network_table(
    source: str | Path | Pool | pandas.DataFrame,
    *,
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] | None = None,
    target: str = "gap",
    baseline: str | None = None,
) -> NetworkTable:
    """Read the networks of a leaderboard.

    Args:
        source: A CSV file or data frame with a row per network and columns `gap`, `hp.NAME` and `m.NAME`; a pool, its
            folder, or its table.
        measures: Columns of the measures; None takes all (`m.*`; the readings of a pool).
        hyperparameters: Columns of the hyperparameters; None takes all that vary (`hp.*`; the settings of a pool).
        baseline: Column of the size; None takes `parameter_count` or `m.vc_dim` where there is one.

    Raises:
        UnreadableFile: There is no such file or pool, or it is no table.
        InvalidInput: A column is missing, or holds something else than numbers.
    """
    from gapscope.pools import Pool, open_pool

    if isinstance(source, str | Path) and Path(source).is_dir():
        source = open_pool(source)
    if isinstance(source, Pool):
        records = source.index()
        table, where = records.table(), f"pool {source.folder}"
        known = [name for name in records.readings() if table[name].nunique() > 1]
    elif not isinstance(source, str | Path) and "gap_kind" in source:  # Pool.to_pandas()
        table, where = source, "the table"
        # the names of all measures, whose import loads torch, are read only if needed
        known = [] if measures is not None else [name for name in _pool_readings(table) if table[name].nunique() > 1]
    else:
        table = read_csv_table(Path(source)) if isinstance(source, str | Path) else source
        where = str(source) if isinstance(source, str | Path) else "the table"
        known = list(measures) if measures is not None else _measures_of(table, where)
    names = list(measures if measures is not None else known)
    size = baseline or next((name for name in SIZES if name in table.columns), None)
    if size is not None and size not in names:
        names.append(size)
    settings = list(hyperparameters if hyperparameters is not None else _settings_of(table))
    check_columns(table, [target, *names, *settings])
    table = complete_rows(_numbers(table, [*names, target]), target=target)
    finite = {name: numpy.isfinite(table[name].to_numpy(dtype=float)) for name in names}
    left_out = {
        name: f"{int((~is_finite).sum())} of {len(table)} networks have no finite value"
        for name, is_finite in finite.items()
        if (~is_finite).mean() > MOST_MISSING
    }
    complete = [name for name in names if name not in left_out]
    if not complete:
        raise InvalidInput(f"{where} must have a measure with finite values; it has none.")
    rows = complete_rows(table, complete, target=target)
    settings = [name for name in settings if takes_several(rows[name])]
    return NetworkTable(
        rows.reset_index(drop=True), tuple(complete), tuple(settings), size, left_out, len(table) - len(rows), where
    )
