"""Tables with one row per run: differences by seed, means with intervals per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gapscope_studies.kit.statistics import mean

if TYPE_CHECKING:
    from gapscope_studies.kit.study import Table


def differences(runs: Table, one: str, other: str, column: str) -> Any:
    """Return a column of one method minus that of the other by seed, for seeds that both have.

    >>> import pandas
    >>> runs = pandas.DataFrame({"method": list("aabb"), "seed": [0, 1, 0, 2], "loss": [3.0, 4.0, 1.0, 2.0]})
    >>> differences(runs, "a", "b", "loss").to_dict()
    {0: 2.0}
    """
    a, b = (runs[runs["method"] == name].set_index("seed")[column] for name in (one, other))
    seeds = a.index.intersection(b.index)
    return a[seeds] - b[seeds]


def interval_table(runs: Table, by: str | Sequence[str], titles: Mapping[str, str]) -> Table:
    """Return means with 95 % t intervals as texts, one row per group.

    Values that are NaN (of runs that diverged) are skipped.

    >>> import pandas
    >>> interval_table(pandas.DataFrame({"method": "a", "x": [1.0, 2.0, 3.0]}), "method", {"x": "loss"}).to_dict("list")
    {'method': ['a'], 'loss': ['2 [-0.484, 4.48]']}
    """
    groups = runs.groupby(by if isinstance(by, str) else list(by), sort=False)[list(titles)]
    table = groups.agg(lambda values: str(mean(values.dropna().to_numpy())))
    return table.rename(columns=dict(titles)).reset_index()
