"""Table rows, errors of estimates with intervals, claims, and scale of the networks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas

from gapscope.base.errors import DataNotFound
from gapscope.data import load_dataset
from gapscope_studies.kit.claims import Claim, estimate
from gapscope_studies.kit.pool import digest, in_words
from gapscope_studies.kit.statistics import Interval, bootstrap, to_list
from gapscope_studies.kit.study import RunSettings

# name of a table whose target is cut at its quartiles -> its data set
QUARTILES = {"california_quartiles": "california_housing", "concrete_quartiles": "concrete",
             "boston_quartiles": "boston_housing"}  # fmt: skip


def root_mean_square(values: Any) -> float:
    """Return the square root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def rms_error(errors: Any, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the root mean squared error with its interval over clusters."""
    values = np.asarray(errors, dtype=float)
    return bootstrap(lambda rows: root_mean_square(values[rows]), len(values), clusters)


def rms_difference(first: Any, second: Any, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Return the difference of two root mean squared errors on the same networks."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    return bootstrap(
        lambda rows: root_mean_square(a[rows]) - root_mean_square(b[rows]), len(a), clusters
    )


def error_claim(
    text: str, quantity: str, interval: Interval, *, unit: str = "data sets", **bounds: float
) -> Claim:
    """Return a claim of ours about errors of estimates, whatever the networks learned."""
    evidence = "errors of estimates; networks of any accuracy count"
    return estimate(
        "ours",
        text,
        quantity,
        interval,
        ours=True,
        unit=unit,
        compared=(),
        untrained=evidence,
        **bounds,
    )


def find_row(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> Mapping[str, Any]:
    """Return the row with this value of a key."""
    return next(row for row in rows if row[key] == value)


def to_table(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return a table of rows with three digits."""
    text = [
        {key: f"{v:.3f}" if isinstance(v, float) else str(v) for key, v in row.items()}
        for row in rows
    ]
    return pandas.DataFrame(text).fillna("")


def to_numbers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with intervals as [value, low, high]."""
    return [
        {key: to_list(v) if isinstance(v, Interval) else v for key, v in row.items()}
        for row in rows
    ]


def scale_rows(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Return rows of the table of the scale, for a study without a paper."""
    return [{"what": name, "paper": "", "here": value} for name, value in values.items()]


def provenance(setting: RunSettings, networks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of an outcome that state the scale of networks."""
    table = pandas.DataFrame(networks, columns=["data", "samples", "noise", "recipe", "seed"])
    names = sorted({str(name) for name in table["data"]})
    return {
        "stands_in_for": scale_rows(
            {
                "data": ", ".join(names),
                "training samples": in_words(table["samples"].tolist()),
                "share of wrong labels": in_words(table["noise"].tolist()),
                "network": "; ".join(sorted(set(table["recipe"]))),
                "networks": str(len(networks)),
                "seeds": str(table["seed"].nunique()),
            }
        ),
        "seeds": sorted({int(seed) for seed in table["seed"]}),
        "data": hashes_of(setting, *sorted({QUARTILES.get(name) or name for name in names})),
    }


def hashes_of(setting: RunSettings, *names: str) -> dict[str, str]:
    """Return the hash of each data set, or a note if it is missing (readings may be stored)."""
    hashes = dict.fromkeys(names, "not on this machine")
    for name in names:
        with suppress(DataNotFound):
            hashes[name] = digest(load_dataset(name, root=setting.data_root))
    return hashes
