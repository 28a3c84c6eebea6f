"""What the parts share: gap models, the paper's protocol of repeated splits, correlations with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from gapscope.estimation import GapEstimator, baselines, held_out_predictions
from gapscope.estimation.correlations import correlations

Table = Any  # a pandas.DataFrame, whose own annotations allow each column to be a table

ZETA, KAPPA = "unit_sparsity.zeta", "unit_sparsity.kappa"
TAPS = ("input", "h1", "h2", "h3")
FEATURES = ("lower_fence", "lower_quartile", "median", "upper_quartile", "upper_fence")
MARGINS = tuple(f"margin_signature.{tap}.{feature}" for tap in TAPS for feature in FEATURES)
MEDIAN_MARGINS = tuple(f"margin_signature.{tap}.median" for tap in TAPS)
TEST_SHARE = 0.1


def sparsity_model() -> GapEstimator:
    """The paper's: gap = a zeta + b kappa + c, least squares."""
    return GapEstimator(features=[ZETA, KAPPA])


def margin_model() -> GapEstimator:
    """Jiang et al. 2019: least squares on the twenty logarithmic quartile features."""
    return GapEstimator(features=list(MARGINS))


def sum_of_squares(estimator: GapEstimator, table: Table) -> tuple[float, float]:
    """Fit on all networks; return Pearson between estimate and gap, and the sum of squared residuals (Figs. 4 to 6)."""
    gap = table["gap"].to_numpy(dtype=float)
    estimate = estimator.fit(table, gap).predict(table)
    spread = estimate.std() > 1e-12 and gap.std() > 1e-12
    return float(numpy.corrcoef(estimate, gap)[0, 1]) if spread else math.nan, float(((estimate - gap) ** 2).sum())


def repeated_splits(estimator: GapEstimator, table: Table, n_splits: int = 100) -> dict[str, Any]:
    """Random 90/10 splits, as in Fig. 3D, beside the plain baselines on the same splits.

    Args:
        estimator: What is fitted on 90 % of the networks.
        table: The networks.
        n_splits: Number of splits, the paper's 100.

    Returns:
        `ssr` of each split's held-out networks, its median and maximum, `rmse` of the model ("estimator") and of the
        baselines over all held-out networks, `fit_pearson` (mean over splits), `n` and `held_out` networks.
    """
    options: dict[str, Any] = {"scheme": "splits", "n_splits": n_splits, "test_share": TEST_SHARE}
    models = {"estimator": estimator, **baselines(table)}
    found: dict[str, Table] = {name: held_out_predictions(model, table, **options) for name, model in models.items()}
    squares = {name: (rows["prediction"] - rows["target"]) ** 2 for name, rows in found.items()}
    own = found["estimator"]
    sums = squares["estimator"].groupby(own["split"], sort=False).sum()
    return {
        "n": len(table),
        "held_out": int(own["split"].value_counts().iloc[0]),
        "ssr": sums.tolist(),
        "median_ssr": float(sums.median()),
        "largest_ssr": float(sums.max()),
        "rmse": {name: float(numpy.sqrt(values.mean())) for name, values in squares.items()},
        "fit_pearson": float(own.groupby("split", sort=False)["fit_pearson"].first().mean()),
    }


def related(table: Table, measures: Sequence[str], target: str = "gap") -> Table:
    """Correlations of measures with the gap, with 95 % bootstrap intervals, without a baseline row."""
    return correlations(table, list(measures), target=target, baseline=None)


def with_interval(row: Mapping[str, Any], coefficient: str) -> str:
    """Return a coefficient and its interval in one phrase; a dash where there is none.

    Args:
        row: A row of `related`.
        coefficient: "pearson", "spearman" or "kendall".

    Returns:
        The phrase.

    >>> with_interval({"pearson": 0.5, "pearson_low": 0.2, "pearson_high": 0.75}, "pearson")
    '0.50 [0.20, 0.75]'
    """
    value, low, high = (float(row[coefficient + end]) for end in ("", "_low", "_high"))
    return "–" if math.isnan(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"


def centred(table: Table, columns: Sequence[str], group: str = "family") -> Table:
    """The table with these columns and the gap measured from the mean of their group."""
    names = [*columns, "gap"]
    return table.assign(**{name: table[name] - table.groupby(group)[name].transform("mean") for name in names})


def comparison(rows: Sequence[tuple[str, Any, Any]]) -> Table:
    """Rows (quantity, the paper's, ours) as a table."""
    import pandas

    return pandas.DataFrame(rows, columns=["quantity", "paper", "ours"])


def bootstrap_mean(values: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean."""
    drawn = numpy.random.default_rng(0).choice(numpy.asarray(values, dtype=float), (draws, len(values))).mean(1)
    low, high = numpy.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)
