"""Conditional mutual information of a measure and the gap given hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Literal

import numpy
from jaxtyping import Float, Int

from gapscope.base.errors import InvalidInput, check_choice
from gapscope.prediction.columns import as_texts, check_columns

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
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
