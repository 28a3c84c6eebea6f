"""Several networks on the same data: ranked by every measure, with intervals and the size baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapscope.assessment.measure import measure
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.records import BASELINE, Readings
from gapscope.base.samples import Samples, as_samples

if TYPE_CHECKING:
    import pandas

RANK_SIGNS = {"lower": 1.0, "higher": -1.0, "none": float("nan")}


def _jackknife(name: str, without: Sequence[Readings]) -> float:
    r"""Standard error over samples, $\sqrt{\frac{g-1}{g} \sum_j (\theta_{(j)} - \bar\theta)^2}$ for g groups."""
    values = [readings[name].value for readings in without]
    return ((len(values) - 1) * statistics.pvariance(values)) ** 0.5


def _without_each_group(samples: Samples, n_groups: int) -> list[Samples]:
    group = torch.arange(len(samples)) % n_groups
    return [samples.subset(torch.nonzero(group != j)[:, 0]) for j in range(n_groups)]


def _rows(name: str, network: nn.Module, samples: Samples, n_groups: int, **options: Any) -> list[dict[str, Any]]:
    readings = measure(network, samples, **options)
    parts = _without_each_group(samples, n_groups)
    without = [measure(network, part, **options) for part in parts]
    rows = []
    for reading in readings:
        error = reading.standard_error
        error = _jackknife(reading.name, without) if error is None else error
        row = {"measure": reading.name, "network": name, "value": reading.value, "standard_error": error}
        rows.append(row | {"direction": reading.direction, "sign": RANK_SIGNS[reading.direction]})
    return rows


def _ranked(table: pandas.DataFrame, z: float) -> pandas.DataFrame:
    table["rank"] = (table["sign"] * table["value"]).groupby(table["measure"]).rank(method="min")
    table["low"] = table["value"] - z * table["standard_error"]
    table["high"] = table["value"] + z * table["standard_error"]
    return table


def compare(
    networks: Mapping[str, nn.Module],
    data: Any,
    measures: Sequence[str] | None = None,
    *,
    n_groups: int = 10,
    level: float = 0.95,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> pandas.DataFrame:
    """Rank networks by every measure on the same samples, with intervals over samples and the size beside them.

    The interval is value ± z * standard error: the measure's own standard error where it states one, else the
    delete-a-group jackknife over `n_groups` interleaved groups of samples (an estimate, for measures smooth in the
    samples). Where intervals overlap, the order of two networks is not settled by these samples.

    Args:
        networks: Name -> network.
        data: Training data, in any form that `measure` takes.
        measures: Names of measures; None takes all whose cost is linear in the number of samples.
        n_groups: Groups of the jackknife; every measure is taken n_groups + 1 times of every network.
        level: Nominal coverage of the intervals.
        options: Measure name -> keyword options of that measure.
        seed: Seed of the measures that draw noise or probes.

    Returns:
        One row for each measure and network: measure, network, value, standard_error, low, high, direction, and rank
        (1 is the one that goes with the smallest gap; NaN where no direction is known). `parameter_count` is always
        among the measures.

    Raises:
        InvalidInput: Fewer than two networks, or more groups than samples.

    >>> table = compare({"small": nn.Linear(2, 2), "large": nn.Linear(2, 9)}, torch.ones(10, 2), ["parameter_count"])
    >>> table[["network", "value", "rank"]].values.tolist()
    [['small', 6.0, 1.0], ['large', 27.0, 2.0]]
    """
    import pandas

    samples = as_samples(data)
    if len(networks) < 2:
        raise InvalidInput(f"compare needs at least two networks; got {len(networks)}. Use measure for one.")
    check_range("n_groups", n_groups, 2, len(samples))
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    names = measures if measures is None or BASELINE in measures else [*measures, BASELINE]
    rows = [
        row
        for name, network in networks.items()
        for row in _rows(name, network, samples, n_groups, measures=names, options=options, seed=seed)
    ]
    table = _ranked(pandas.DataFrame(rows), statistics.NormalDist().inv_cdf((1 + level) / 2))
    order = list(dict.fromkeys(table["measure"]))
    columns = ["measure", "network", "value", "standard_error", "low", "high", "direction", "rank"]
    table = table.assign(place=[order.index(name) for name in table["measure"]]).sort_values(by=["place", "rank"])
    return table.filter(items=columns).reset_index(drop=True)
