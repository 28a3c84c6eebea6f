"""Errors of all accuracy estimates on networks that no setting was tuned on.

See results/expected_accuracy/PROTOCOL.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import AccuracyEstimator, load_default
from gapscope.prediction.gap_estimator import GapEstimator
from gapscope_studies.expected_accuracy.fit import LEVEL, SPREAD, as_table, fitted_table
from gapscope_studies.expected_accuracy.pools import judged_in_turn
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    provenance,
    rms_difference,
    rms_error,
    to_numbers,
    to_table,
)
from gapscope_studies.expected_accuracy.runs import read_network, stored_or_read
from gapscope_studies.kit.study import Outcome, RunSettings, Table

TARGET = "test_score_like_training"
NORMAL = 1.645
SHIPPED, KERNEL, HOLD_OUT, FOLDS = (
    "**shipped estimate**", "initial kernel alone", "10 % hold-out", "5-fold cross-validation",
)  # fmt: skip
# method -> its cost in training runs besides the one at hand
COSTS = {SHIPPED: "0", KERNEL: "0", "mean gap": "0", "parameter count": "0", HOLD_OUT: "0.9", FOLDS: "4"}
CLAIMS = {
    HOLD_OUT: "a hold-out of a tenth of the data",
    FOLDS: "five-fold cross-validation, which trains four times more",
    KERNEL: "the left-out accuracy of the untrained network alone",
}


def _from_gap(table: Table, fitted: Table, reading: str = "") -> np.ndarray:
    """Return training accuracy minus a fitted gap, with intervals from held-out data sets.

    The gap is fitted to other networks.
    """
    readings = [reading] if reading else []
    model = GapEstimator(kind="linear", features=readings, log_features=readings, clusters=("data",))
    model.fit(fitted, fitted["train_accuracy"] - fitted[TARGET])
    gap = model.assess(table, level=LEVEL, refuse=False)[["prediction", "high", "low"]].to_numpy(dtype=float)
    return table["train_accuracy"].to_numpy(dtype=float)[:, None] - gap


def _binomial(table: Table, column: str, share: float, spread: float = 0.0) -> np.ndarray:
    """Return a score on a share of the samples with its binomial interval.

    One right and one wrong sample are added.
    """
    value = table[column].to_numpy(dtype=float)
    m = np.maximum(np.floor(share * table["samples"].to_numpy(dtype=float)), 1.0)
    smoothed = (value * m + 1) / (m + 2)
    half = NORMAL * np.sqrt(smoothed * (1 - smoothed) / m + spread**2)
    return np.column_stack([value, np.clip(value - half, 0, 1), np.clip(value + half, 0, 1)])


def estimates(table: Table, fitted: Table, estimator: AccuracyEstimator) -> dict[str, Table]:
    """Return value, low and high of every method per network, in the order of cost.

    They are NaN without an estimate.
    """
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
    return {name: pandas.DataFrame(rows, columns=columns, index=table.index) for name, rows in results.items()}


def refusals(estimator: AccuracyEstimator, table: Table) -> pandas.Series:
    """Return refusals of the estimator per network, assuming equally frequent classes."""
    reasons = estimator.abstention_reasons(table, (1 / table["classes"]).tolist())
    return pandas.Series([bool(each) for each in reasons], index=table.index)


def _row(method: str, estimate: Table, table: Table) -> dict[str, Any]:
    """Error, width and coverage of a method on the networks for which it has an estimate."""
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
    """Evaluate all methods on all evaluation pools.

    The small scale takes the stored networks, the paper scale all sampled ones.
    """
    order = judged_in_turn()
    if setting.scale == "smoke":
        order = [item for item in order if item.data == "concrete_quartiles" and item.samples == 100][:4]
    networks = stored_or_read(setting, order, "networks", read_network)
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
        name: [_row(method, each, part) for method, each in by_method.items() if each.loc[part.index, "value"].count()]
        for name, part in groups.items()
        if len(part)
    }
    comparison = rows.get("answered, with cross-validation") or rows.get("all that were answered") or []
    own = next((row["error"].value for row in comparison if row["method"] == SHIPPED), float("nan"))
    ahead = [f"{row['method']} ({row['trainings']} training runs)" for row in comparison if row["error"].value < own]
    first = f"It is beaten by {', '.join(ahead)}." if ahead else "No baseline errs less."
    claims, errors = [], {name: each["value"].sub(table[TARGET])[~refused] for name, each in by_method.items()}
    for name, baseline in CLAIMS.items():
        both = errors[name].notna()
        if both.any():
            data = answered.loc[both, "data"].tolist()
            difference = rms_difference(errors[SHIPPED][both], errors[name][both], data)
            says = f"without any training, the shipped estimate errs less than {baseline}"
            claims.append(error_claim(says, "root mean squared error minus the baseline's", difference, below=0.0))
    return Outcome(
        numbers={
            "judged": {name: to_numbers(part) for name, part in rows.items()},
            "refused": {str(pool): int(part.sum()) for pool, part in refused.groupby(table["pool"])},
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
