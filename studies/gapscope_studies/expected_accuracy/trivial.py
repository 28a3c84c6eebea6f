"""Baselines that never see the network, on the networks that the shipped estimate was evaluated on.

Added after the evaluation: none has a setting that was chosen on these networks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import load_default
from gapscope.statistics.baselines import LooRow, feature_matrix, loo_baselines, rbf_ridge
from gapscope_studies.expected_accuracy.baselines import TARGET, refused
from gapscope_studies.expected_accuracy.curves import is_covered
from gapscope_studies.expected_accuracy.fit import as_table
from gapscope_studies.expected_accuracy.pools import (
    FIRST_JUDGED,
    FITTED,
    REGRESSION,
    Configuration,
    in_random_order,
    judged_in_turn,
    load_rows,
)
from gapscope_studies.expected_accuracy.rows import (
    behind,
    error_claim,
    plain,
    rms_difference,
    rms_error,
    root_mean_square,
    shown,
)
from gapscope_studies.expected_accuracy.runs import data_of
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings

NTK, MEAN = "NTK", "mean of RBF ridge and NTK"
USES = {NTK: "network", MEAN: "inputs and network", "logistic regression": "inputs", "most frequent class": "labels"}
FOLDS = 10


def _logistic(x: Any, y: Any) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import KFold, cross_val_score

    folds = KFold(FOLDS, shuffle=True, random_state=0)  # a class may have fewer samples than there are folds
    return float(cross_val_score(LogisticRegression(max_iter=200), x, y, cv=folds).mean())


def read(configuration: Configuration, root: str | None) -> dict[str, float]:
    """Leave-one-out accuracy of every baseline on the training samples of one network, with its CPU seconds."""
    train, _, classes = data_of(configuration, root)
    features, labels = feature_matrix(train.inputs), train.targets
    assert labels is not None
    start = time.process_time()
    rows: tuple[LooRow, ...] = loo_baselines(features, labels, n_classes=classes)
    seconds = time.process_time() - start
    result = {row.method.split(" (")[0]: row.score for row in rows}
    return {**result, "logistic regression": _logistic(features.numpy(), labels.numpy()), "cpu_seconds": seconds}


def _combination(setting: RunSettings, judged: pandas.DataFrame, truth: Any, samples: Any) -> dict[str, Any]:
    """Weights and interval of the combined forecast, fitted to the pools of the fit and evaluated on the others."""
    known = load_rows("networks")
    items = [item for plan in (*FIRST_JUDGED, FITTED) for item in in_random_order(plan) if item.job in known]
    items = items[: setting.choose(smoke=6, small=len(items), paper=len(items))]
    table = as_table([known[item.job] for item in items])
    scores, sizes = [], []
    for item in items:
        train, _, classes = data_of(item, setting.data_root)
        assert train.targets is not None
        scores.append(rbf_ridge(feature_matrix(train.inputs), train.targets, n_classes=classes).score)
        sizes.append(len(train))
    x = np.stack([np.array(scores), table["left_out"].to_numpy(dtype=float)], 1)
    y, n = table[TARGET].to_numpy(dtype=float), np.array(sizes)
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    grid = np.arange(0.005, 0.2, 0.001)
    chosen = min(grid, key=lambda a: abs(float(is_covered(x.mean(1), n, y, a).mean()) - 0.9))
    covered = is_covered(judged[MEAN].to_numpy(dtype=float), samples, truth, chosen).astype(float)
    coverage = bootstrap(lambda rows: float(covered[rows].mean()), len(covered), judged["data"].tolist())
    return {
        "fitted_networks": len(items),
        "fitted_weights": [float(weight) for weight in weights],
        "error_with_fitted_weights": root_mean_square(judged[["RBF ridge", NTK]].to_numpy() @ weights - truth),
        "network_error": float(chosen),
        "coverage_fitted": float(is_covered(x.mean(1), n, y, chosen).mean()),
        **plain({"coverage": coverage}),
    }


def trivial(setting: RunSettings) -> Outcome:
    """Error of every baseline and of the NTK, on the classifiers that the shipped estimate answered."""
    known = load_rows("networks")
    drawn = [item for item in judged_in_turn() if item.pool != REGRESSION.name and item.job in known]
    table = as_table([known[item.job] for item in drawn])
    answered = ~refused(load_default(), table)
    items = [item for item, keep in zip(drawn, answered, strict=True) if keep]
    items = items[: setting.choose(smoke=3, small=len(items), paper=len(items))]
    table = table[answered.to_numpy()].reset_index(drop=True).iloc[: len(items)]
    result = pandas.DataFrame([read(item, setting.data_root) for item in items])
    seconds = result.pop("cpu_seconds")
    result[NTK] = table["left_out"].to_numpy(dtype=float)
    result[MEAN] = (result["RBF ridge"] + result[NTK]) / 2
    truth, data = table[TARGET].to_numpy(dtype=float), table["data"].tolist()
    errors = result.sub(truth, axis=0)
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
    sizes = np.array([len(data_of(item, setting.data_root)[0]) for item in items])
    combination = _combination(setting, result.assign(data=data), truth, sizes)
    return Outcome(
        numbers={"rows": [plain(row) for row in rows], "networks": len(errors),
                 "median_cpu_seconds": float(seconds.median()), "combination": combination},
        claims=[
            error_claim("before training, the NTK predicts the accuracy better than an RBF kernel of the inputs",
                        "root mean squared error minus the RBF ridge's",
                        rms_difference(errors[NTK], errors["RBF ridge"], data), below=0.0)
        ],
        tables={"Errors": pandas.DataFrame(map(shown, rows))},
        verdict=(
            "Baselines that never see the network are level with its kernel: the forecast before training states how "
            "hard the data are. The baselines were added after the evaluation."
        ),
        **behind(setting, [known[item.job] for item in items]),
    )  # fmt: skip
