"""Cross-validated errors of a gap estimator, with mean gap, size and train loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Int

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.gap.columns import complete_rows, finite_rows, suggest_estimator
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.results.progress import progress
from gapscope.results.records import Record, as_records, records_to_pandas
from gapscope.statistics.correlations import pearson_correlation
from gapscope.statistics.intervals import bootstrap_weights, percentile_interval

if TYPE_CHECKING:
    import pandas

Array = numpy.ndarray
SCHEMES = ("leave_one_out", "folds", "splits")
MEAN_GAP = "mean gap"
# a line has two parameters
MIN_NETWORKS = 3
# above this number of networks folds replace leave-one-out, whose time grows with more than the square
MAX_LEAVE_ONE_OUT = 100
# each fold fits on 95 % of the networks
N_FOLDS = 20


@check_arguments
def baselines(table: pandas.DataFrame) -> dict[str, GapEstimator]:
    """Return unfitted baselines by name: mean gap, log parameter count, train loss.

    Args:
        table: One row per network, as from `records_to_pandas`. A baseline whose column (`parameter_count`,
            `train_loss`) is missing is omitted.
    """
    result = {MEAN_GAP: GapEstimator(features=())}
    if "parameter_count" in table.columns:
        result["parameter_count"] = GapEstimator(
            features=("parameter_count",), log_features=("parameter_count",)
        )
    if "train_loss" in table.columns:
        result["train_loss"] = GapEstimator(features=("train_loss",))
    return result


def _splits(
    n: int, scheme: str, n_splits: int, test_share: float, seed: int
) -> list[Int[Array, " test"]]:
    """Return the test rows of each split."""
    # not scikit-learn's splitters: their RandomState would change the splits
    rng = numpy.random.default_rng(seed)
    if scheme == "splits":
        return [
            numpy.sort(rng.permutation(n)[: max(1, round(test_share * n))]) for _ in range(n_splits)
        ]
    if scheme == "folds":
        return [
            numpy.sort(part) for part in numpy.array_split(rng.permutation(n), min(n_splits, n))
        ]
    return [numpy.array([row]) for row in range(n)]


@check_arguments
def cross_val_predict(
    estimator: GapEstimator,
    table: pandas.DataFrame,
    *,
    target: str = "gap",
    scheme: str = "leave_one_out",
    n_splits: int = 100,
    test_share: float = 0.1,
    level: float = 0.9,
    seed: int = 0,
    on_fit: Callable[[int, int], None] | None = None,
) -> pandas.DataFrame:
    """Estimate each network by an estimator that was fitted without it.

    Networks that are unfinished or without finite readings and target are omitted. Common parameters: see
    `gapscope.gap`.

    Args:
        estimator: Estimator that names its features; it is cloned.
        table: Records of a pool, or one row per network as from `records_to_pandas`.
        target: Column that is estimated.
        scheme: "leave_one_out"; "folds" (`n_splits` random folds; for hundreds of networks); "splits" (random splits,
            the paper's are 90/10, 100 times).
        n_splits: Number of random splits, or of folds.
        test_share: Fraction of the networks in the test part of a random split.
        level: Nominal coverage of the intervals.
        seed: Seed of all random numbers.
        on_fit: Called after each fit with the numbers of fits done and of all.

    Returns:
        One row for each network and split: `split`, `target`, `prediction`, `low`, `high`, `verdict`, `reason`, and
        `fit_pearson`, the correlation of estimates and targets among the networks fitted on.

    Raises:
        InvalidInput: The scheme is unknown, or the estimator does not name its features.
    """
    import pandas

    check_choice("scheme", scheme, SCHEMES)
    if estimator.features is None:
        raise InvalidInput(
            "The estimator must name its features to be cross-validated on a table; got features=None, which would "
            "use the gap itself as a reading. Pass features=reading_columns(records)."
        )
    check_range("test_share", test_share, 0, 1, low_open=True, high_open=True)
    check_range("n_splits", n_splits, 1)
    table = complete_rows(table, list(estimator.features), target=target)
    parts: list[pandas.DataFrame] = []
    splits = _splits(len(table), scheme, n_splits, test_share, seed)
    n_fitted = len(table) - max(len(test) for test in splits)
    if n_fitted < 2:
        way = {"splits": f"a test_share below {test_share:g}, or ", "folds": "n_splits of 2, or "}
        raise InvalidInput(
            f"Each fit of {scheme!r} needs two networks or more; got {n_fitted} of {len(table)}. Pass "
            f"{way.get(scheme, '') if len(table) > 2 else ''}more networks."
        )
    with progress("cross-validating", len(splits), shown=on_fit is None) as bar:
        for number, test in enumerate(splits):
            train = table.iloc[numpy.setdiff1d(numpy.arange(len(table)), test)]
            held_out = table.iloc[test]
            fitted = copy(estimator).fit(train, train[target])
            part = fitted.assess(held_out, level=level, refuse=False)
            part.insert(0, "split", held_out.index[0] if scheme == "leave_one_out" else str(number))
            part.insert(1, "target", held_out[target].astype(float))
            fit_pearson = pearson_correlation(
                fitted.predict(train), train[target].to_numpy(dtype=float)
            )
            parts.append(part.assign(fit_pearson=fit_pearson))
            bar.advance()
            if on_fit is not None:
                on_fit(number + 1, len(splits))
    return pandas.concat(parts)


def _metrics(rows: Mapping[str, Array], mean_gap: bool) -> dict[str, float]:
    """Return the metrics of some networks (the mean gap has no correlation)."""
    errors = rows["prediction"] - rows["target"]
    covered = (rows["low"] <= rows["target"]) & (rows["target"] <= rows["high"])
    inside = rows["inside"].astype(bool)
    return {
        "ssr": float((errors**2).sum()),
        "rmse": float(numpy.sqrt((errors**2).mean())),
        "mae": float(numpy.abs(errors).mean()),
        "pearson": numpy.nan
        if mean_gap
        else pearson_correlation(rows["prediction"], rows["target"]),
        "coverage": float(covered.mean()),
        "coverage_inside": float(covered[inside].mean()) if inside.any() else numpy.nan,
        "interval_width": float((rows["high"] - rows["low"]).mean()),
        "refused": float(1 - inside.mean()),
    }


def _summary(
    predictions: pandas.DataFrame, scheme: str, mean_gap: bool, n_bootstrap: int, seed: int
) -> list[dict[str, object]]:
    """Return one row per metric, with the spread over splits or a bootstrap interval."""
    import pandas

    rows = {
        name: predictions[name].to_numpy(dtype=float)
        for name in ("target", "prediction", "low", "high")
    }
    rows["inside"] = (predictions["verdict"] == "inside").to_numpy()
    splits = predictions.groupby("split", sort=False)
    if scheme == "splits":
        parts = list(splits.indices.values())
        level = 0.9
        interval = f"5th to 95th percentile of {len(parts)} splits"
    else:  # resamples of the networks
        counts = bootstrap_weights(len(predictions), n_bootstrap, seed).astype(int)
        parts = [numpy.repeat(numpy.arange(len(predictions)), count) for count in counts]
        level = 0.95
        interval = "95 % bootstrap over networks"
    metrics = pandas.DataFrame(
        [_metrics({key: values[part] for key, values in rows.items()}, mean_gap) for part in parts]
    )
    values = metrics.mean() if scheme == "splits" else pandas.Series(_metrics(rows, mean_gap))
    summaries = [(key, value, metrics[key], level, interval) for key, value in values.items()]
    if not mean_gap:
        fits = splits["fit_pearson"].first()
        interval = f"5th to 95th percentile of {len(fits)} fits"
        summaries.append(("fit_pearson", fits.mean(), fits, 0.9, interval))
    result: list[dict[str, object]] = []
    for metric, value, sample, fraction, interval in summaries:
        low, high = percentile_interval(sample.to_numpy(), fraction)
        result.append(
            {"metric": metric, "value": value, "low": low, "high": high, "interval": interval}
        )
    return result


@check_arguments
def cross_validate(
    estimator: GapEstimator,
    table: pandas.DataFrame,
    *,
    target: str = "gap",
    scheme: str = "splits",
    n_splits: int = 100,
    test_share: float = 0.1,
    level: float = 0.9,
    n_bootstrap: int = 1000,
    seed: int = 0,
    on_fit: Callable[[int, int], None] | None = None,
) -> pandas.DataFrame:
    r"""Evaluate the estimator and the three baselines on the same splits.

    The metrics over the held-out networks: `ssr` $= \sum_i (\hat g_i - g_i)^2$, as in the paper (it grows with
    the number of held-out networks); `rmse`; `mae`; `pearson` between estimate and gap; `coverage` of the intervals,
    `coverage_inside` of those inside, and their mean `interval_width`; `refused`, the fraction of networks outside
    the region; and `fit_pearson`, between estimate and gap of the networks fitted on (what the paper plots).

    Args:
        estimator: Estimator that names its features; it is cloned.
        table: Records of a pool, or one row per network as from `records_to_pandas`, with the columns parameter_count
            and train_loss for the baselines.
        target: Column that is estimated.
        scheme: "leave_one_out"; "folds" (`n_splits` random folds; for hundreds of networks); "splits" (random splits,
            the paper's are 90/10, 100 times).
        n_splits: Number of random splits, or of folds.
        test_share: Fraction of the networks in the test part of a random split, in (0, 1).
        level: Nominal coverage of the intervals.
        n_bootstrap: Number of resamples of the networks per interval; without effect for "splits".
        seed: Seed of the splits and of the resamples.
        on_fit: Called after each fit with the numbers of fits done and of all.

    Returns:
        One row for each model and metric: `model`, `metric`, `value`, `low`, `high`, and `interval`, which names what
        low and high are. With "splits" the value is the mean over splits and low and high show their spread; with the
        other schemes the value is that of all networks together, and the interval is a percentile bootstrap over
        networks.

    Zhao, Zhang, Hu, "Estimating the generalization in deep neural networks via sparsity", 2022, section 4.
    """
    import pandas

    models = {"estimator": estimator, **baselines(table)}
    if estimator.interval == "cv+":  # hundreds of networks: folds for all models
        for model in models.values():
            model.interval = "cv+"
    columns = dict.fromkeys(column for model in models.values() for column in model.features or ())
    table = complete_rows(table, list(columns), target=target)
    rows: list[dict[str, Any]] = []
    for number, (name, model) in enumerate(models.items()):
        predictions = cross_val_predict(
            model,
            table,
            target=target,
            scheme=scheme,
            n_splits=n_splits,
            test_share=test_share,
            level=level,
            seed=seed,
            on_fit=on_fit and (lambda done, of, n=number: on_fit(n * of + done, len(models) * of)),
        )
        rows += [
            {"model": name, **row}
            for row in _summary(predictions, scheme, name == MEAN_GAP, n_bootstrap, seed)
        ]
    return pandas.DataFrame(rows)


def suggest_scheme(n: int) -> str:
    """Return "leave_one_out" up to `MAX_LEAVE_ONE_OUT` networks, "folds" beyond."""
    if n <= MAX_LEAVE_ONE_OUT:
        return "leave_one_out"
    return "folds"


def with_interval_for(estimator: GapEstimator, n: int) -> GapEstimator:
    """Set the intervals for n networks, "cv+" beyond 100, and return the estimator."""
    if n > MAX_LEAVE_ONE_OUT:
        estimator.interval = "cv+"
        estimator.n_folds = N_FOLDS
    return estimator


@check_arguments
def cross_validate_pool(
    records: str | Path | Iterable[Record], *, on_fit: Callable[[int, int], None] | None = None
) -> tuple[GapEstimator, pandas.DataFrame]:
    """Fit the suggested estimator on a pool, and cross-validate it.

    Up to 100 networks are held out one by one, with jackknife+ intervals; more are divided into 20 folds ("cv+"),
    because the time grows with more than the square of their number. Returns the estimator fitted on all usable
    networks, and one row per network as from `cross_val_predict`.

    Args:
        records: Records of networks; a pool, or its folder.
        on_fit: Called after each fit with the numbers of fits done and of all.
    """
    records = as_records(records)
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
    """Return the errors of every baseline that can be fitted, on the networks `answered`.

    They are fitted on the networks that are not `held_out`; if all are, each is estimated from the others.
    """
    table = complete_rows(table)
    evaluated = table.loc[list(answered)]
    rest = table.drop(list(held_out))
    errors: dict[str, list[float]] = {}
    for name, model in baselines(table).items():
        columns = list(model.features or ())
        if not numpy.isfinite(evaluated[columns].to_numpy(dtype=float)).all():
            continue
        model.interval = "none"
        fitted_on = rest[finite_rows(rest[columns].to_numpy(dtype=float))]
        if len(fitted_on) >= MIN_NETWORKS:
            estimates = model.fit(fitted_on, fitted_on["gap"]).predict(evaluated)
        elif len(evaluated) >= MIN_NETWORKS:
            result = cross_val_predict(
                model, evaluated, scheme=suggest_scheme(len(evaluated)), n_splits=N_FOLDS
            )
            estimates = result.loc[evaluated.index, "prediction"].to_numpy()
        else:
            continue
        errors[name] = (estimates - evaluated["gap"].to_numpy(dtype=float)).tolist()
    return errors
