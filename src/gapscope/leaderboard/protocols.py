"""All rank protocols side by side: they rank the same measures differently, so none of them is shown alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy

from gapscope.prediction.columns import usable_rows
from gapscope.leaderboard.conditional_mutual_information import conditional_mutual_information
from gapscope.prediction.correlations import correlations
from gapscope.leaderboard.granulated_kendall import granulated_kendall
from gapscope.leaderboard.robust_sign_error import robust_sign_error

if TYPE_CHECKING:
    import pandas


def compare_protocols(
    table: pandas.DataFrame,
    measures: Sequence[str],
    *,
    hyperparameters: Sequence[str],
    target: str = "gap",
    baseline: str | None = "parameter_count",
    n_test: int | None = 10_000,
    least_evidence: float = 1.0,
) -> pandas.DataFrame:
    r"""Every measure by every protocol: pooled tau, granulated tau, mutual information, sign errors, $R^2$.

    A pure count of parameters can explain most of the variance of the gap ($R^2$) and say nothing once the
    hyper-parameters are known (mutual information 0): the columns must be read together.

    Args:
        table: One row a network; for each measure the networks without a finite reading are left out.
        measures: Columns of the measures.
        hyperparameters: Columns of the hyper-parameters that were varied, without the seed.
        target: Column of the gap.
        baseline: Column that always stands beside the measures; None only where the table has no size at all.
        n_test: Number of test samples behind each gap, see `robust_sign_error`.
        least_evidence: Smallest effective number of pairs of an environment; the paper's is 12, one seed gives 1.

    Returns:
        One row a measure: `n`, `kendall`, `granulated`, `granulated_dropped`, `mutual_information` (symmetric),
        `pgdl_score` (100 times the competition's, NaN with fewer than two hyper-parameters), `sign_error` and
        `worst_sign_error` (of the measure in the direction of its own tau), `environments`, `r_squared` of the
        straight line, and `is_baseline`.

    Raises:
        InvalidInput: A column is missing.

    >>> import pandas
    >>> table = pandas.DataFrame({"width": [1, 2, 1, 2], "depth": [1, 1, 2, 2], "gap": [1, 2, 3, 4],
    ...                           "norm": [1, 2, 3, 4]})
    >>> found = compare_protocols(table, ["norm"], hyperparameters=["width", "depth"], baseline=None, n_test=None)
    >>> found.loc["norm", ["kendall", "granulated", "mutual_information", "worst_sign_error"]].tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    import pandas

    names = [*measures] if baseline is None or baseline in measures else [*measures, baseline]
    rows: list[dict[str, float]] = []
    for name in names:
        finite = usable_rows(table, [name], target=target)
        pooled = correlations(finite, [name], target=target, n_bootstrap=1, baseline=None).to_dict("records")[0]
        kendall = float(pooled["kendall"])
        granulated = granulated_kendall(finite, name, target, hyperparameters=hyperparameters)
        information = conditional_mutual_information(finite, name, target, hyperparameters=hyperparameters)
        score = numpy.nan
        if len(hyperparameters) > 1:
            exact = conditional_mutual_information(
                finite, name, target, hyperparameters=hyperparameters, version="pgdl_exact"
            )
            score = 100 * exact.value
        directed = finite.assign(**{name: -finite[name]}) if kendall < 0 else finite
        errors = robust_sign_error(
            directed, name, target, hyperparameters=hyperparameters, n_test=n_test, least_evidence=least_evidence
        )
        rows.append(
            {
                "n": len(finite),
                "kendall": kendall,
                "granulated": granulated.value,
                "granulated_dropped": sum(granulated.by_hyperparameter["dropped"].tolist()),
                "mutual_information": information.value,
                "pgdl_score": score,
                "sign_error": errors.mean,
                "worst_sign_error": errors.maximum,
                "environments": errors.environments,
                "r_squared": float(pooled["pearson"]) ** 2,
                "is_baseline": name == baseline,
            }
        )
    return pandas.DataFrame(rows, index=pandas.Index(names, name="measure"))
