"""Baselines that ignore the network, on the evaluation networks of the shipped estimate.

Added after the evaluation: none has a setting that was chosen on these networks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import load_default
from gapscope.statistics.baselines import feature_matrix, loo_baselines, rbf_ridge
from gapscope_studies.expected_accuracy.curves import is_covered
from gapscope_studies.expected_accuracy.fit import as_table, fitted_items
from gapscope_studies.expected_accuracy.judged import TARGET, refusals
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
from gapscope_studies.expected_accuracy.runs import data_of
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

NTK, RBF, MEAN = "NTK", "RBF ridge", "mean of RBF ridge and NTK"
USES = {NTK: "network", MEAN: "inputs and network", "most frequent class": "labels"}
FOLDS = 10


def read(configuration: Configuration, root: str | None) -> dict[str, float]:
    """Return leave-one-out accuracy and CPU seconds of every baseline on one training set."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, cross_val_score

    train, _, classes = data_of(configuration, root)
    features, labels = feature_matrix(train.inputs), train.targets
    assert labels is not None
    start = time.process_time()
    rows = loo_baselines(features, labels, n_classes=classes)
    seconds = time.process_time() - start
    result = {row.method.split(" (")[0]: row.score for row in rows}
    folds = KFold(FOLDS, shuffle=True, random_state=0)  # a class may have fewer samples than there are folds
    scores = cross_val_score(LogisticRegression(max_iter=200), features.numpy(), labels.numpy(), cv=folds)
    return {**result, "logistic regression": float(scores.mean()), "cpu_seconds": seconds}


def _combination(setting: RunSettings, results: Table, table: Table) -> dict[str, Any]:
    """Fit weights and interval of the combined forecast, and evaluate it on other pools."""
    known, items = load_rows("networks"), fitted_items()
    items = items[: setting.choose(smoke=6, small=len(items), paper=len(items))]
    fitted = as_table([known[item.job] for item in items])
    scores = []
    for item in items:
        train, _, classes = data_of(item, setting.data_root)
        assert train.targets is not None
        scores.append(rbf_ridge(feature_matrix(train.inputs), train.targets, n_classes=classes).score)
    x = np.column_stack([scores, fitted["left_out"]])
    y, n = fitted[TARGET].to_numpy(dtype=float), fitted["samples"].to_numpy(dtype=float)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    # the error of networks at which 90 % of the intervals on the fitted networks hold the accuracy
    network_error = min(
        np.arange(0.005, 0.2, 0.001), key=lambda a: abs(float(is_covered(x.mean(1), n, y, a).mean()) - 0.9)
    )
    truth, samples = (table[name].to_numpy(dtype=float) for name in (TARGET, "samples"))
    covered = is_covered(results[MEAN].to_numpy(dtype=float), samples, truth, network_error).astype(float)
    coverage = bootstrap(lambda rows: float(covered[rows].mean()), len(covered), table["data"].tolist())
    return {
        "fitted_networks": len(items),
        "fitted_weights": [float(weight) for weight in weights],
        "error_with_fitted_weights": root_mean_square(results[[RBF, NTK]].to_numpy() @ weights - truth),
        "network_error": float(network_error),
        "coverage_fitted": float(is_covered(x.mean(1), n, y, network_error).mean()),
        "coverage": [coverage.value, coverage.low, coverage.high],
    }


def trivial(setting: RunSettings) -> Outcome:
    """Compare errors of every baseline and the NTK on classifiers with a shipped estimate."""
    known = load_rows("networks")
    items = [item for item in judged_in_turn() if item.job in known]
    table = as_table([known[item.job] for item in items])
    rows_answered = np.flatnonzero(~refusals(load_default(), table))
    rows_answered = rows_answered[: setting.choose(smoke=3, small=None, paper=None)]
    items, table = [items[row] for row in rows_answered], table.iloc[rows_answered].reset_index(drop=True)
    results = pandas.DataFrame([read(item, setting.data_root) for item in items])
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
        **provenance(setting, [known[item.job] for item in items]),
    )  # fmt: skip
