"""Cross-validated gap estimates of a pool, and those of the baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy

from gapscope.prediction.columns import complete_rows, finite_rows
from gapscope.prediction.cross_validation import baselines, cross_val_predict
from gapscope.prediction.defaults import suggest_estimator
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope.results.records import Record, records_to_pandas

if TYPE_CHECKING:
    import pandas

FEWEST = 3
# beyond so many networks nothing is refitted without each of them: the time grows with more than their square
MOST_LEFT_OUT = 100
N_FOLDS = 20


def suggest_scheme(n: int) -> str:
    """Return the scheme for n networks: "leave_one_out" up to `MOST_LEFT_OUT`, "folds" beyond."""
    return "leave_one_out" if n <= MOST_LEFT_OUT else "folds"


def with_interval_for(estimator: GapEstimator, n: int) -> GapEstimator:
    """Return the estimator with intervals that n networks can afford: "cv+" beyond 100."""
    if n > MOST_LEFT_OUT:
        estimator.interval, estimator.n_folds = "cv+", N_FOLDS
    return estimator


def cross_validate_pool(
    records: Sequence[Record], *, on_fit: Callable[[int, int], None] | None = None
) -> tuple[GapEstimator, pandas.DataFrame]:
    """Fit the suggested estimator on a pool, and cross-validate it.

    Up to 100 networks are left out one by one, with intervals of the jackknife+; more are dealt into 20 folds ("cv+"),
    because the time would grow with more than the square of their number.

    Returns:
        The estimator fitted on all usable networks, and one row per network as from `cross_val_predict`.

    Raises:
        InvalidInput: No reading varies, or none is finite in every finished network.
    """
    estimator = suggest_estimator(records)
    table = complete_rows(records_to_pandas(records), estimator.features or [])
    estimator = with_interval_for(estimator, len(table))
    predictions = cross_val_predict(
        estimator, table, scheme=suggest_scheme(len(table)), n_splits=N_FOLDS, on_fit=on_fit
    )
    return estimator.fit(table, table["gap"]), predictions.loc[table.index]


def baseline_errors(
    table: pandas.DataFrame, held_out: Sequence[str], answered: Sequence[str]
) -> dict[str, list[float]]:
    """Return the errors of every baseline that can be fitted, on networks `answered`.

    They are fitted on the networks that are not `held_out`; if all are, each is estimated from the others.
    """
    table = complete_rows(table)
    held, rest = table.loc[list(answered)], table.drop(list(held_out))
    errors: dict[str, list[float]] = {}
    for name, model in baselines(table).items():
        columns = list(model.features or ())
        if not numpy.isfinite(held[columns].to_numpy(dtype=float)).all():
            continue
        model.interval = "none"
        fitted_on = rest[finite_rows(rest[columns].to_numpy(dtype=float))]
        if len(fitted_on) >= FEWEST:
            estimates = model.fit(fitted_on, fitted_on["gap"]).predict(held)
        elif len(held) >= FEWEST:
            found = cross_val_predict(model, held, scheme=suggest_scheme(len(held)), n_splits=N_FOLDS)
            estimates = found.loc[held.index, "prediction"].to_numpy()
        else:
            continue
        errors[name] = (estimates - held["gap"].to_numpy(dtype=float)).tolist()
    return errors
