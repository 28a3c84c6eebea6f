"""Robust sign error: rate of wrongly ordered pairs in the worst environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy
from jaxtyping import Float

from gapscope.base.errors import InvalidInput, check_range
from gapscope.prediction.columns import check_columns

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray


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
