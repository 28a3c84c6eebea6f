"""Kendall's tau between networks that differ in one hyperparameter only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Int

from gapscope.base.errors import InvalidInput
from gapscope.prediction.columns import as_texts, check_columns, finite_rows
from gapscope.prediction.correlations import kendall_tau
from gapscope.statistics.clusters import configuration_ids, members

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray


@dataclass(frozen=True)
class GranulatedKendall:
    """Granulated coefficient and its parts.

    Attributes:
        value: Mean over hyperparameters; NaN where none has a defined group.
        by_hyperparameter: For each hyperparameter its `tau` (mean over groups), the number of `groups` averaged, and
            how many were `dropped` because the measure or the target is constant in them.
    """

    value: float
    by_hyperparameter: pandas.DataFrame


def _groups(table: pandas.DataFrame, varying: str, fixed: Sequence[str]) -> Iterator[Int[Array, " m"]]:
    """Group networks that agree in all of `fixed` and differ in `varying` (missing is a value)."""
    settings = configuration_ids(table, fixed) if fixed else numpy.zeros(len(table), dtype=int)
    values = as_texts(table[varying])
    for rows in members(settings):
        if len(set(values[rows])) > 1:
            yield rows


def granulated_kendall(
    table: pandas.DataFrame, measure: str, target: str = "gap", *, hyperparameters: Sequence[str]
) -> GranulatedKendall:
    r"""Return Kendall's tau-b within groups of one varying hyperparameter, averaged over all.

    $$\Psi = \frac1m \sum_{i=1}^m \psi_i, \qquad
    \psi_i = \operatorname{mean}_{\theta_{-i}} \tau_b\big(\{(\mu(\theta), g(\theta)) : \theta_i \text{ varies}\}\big)$$

    A measure that only depends on one hyperparameter scores high on the pooled tau and low here. Exact. A group in
    which the measure or the target is constant has no tau: it is dropped, and counted.

    Raises:
        InvalidInput: A column is missing, or no hyperparameter is named.

    Jiang et al., "Fantastic generalization measures and where to find them", 2020, eq. 5 and 6.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 2, 1, 2], "depth": [1, 1, 2, 2], "gap": [1, 2, 3, 4],
    ...                           "norm": [1, 2, 7, 5]})
    >>> granulated_kendall(table, "norm", hyperparameters=["width", "depth"]).value
    0.5
    """
    import pandas

    if not hyperparameters:
        raise InvalidInput("hyperparameters must name the columns that were varied; got none.")
    check_columns(table, [measure, target, *hyperparameters])
    numbers = table[[measure, target]].to_numpy(dtype=float)
    finite = finite_rows(numbers)
    settings, (x, y) = table.loc[finite, list(hyperparameters)], numbers[finite].T
    rows: list[dict[str, float]] = []
    for name in hyperparameters:
        fixed = [other for other in hyperparameters if other != name]
        taus = [kendall_tau(x[group], y[group]) for group in _groups(settings, name, fixed)]
        defined = [tau for tau in taus if numpy.isfinite(tau)]
        mean = float(numpy.mean(defined)) if defined else numpy.nan
        rows.append({"tau": mean, "groups": len(defined), "dropped": len(taus) - len(defined)})
    parts = pandas.DataFrame(rows, index=pandas.Index(list(hyperparameters), name="hyperparameter"))
    known = parts["tau"].dropna().to_numpy(dtype=float)
    return GranulatedKendall(float(known.mean()) if len(known) else numpy.nan, parts)
