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
from gapscope_studies.expected_accuracy.fit import as_table
from gapscope_studies.expected_accuracy.pools import (
    FIRST_JUDGED,
    FITTED,
    REGRESSION,
    Configuration,
    in_random_order,
    judged_in_turn,
)
from gapscope_studies.expected_accuracy.rows import plain, root_mean_square, shown
from gapscope_studies.expected_accuracy.runs import data_of
from gapscope_studies.expected_accuracy.scale import behind
from gapscope_studies.expected_accuracy.stored_results import job_name, load_results
from gapscope_studies.kit.claims import measured
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
    found = {row.method.split(" (")[0]: row.score for row in rows}
    return {**found, "logistic regression": _logistic(features.numpy(), labels.numpy()), "cpu_seconds": seconds}


def _is_covered(forecast: Any, samples: Any, truth: Any, network_error: float) -> Any:
    """Whether the 90 % interval of `forecast_accuracy` with this error of networks holds the accuracy reached."""
    variance = np.maximum(forecast * (1 - forecast), (1 - 1 / samples) / samples)
    return np.abs(forecast - truth) <= 1.645 * np.sqrt(variance * (1 / samples + 4 * network_error**2))


def _combination(setting: RunSettings, judged: pandas.DataFrame, truth: Any, samples: Any) -> dict[str, Any]:
    """Weights and interval of the combined forecast, fitted to the pools of the fit and evaluated on the others."""
    known = load_results()
    items = [item for plan in (*FIRST_JUDGED, FITTED) for item in in_random_order(plan) if job_name(item) in known]
    items = items[: setting.choose(smoke=6, small=len(items), paper=len(items))]
    table = as_table([known[job_name(item)] for item in items])
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
    chosen = min(grid, key=lambda a: abs(float(_is_covered(x.mean(1), n, y, a).mean()) - 0.9))
    covered = _is_covered(judged[MEAN].to_numpy(dtype=float), samples, truth, chosen).astype(float)
    return {
        "fitted_networks": len(items),
        "fitted_weights": [float(weight) for weight in weights],
        "error_with_fitted_weights": root_mean_square(judged[["RBF ridge", NTK]].to_numpy() @ weights - truth),
        "network_error": float(chosen),
        "coverage_fitted": float(_is_covered(x.mean(1), n, y, chosen).mean()),
        "coverage": plain(
            {"coverage": bootstrap(lambda rows: float(covered[rows].mean()), len(covered), judged["data"].tolist())}
        )["coverage"],
    }


def trivial(setting: RunSettings) -> Outcome:
    """Error of every baseline beside the NTK's, on the classifiers that the shipped estimate answered."""
    known = load_results()
    drawn = [item for item in judged_in_turn() if item.pool != REGRESSION.name and job_name(item) in known]
    table = as_table([known[job_name(item)] for item in drawn])
    answered = ~refused(load_default(), table)
    items = [item for item, keep in zip(drawn, answered, strict=True) if keep]
    table = table[answered.to_numpy()].reset_index(drop=True)
    items = items[: setting.choose(smoke=3, small=len(items), paper=len(items))]
    table = table.iloc[: len(items)]
    found = pandas.DataFrame([read(item, setting.data_root) for item in items])
    seconds = found.pop("cpu_seconds")
    found[NTK] = table["left_out"].to_numpy(dtype=float)
    found[MEAN] = (found["RBF ridge"] + found[NTK]) / 2
    errors = found.sub(table[TARGET].to_numpy(dtype=float), axis=0)
    n, data = len(errors), table["data"].tolist()

    def difference(name: str) -> Any:
        a, b = errors[name].to_numpy(dtype=float), errors[NTK].to_numpy(dtype=float)
        return bootstrap(lambda rows: root_mean_square(a[rows]) - root_mean_square(b[rows]), n, data)

    rows = []
    for name in errors:
        values = errors[name].to_numpy(dtype=float)
        rows.append({
            "method": name,
            "uses": USES.get(str(name), "inputs"),
            "error": bootstrap(lambda rows, values=values: root_mean_square(values[rows]), n, data),
            "difference": difference(str(name)),
            "bias": float(values.mean()),
        })  # fmt: skip
    rows.sort(key=lambda row: row["error"].value)
    sizes = np.array([len(data_of(item, setting.data_root)[0]) for item in items])
    combination = _combination(setting, found.assign(data=data), table[TARGET].to_numpy(dtype=float), sizes)
    return Outcome(
        numbers={"rows": [plain(row) for row in rows], "networks": n, "median_cpu_seconds": float(seconds.median()),
                 "combination": combination},
        claims=[
            measured(
                "ours", "before training, the NTK predicts the accuracy better than an RBF kernel of the inputs",
                "root mean squared error minus the RBF ridge's",
                bootstrap(
                    lambda rows: root_mean_square(errors[NTK].to_numpy(dtype=float)[rows])
                    - root_mean_square(errors["RBF ridge"].to_numpy(dtype=float)[rows]), n, data,
                ),
                below=0.0, ours=True, unit="data sets",
            compared=(), untrained="errors of estimates; networks of any accuracy count",
            )
        ],
        tables={"Errors": pandas.DataFrame(map(shown, rows))},
        verdict=(
            "Baselines that never see the network are level with its kernel: the forecast before training states how "
            "hard the data are. The baselines were added after the evaluation."
        ),
        **behind(setting, [known[job_name(item)] for item in items]),
    )  # fmt: skip
