"""Rows of this study's tables, errors of estimates with intervals, claims about them, and what stands behind a part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from gapscope.base.errors import DataNotFound
from gapscope.data import load_dataset
from gapscope_studies.expected_accuracy.runs import QUARTILES
from gapscope_studies.kit.claims import Claim, measured
from gapscope_studies.kit.pool import digest, in_words
from gapscope_studies.kit.statistics import Interval, bootstrap
from gapscope_studies.kit.study import RunSettings


def root_mean_square(values: Any) -> float:
    """Square root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def rms_error(errors: Any, clusters: Sequence[Hashable] | None = None, **options: Any) -> Interval:
    """Root mean squared error with its interval over clusters."""
    values = np.asarray(errors, dtype=float)
    return bootstrap(lambda rows: root_mean_square(values[rows]), len(values), clusters, **options)


def rms_difference(first: Any, second: Any, clusters: Sequence[Hashable] | None = None) -> Interval:
    """Root mean square of the first errors minus that of the second, on the same networks."""
    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    return bootstrap(lambda rows: root_mean_square(a[rows]) - root_mean_square(b[rows]), len(a), clusters)


def error_claim(says: str, quantity: str, found: Interval, *, unit: str = "data sets", **bounds: float) -> Claim:
    """A claim of ours about errors of estimates: no network need have learned for it."""
    what = "errors of estimates; networks of any accuracy count"
    return measured("ours", says, quantity, found, ours=True, unit=unit, compared=(), untrained=what, **bounds)


def shown(row: Mapping[str, Any]) -> dict[str, str]:
    """The row with three digits."""
    return {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in row.items()}


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with intervals as [value, low, high]."""
    return {
        name: [value.value, value.low, value.high] if isinstance(value, Interval) else value
        for name, value in row.items()
    }


def behind(setting: RunSettings, networks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields of an outcome that say at what scale it was run, from facts of each network."""
    columns = {name: [network[name] for network in networks] for name in ("data", "samples", "noise", "recipe", "seed")}
    here = {
        "data": ", ".join(sorted(set(columns["data"]))),
        "training samples": in_words(columns["samples"]),
        "share of wrong labels": in_words(columns["noise"]),
        "network": "; ".join(sorted(set(columns["recipe"]))),
        "networks": str(len(networks)),
        "seeds": str(len(set(columns["seed"]))),
    }
    names = sorted({str(QUARTILES.get(name, name)) for name in columns["data"]})
    return {
        "stands_in_for": [{"what": what, "paper": "", "here": value} for what, value in here.items()],
        "seeds": sorted(set(columns["seed"])),
        "data": {name: hash_of(name, setting) for name in names},
    }


def hash_of(name: str, setting: RunSettings) -> str:
    """The hash of a whole data set. Stored networks are judged without their data, and the page says so."""
    try:
        return digest(load_dataset(name, root=setting.data_root))
    except DataNotFound:
        return "not on this machine"
