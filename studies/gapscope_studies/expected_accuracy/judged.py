"""Errors of accuracy estimates and of baselines on networks that no setting was tuned on.

See results/expected_accuracy/PROTOCOL.md. The baselines that ignore the network were added after the evaluation; none
has a setting that was chosen on these networks.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pandas

from gapscope.accuracy.accuracy_estimator import AccuracyEstimator, load_default
from gapscope.gap.gap_estimator import GapEstimator
from gapscope.statistics.baselines import feature_matrix, loo_baselines, rbf_ridge
from gapscope_studies.expected_accuracy.curves import is_covered
from gapscope_studies.expected_accuracy.fit import (
    LEVEL,
    SPREAD,
    as_table,
    fitted_items,
    fitted_table,
)
from gapscope_studies.expected_accuracy.pools import Configuration, judged_in_turn, load_rows
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    provenance,
    rms_difference,
    rms_error,
    root_mean_square,
    to_numbers,
    to_table,
)
from gapscope_studies.expected_accuracy.runs import data_of, load_or_read, read_network
from gapscope_studies.kit.statistics import bootstrap_mean, to_list
from gapscope_studies.kit.study import Outcome, RunSettings, Table

TARGET = "test_score_like_training"
NORMAL = 1.645
SHIPPED, KERNEL, HOLD_OUT, FOLDS = (
    "**shipped estimate**", "initial kernel alone", "10 % hold-out", "5-fold cross-validation",
)  # fmt: skip
# method -> its cost in further training runs
COSTS = {
    SHIPPED: "0",
    KERNEL: "0",
    "mean gap": "0",
    "parameter count": "0",
    HOLD_OUT: "0.9",
    FOLDS: "4",
}
NTK, RBF, MEAN = "NTK", "RBF ridge", "mean of RBF ridge and NTK"
USES = {NTK: "network", MEAN: "inputs and network", "most frequent class": "labels"}
N_FOLDS = 10
CLAIMS = {
    HOLD_OUT: "a hold-out of a tenth of the data",
    FOLDS: "five-fold cross-validation, which trains four times more",
    KERNEL: "the left-out accuracy of the untrained network alone",
}


def _from_gap(table: Table, fitted: Table, reading: str = "") -> np.ndarray:
    """Return training accuracy minus a gap that is fitted to other networks, with intervals."""
    readings = [reading] if reading else []
    model = GapEstimator(
        kind="linear", features=readings, log_features=readings, clusters=("data",)
    )
    model.fit(fitted, fitted["train_accuracy"] - fitted[TARGET])
    gap = model.assess(table, level=LEVEL, refuse=False)[["prediction", "high", "low"]].to_numpy(
        dtype=float
    )
    return table["train_accuracy"].to_numpy(dtype=float)[:, None] - gap


def _binomial(table: Table, column: str, share: float, spread: float = 0.0) -> np.ndarray:
    """Return a score on a fraction of the samples with its binomial interval."""
    value = table[column].to_numpy(dtype=float)
    m = np.maximum(np.floor(share * table["samples"].to_numpy(dtype=float)), 1.0)
    smoothed = (value * m + 1) / (m + 2)  # one correct and one wrong sample are added
    half = NORMAL * np.sqrt(smoothed * (1 - smoothed) / m + spread**2)
    return np.column_stack([value, np.clip(value - half, 0, 1), np.clip(value + half, 0, 1)])


def estimates(table: Table, fitted: Table, estimator: AccuracyEstimator) -> dict[str, Table]:
    """Return value, low and high per method and network (NaN without an estimate)."""
    shipped = estimator.predict(table, level=LEVEL)["like_training"]
    results = {
        SHIPPED: np.array([[each.value, each.low, each.high] for each in shipped]),
        KERNEL: _binomial(table, "left_out", 1.0, SPREAD),
        "mean gap": _from_gap(table, fitted),
        "parameter count": _from_gap(table, fitted, "parameter_count"),
        HOLD_OUT: _binomial(table, "hold_out", 0.1),
        FOLDS: _binomial(table, "cross_validation", 1.0),
    }
    columns = ["value", "low", "high"]
    return {
        name: pandas.DataFrame(rows, columns=columns, index=table.index)
        for name, rows in results.items()
    }


def refusals(estimator: AccuracyEstimator, table: Table) -> pandas.Series:
    """Return for each network whether the estimator abstains, with equally frequent classes."""
    reasons = estimator.abstention_reasons(table, (1 / table["classes"]).tolist())
    return pandas.Series([bool(each) for each in reasons], index=table.index)


def _row(method: str, estimate: Table, table: Table) -> dict[str, Any]:
    """Return error, width and coverage of a method on the networks with an estimate."""
    estimate = estimate.loc[table.index].dropna()
    truth, data = table.loc[estimate.index, TARGET], table.loc[estimate.index, "data"].tolist()
    return {
        "method": method,
        "trainings": COSTS[method],
        "networks": len(estimate),
        "error": rms_error(estimate["value"] - truth, data),
        "bias": float((estimate["value"] - truth).mean()),
        "width": float((estimate["high"] - estimate["low"]).mean()),
        "covered": float(truth.between(estimate["low"], estimate["high"]).mean()),
    }


def judge(setting: RunSettings) -> Outcome:
    """Evaluate all methods on all evaluation pools (small scale: on the stored networks)."""
    order = judged_in_turn()
    if setting.scale == "smoke":
        order = [
            item for item in order if item.data == "concrete_quartiles" and item.samples == 100
        ][:4]
    networks = load_or_read(setting, order, "networks", read_network)
    estimator = load_default()
    table = as_table(networks)
    for name in ("hold_out", "cross_validation"):
        table[name] = table.get(name, np.nan)
    refused = refusals(estimator, table)
    answered = table[~refused]
    by_method = estimates(table, fitted_table(), estimator)
    groups: dict[str, Table] = {
        "all that were answered": answered,
        "all": table,
        "answered, with cross-validation": answered[answered["cross_validation"].notna()],
        "answered, right labels": answered[answered["noise"] == 0],
        "answered, wrong labels": answered[answered["noise"] > 0],
        **{f"{pool}, answered": part for pool, part in answered.groupby("pool")},
    }
    rows = {
        name: [
            _row(method, each, part)
            for method, each in by_method.items()
            if each.loc[part.index, "value"].count()
        ]
        for name, part in groups.items()
        if len(part)
    }
    comparison = (
        rows.get("answered, with cross-validation") or rows.get("all that were answered") or []
    )
    ours = next(
        (row["error"].value for row in comparison if row["method"] == SHIPPED), float("nan")
    )
    ahead = [
        f"{row['method']} ({row['trainings']} training runs)"
        for row in comparison
        if row["error"].value < ours
    ]
    first = f"It is beaten by {', '.join(ahead)}." if ahead else "No baseline errs less."
    claims, errors = (
        [],
        {name: each["value"].sub(table[TARGET])[~refused] for name, each in by_method.items()},
    )
    for name, baseline in CLAIMS.items():
        both = errors[name].notna()
        if both.any():
            data = answered.loc[both, "data"].tolist()
            difference = rms_difference(errors[SHIPPED][both], errors[name][both], data)
            statement = f"without any training, the shipped estimate errs less than {baseline}"
            claims.append(
                error_claim(
                    statement, "root mean squared error minus the baseline's", difference, below=0.0
                )
            )
    return Outcome(
        numbers={
            "judged": {name: to_numbers(part) for name, part in rows.items()},
            "refused": {
                str(pool): int(part.sum()) for pool, part in refused.groupby(table["pool"])
            },
            "trained": dict(Counter(row["pool"] for row in networks)),
            "drawn": len(order),
            "estimator": dict(estimator.card),
        },
        claims=claims,
        tables={name: to_table(part) for name, part in rows.items()},
        verdict=(
            f"{first} {len(networks)} of the {len(order)} drawn networks were trained; {int(refused.sum())} were "
            "refused. The estimator was committed before the first of them; the networks are small, and intervals are "
            "over data sets."
        ),
        **provenance(setting, networks),
    )


# --- baselines that ignore the network


def read_baselines(configuration: Configuration, root: str | None) -> dict[str, float]:
    """Return leave-one-out accuracy and CPU seconds of every baseline on one training set."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, cross_val_score

    train, _, classes = data_of(configuration, root)
    features, labels = feature_matrix(train.inputs), train.targets
    assert labels is not None
    start = time.process_time()
    rows = loo_baselines(features, labels, n_classes=classes)
    seconds = time.process_time() - start
    result = {row.name: row.score for row in rows}
    # a class may have fewer samples than there are folds
    folds = KFold(N_FOLDS, shuffle=True, random_state=0)
    scores = cross_val_score(
        LogisticRegression(max_iter=200), features.numpy(), labels.numpy(), cv=folds
    )
    return {**result, "logistic regression": float(scores.mean()), "cpu_seconds": seconds}


