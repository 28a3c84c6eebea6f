"""Table rows, errors of estimates with intervals, claims, and facts about the networks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from gapscope.base.errors import DataNotFound
from gapscope.data import load_dataset
from gapscope_studies.kit.claims import Claim, estimate
from gapscope_studies.kit.pool import digest, in_words
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import RunSettings

# name of a table whose target is cut at its quartiles -> its data set
QUARTILES = {"california_quartiles": "california_housing", "concrete_quartiles": "concrete",
             "boston_quartiles": "boston_housing"}  # fmt: skip


def root_mean_square(values: Any) -> float:
    """Square root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def rms_error(errors: Any, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Root mean squared error with its interval over clusters."""
    values = np.asarray(errors, dtype=float)
    return bootstrap(lambda rows: root_mean_square(values[rows]), len(values), clusters)


def rms_difference(first: Any, second: Any, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Root mean square of the first errors minus that of the second, on the same networks."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    return bootstrap(lambda rows: root_mean_square(a[rows]) - root_mean_square(b[rows]), len(a), clusters)


def error_claim(says: str, quantity: str, interval: Interval, *, unit: str = "data sets", **bounds: float) -> Claim:
    """Claim of ours about errors of estimates: no network need have learned for it."""
    what = "errors of estimates; networks of any accuracy count"
    return estimate("ours", says, quantity, interval, ours=True, unit=unit, compared=(), untrained=what, **bounds)


def to_table(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Table of rows with three digits."""
    text = [{key: f"{v:.3f}" if isinstance(v, float) else str(v) for key, v in row.items()} for row in rows]
    return pandas.DataFrame(text).fillna("")


def to_numbers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with intervals as [value, low, high]."""
    return [{key: [v.value, v.low, v.high] if isinstance(v, Interval) else v for key, v in row.items()} for row in rows]


def provenance(setting: RunSettings, networks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of an outcome that state its scale, from facts of each network."""
    table = pandas.DataFrame(networks, columns=["data", "samples", "noise", "recipe", "seed"])
    facts = {
        "data": ", ".join(sorted(set(table["data"]))),
        "training samples": in_words(table["samples"].tolist()),
        "share of wrong labels": in_words(table["noise"].tolist()),
        "network": "; ".join(sorted(set(table["recipe"]))),
        "networks": str(len(networks)),
        "seeds": str(table["seed"].nunique()),
    }
    return {
        "stands_in_for": [{"what": what, "paper": "", "here": value} for what, value in facts.items()],
        "seeds": sorted({int(seed) for seed in table["seed"]}),
        "data": {
            name: hash_of(name, setting) for name in sorted({QUARTILES.get(d, d) for d in facts["data"].split(", ")})
        },
    }


def hash_of(name: str, setting: RunSettings) -> str:
    """Return the hash of a whole data set, or a note where it is missing.

    Stored networks are evaluated without their data.
    """
    try:
        return digest(load_dataset(name, root=setting.data_root))
    except DataNotFound:
        return "not on this machine"
