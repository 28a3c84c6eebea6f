"""Granulated Kendall, conditional mutual information and robust sign error of a measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy
from jaxtyping import Float, Int

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.prediction.columns import as_texts, check_columns, finite_rows
from gapscope.prediction.correlations import kendall_tau
from gapscope.statistics.intervals import configuration_ids, members

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


VERSIONS = ("symmetric", "pgdl_exact")


@dataclass(frozen=True)
class ConditionalMutualInformation:
    """The normalized conditional mutual information, 0 to 1.

    Attributes:
        value: Smallest value over the sets of hyperparameters conditioned on.
        conditioned_on: The set that gave it.
    """

    value: float
    conditioned_on: tuple[str, ...]


def _entropy(counts: Float[Array, "cells k"], slack: float = 0.0) -> Float[Array, " cells"]:
    """Entropy in bits of each row of counts."""
    p = counts / counts.sum(1, keepdims=True)
    return -(p * numpy.log2(numpy.where(p + slack > 0, p + slack, 1.0))).sum(1)


def _information(counts: Float[Array, "cells a b"]) -> tuple[Float[Array, " cells"], Float[Array, " cells"]]:
    """Return the mutual information of each cell's table, and the entropy of its rows."""
    rows, columns = counts.sum(2), counts.sum(1)
    joint = _entropy(counts.reshape(len(counts), -1))
    return _entropy(rows) + _entropy(columns) - joint, _entropy(rows)


def _cells(codes: Sequence[Int[Array, " n"]], pairs: tuple[Int[Array, " p"], Int[Array, " p"]]) -> Int[Array, " p"]:
    """Number pairs of networks by the values of the conditioning hyperparameters."""
    cell = numpy.zeros(len(pairs[0]), dtype=int)
    for code in codes:
        size = int(code.max()) + 1
        cell = (cell * size + code[pairs[0]]) * size + code[pairs[1]]
    return numpy.unique(cell, return_inverse=True)[1]


def _tables(
    cell: Int[Array, " p"], row: Int[Array, " p"], column: Int[Array, " p"], width: int
) -> Float[Array, "c 2 w"]:
    counts = numpy.zeros((int(cell.max()) + 1, 2, width))
    numpy.add.at(counts, (cell, row, column), 1.0)
    return counts


def _symmetric(x: Float[Array, " n"], y: Float[Array, " n"], codes: Sequence[Int[Array, " n"]]) -> float:
    first, second = numpy.nonzero(y[:, None] != y[None, :])
    signs = numpy.sign(x[first] - x[second]).astype(int) + 1
    counts = _tables(_cells(codes, (first, second)), (y[first] > y[second]).astype(int), signs, 3)
    information, entropy = _information(counts)
    weights = counts.sum((1, 2))
    unknown = (weights * entropy).sum()
    return float((weights * information).sum() / unknown) if unknown > 0 else numpy.inf


def _pgdl_exact(x: Float[Array, " n"], y: Float[Array, " n"], codes: Sequence[Int[Array, " n"]]) -> float:
    first, second = (part.ravel() for part in numpy.indices((len(x), len(x))))
    larger = (x[first] > x[second]).astype(int)
    counts = _tables(_cells(codes, (first, second)), (y[first] > y[second]).astype(int), larger, 2)
    information, _ = _information(counts)
    # the competition adds 1e-12 inside the logarithm of this entropy only
    return float(information.mean() / _entropy(counts.sum(2), slack=1e-12).mean())


