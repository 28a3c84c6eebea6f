"""Clusters of dependent networks: all seeds of one training configuration are one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Int

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray


def configuration_ids(table: pandas.DataFrame, hyperparameters: Sequence[str]) -> Int[Array, " n"]:
    """Number the training configurations (equal hyperparameters, equal number).

    >>> import pandas
    >>> configuration_ids(pandas.DataFrame({"width": [1, 2, 1], "seed": [0, 0, 1]}), ["width"]).tolist()
    [0, 1, 0]
    """
    if not hyperparameters:
        return numpy.arange(len(table))
    rows = [tuple(map(str, row)) for row in table[list(hyperparameters)].itertuples(index=False)]
    numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
    return numpy.array([numbers[row] for row in rows])


def members(clusters: Int[Array, " n"]) -> list[Int[Array, " m"]]:
    """Return the rows of each cluster."""
    return [numpy.flatnonzero(clusters == number) for number in range(int(clusters.max(initial=-1)) + 1)]


def sample_configurations(clusters: Int[Array, " n"], most: int, seed: int = 0) -> Int[Array, " m"]:
    """Return the rows of random whole configurations, at most `most` rows.

    >>> sample_configurations(numpy.array([0, 0, 1, 1, 2, 2]), 5).tolist()
    [0, 1, 4, 5]
    """
    if len(clusters) <= most:
        return numpy.arange(len(clusters))
    sizes = numpy.bincount(clusters)
    order = numpy.random.default_rng(seed).permutation(len(sizes))
    # one training configuration at least, however large
    kept = max(1, int(numpy.searchsorted(numpy.cumsum(sizes[order]), most, side="right")))
    return numpy.flatnonzero(numpy.isin(clusters, order[:kept]))


def permutations(clusters: Int[Array, " n"], count: int, seed: int) -> Iterator[Int[Array, " n"]]:
    """Yield random permutations of whole clusters: entry i is the row whose value row i gets.

    Clusters are exchanged with others of their size, and rows inside them are shuffled, so that dependent rows stay
    together.

    >>> drawn = next(permutations(numpy.array([0, 0, 1, 1, 2]), 1, 0))
    >>> int(drawn[4]), abs(int(drawn[0]) - int(drawn[1]))
    (4, 1)
    """
    rng = numpy.random.default_rng(seed)
    sizes: dict[int, list[Int[Array, " m"]]] = {}
    for rows in members(clusters):
        sizes.setdefault(len(rows), []).append(rows)
    classes = [numpy.stack(rows) for rows in sizes.values()]
    for _ in range(count):
        drawn = numpy.arange(len(clusters))
        for rows in classes:
            drawn[rows] = rng.permuted(rng.permutation(rows), axis=1)
        yield drawn