def _combination(setting: RunSettings, results: Table, table: Table) -> dict[str, Any]:
    """Fit weights and interval of the combined forecast, and evaluate it on other pools."""
    stored, items = load_rows("networks"), fitted_items()
    items = items[: setting.choose(smoke=6, small=None, paper=None)]
    fitted = as_table([stored[item.job] for item in items])
    scores = []
    for item in items:
        train, _, classes = data_of(item, setting.data_root)
        scores.append(rbf_ridge(feature_matrix(train.inputs), train.y, n_classes=classes).score)
    x = np.column_stack([scores, fitted["left_out"]])
    y, n = fitted[TARGET].to_numpy(dtype=float), fitted["samples"].to_numpy(dtype=float)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    # the error of networks at which 90 % of the intervals on the fitted networks cover the accuracy
    network_error = min(
        np.arange(0.005, 0.2, 0.001),
        key=lambda a: abs(float(is_covered(x.mean(1), n, y, a).mean()) - 0.9),
    )
    truth, samples = (table[name].to_numpy(dtype=float) for name in (TARGET, "samples"))
    covered = is_covered(results[MEAN].to_numpy(dtype=float), samples, truth, network_error)
    return {
        "fitted_networks": len(items),
        "fitted_weights": [float(weight) for weight in weights],
        "error_with_fitted_weights": root_mean_square(
            results[[RBF, NTK]].to_numpy() @ weights - truth
        ),
        "network_error": float(network_error),
        "coverage_fitted": float(is_covered(x.mean(1), n, y, network_error).mean()),
        "coverage": to_list(bootstrap_mean(covered, table["data"].tolist())),
    }