def conditional_mutual_information(
    table: pandas.DataFrame,
    measure: str,
    target: str = "gap",
    *,
    hyperparameters: Sequence[str],
    version: Literal["symmetric", "pgdl_exact"] = "symmetric",
) -> ConditionalMutualInformation:
    r"""Return the mutual information of measure and gap differences' signs, given settings.

    $$\mathcal K(\mu) = \min_{S} \frac{I(V_\mu; V_g \mid U_S)}{H(V_g \mid U_S)}$$

    over pairs of networks, with $V_\mu$, $V_g$ the signs of the differences, and $U_S$ the values that both networks
    have in the hyperparameters of S. 0: the measure adds nothing to S; 1: it decides every pair. The plug-in
    estimate is exact for the networks given, and biased upwards as an estimate for a population (little data a cell).

    "symmetric" takes pairs of different networks with different gaps, an equal measure as a third value of $V_\mu$,
    weighs each cell by its pairs, and minimizes over |S| = 0, 1, 2, where the settings in S do not decide every pair
    already: it does not change when the measure is negated.

    "pgdl_exact" is the score of the 2020 competition as its code computes it: |S| = 2 only, every cell weighs the
    same, self-pairs and ties count as "not larger", hence it does change when the measure is negated, and a
    perfect measure that is negated does not score 1. The competition reports 100 times this value.

    Raises:
        InvalidInput: A column is missing, a reading is not finite, or "pgdl_exact" has fewer than two
            hyperparameters.

    Jiang et al., "Fantastic generalization measures and where to find them", 2020, eq. 8 to 11; Jiang et al., "NeurIPS
    2020 competition: Predicting generalization in deep learning", 2020.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 1, 2, 2], "gap": [1, 2, 3, 4], "norm": [5, 6, 7, 8]})
    >>> conditional_mutual_information(table, "norm", hyperparameters=["width"]).value
    1.0
    """
    check_choice("version", version, VERSIONS)
    check_columns(table, [measure, target, *hyperparameters])
    x, y = table[measure].to_numpy(dtype=float), table[target].to_numpy(dtype=float)
    if not (numpy.isfinite(x).all() and numpy.isfinite(y).all()):
        raise InvalidInput(f"{measure} and {target} must be finite in every row. Drop the others, as usable_rows does.")
    if version == "pgdl_exact" and len(hyperparameters) < 2:
        raise InvalidInput(f"version='pgdl_exact' needs at least two hyperparameters; got {len(hyperparameters)}.")
    codes = {name: numpy.unique(as_texts(table[name]), return_inverse=True)[1] for name in hyperparameters}
    sizes, score = ((2,), _pgdl_exact) if version == "pgdl_exact" else ((0, 1, 2), _symmetric)
    values = {
        subset: score(x, y, [codes[name] for name in subset])
        for size in sizes
        for subset in combinations(hyperparameters, size)
    }
    worst = min(values, key=lambda subset: values[subset])
    value = max(values[worst], 0.0) if numpy.isfinite(values[worst]) else numpy.nan
    return ConditionalMutualInformation(value, worst)


@dataclass(frozen=True)
class RobustSignError:
    """Sign errors over environments: 0 if every pair is ordered correctly, 0.5 by chance.

    Attributes:
        mean: Mean over environments.
        percentile_90: Their 90th percentile.
        maximum: The worst environment: the robust error.
        environments: Number of environments kept.
        dropped: Number of environments dropped for lack of evidence.
        by_hyperparameter: The same numbers for each hyperparameter that was changed.
        by_environment: One row per retained environment: the numbers of its two configurations (`first`, `second`,
            in the order of their first rows), the `hyperparameter` that differs, and its `error`.
    """

    mean: float
    percentile_90: float
    maximum: float
    environments: int
    dropped: int
    by_hyperparameter: pandas.DataFrame
    by_environment: pandas.DataFrame


def _weights(differences: Float[Array, "a b"], n_test: int | None) -> Float[Array, "a b"]:
    """Return the confidence that two measured gaps differ, 0 to 0.5."""
    if n_test is None:
        return numpy.ones_like(differences)
    sure = numpy.maximum(0.0, 1 - 2 * numpy.exp(-2 * n_test * (numpy.abs(differences) / 2) ** 2)) ** 2
    return numpy.maximum(0.0, sure - 0.5)


def _configurations(table: pandas.DataFrame, hyperparameters: Sequence[str]) -> dict[tuple[str, ...], list[int]]:
    rows: dict[tuple[str, ...], list[int]] = {}
    for position, values in enumerate(table[list(hyperparameters)].itertuples(index=False)):
        rows.setdefault(tuple(map(str, values)), []).append(position)
    return rows