def evaluate_baselines(setting: RunSettings) -> Outcome:
    """Compare baselines with the NTK on the networks for which the estimator has an answer."""
    stored = load_rows("networks")
    items = [item for item in judged_in_turn() if item.job in stored]
    table = as_table([stored[item.job] for item in items])
    answered = np.flatnonzero(~refusals(load_default(), table))[
        : setting.choose(smoke=3, small=None, paper=None)
    ]
    items, table = [items[row] for row in answered], table.iloc[answered].reset_index(drop=True)
    results = pandas.DataFrame([read_baselines(item, setting.data_root) for item in items])
    seconds = results.pop("cpu_seconds")
    results[NTK] = table["left_out"].to_numpy(dtype=float)
    results[MEAN] = (results[RBF] + results[NTK]) / 2
    data, errors = table["data"].tolist(), results.sub(table[TARGET], axis=0)
    rows = [
        {
            "method": name,
            "uses": USES.get(str(name), "inputs"),
            "error": rms_error(errors[name], data),
            "difference": rms_difference(errors[name], errors[NTK], data),
            "bias": float(errors[name].mean()),
        }
        for name in errors
    ]
    rows.sort(key=lambda row: row["error"].value)
    return Outcome(
        numbers={
            "rows": to_numbers(rows),
            "networks": len(errors),
            "median_cpu_seconds": float(seconds.median()),
            "combination": _combination(setting, results, table),
        },
        claims=[
            error_claim("before training, the NTK predicts the accuracy better than an RBF kernel of the inputs",
                        "root mean squared error minus the RBF ridge's",
                        rms_difference(errors[NTK], errors[RBF], data), below=0.0)
        ],
        tables={"Errors": to_table(rows)},
        verdict=(
            "Baselines that never see the network are level with its kernel: the forecast before training states how "
            "hard the data are. The baselines were added after the evaluation."
        ),
        **provenance(setting, [stored[item.job] for item in items]),
    )  # fmt: skip