def _summary(errors: Sequence[float]) -> dict[str, float]:
    if not errors:
        return {"mean": numpy.nan, "percentile_90": numpy.nan, "maximum": numpy.nan}
    return {
        "mean": float(numpy.mean(errors)),
        "percentile_90": float(numpy.percentile(errors, 90)),
        "maximum": float(numpy.max(errors)),
    }


def robust_sign_error(
    table: pandas.DataFrame,
    measure: str,
    target: str = "gap",
    *,
    hyperparameters: Sequence[str],
    n_test: int | None = 10_000,
    least_evidence: float = 12.0,
) -> RobustSignError:
    r"""Return the sign error per environment: pairs that differ in one hyperparameter.

    $$e = \frac{\sum w\,\tfrac12\big(1 - \operatorname{sign}(\Delta\mu)\operatorname{sign}(\Delta g)\big)}{\sum w},
    \qquad w = \Big(\max\big(0,\, 1 - 2 e^{-2 n (|\Delta g|/2)^2}\big)^2 - \tfrac12\Big)_+$$

    summed over all pairs of networks (seeds) of the two configurations. The weight is a Hoeffding bound: it leaves out
    pairs whose gaps may differ only because the test set is finite. An environment is kept where the effective number
    of pairs $(\sum w)^2 / \sum w^2$ is at least `least_evidence`: with one seed a configuration it is 1 at most.
    A mean hides that most measures fail completely somewhere; the maximum does not. Exact.

    Args:
        table: One row per network; all readings must be finite. Rows of one configuration differ by their seed.
        measure: Column of the measure; larger should go with a larger gap (negate it otherwise).
        target: Column of the gap, as a difference of accuracies.
        hyperparameters: Columns that make the configuration, without the seed.
        n_test: Number of test samples behind each gap; None weighs every pair the same.
        least_evidence: Smallest effective number of pairs of an environment, the paper's is 12.

    Returns:
        The errors; NaN where no environment is kept.

    Raises:
        InvalidInput: A column is missing, a reading is not finite, or n_test is not positive.

    Dziugaite et al., "In search of robust measures of generalization", 2020, section 4 and appendix B.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 1, 2, 2], "gap": [0.1, 0.2, 0.3, 0.4], "norm": [3, 1, 2, 4]})
    >>> robust_sign_error(table, "norm", hyperparameters=["width"], n_test=None, least_evidence=4).mean
    0.25
    """
    import pandas

    check_columns(table, [measure, target, *hyperparameters])
    if n_test is not None:
        check_range("n_test", n_test, 1)
    x, y = table[measure].to_numpy(dtype=float), table[target].to_numpy(dtype=float)
    if not (numpy.isfinite(x).all() and numpy.isfinite(y).all()):
        raise InvalidInput(f"{measure} and {target} must be finite in every row. Drop the others, as usable_rows does.")
    errors: list[tuple[int, int, str, float]] = []
    dropped = 0
    numbered = enumerate(_configurations(table, hyperparameters).items())
    for (a_number, (first, ones)), (b_number, (second, others)) in combinations(numbered, 2):
        changed = [name for name, a, b in zip(hyperparameters, first, second, strict=True) if a != b]
        if len(changed) != 1:
            continue
        gaps, values = y[ones][:, None] - y[others], x[ones][:, None] - x[others]
        weights = _weights(gaps, n_test)
        total, squares = weights.sum(), (weights**2).sum()
        if total == 0 or total**2 / squares < least_evidence * (1 - 1e-9):
            dropped += 1
            continue
        error = float((weights * (1 - numpy.sign(values) * numpy.sign(gaps)) / 2).sum() / total)
        errors.append((a_number, b_number, changed[0], error))
    environments = pandas.DataFrame(errors, columns=["first", "second", "hyperparameter", "error"])
    of_name = {name: [row[3] for row in errors if row[2] == name] for name in hyperparameters}
    rows = [{**_summary(each), "environments": len(each)} for each in of_name.values()]
    parts = pandas.DataFrame(rows, index=pandas.Index(list(of_name), name="hyperparameter"))
    return RobustSignError(
        **_summary([row[3] for row in errors]),
        environments=len(errors),
        dropped=dropped,
        by_hyperparameter=parts,
        by_environment=environments,
    )
