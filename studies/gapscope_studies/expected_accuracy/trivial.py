"""Baselines that never see the network, on the networks that the shipped estimate was evaluated on.

Added after the evaluation: none has a setting that was chosen on these networks.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas

from gapscope.prediction.accuracy_estimator import load_default
from gapscope.statistics.baselines import LooRow, feature_matrix, loo_baselines
from gapscope_studies.expected_accuracy.baselines import TARGET, refused
from gapscope_studies.expected_accuracy.fit import as_table
from gapscope_studies.expected_accuracy.pools import REGRESSION, Configuration, judged_in_turn
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
    n = len(errors)

    def difference(name: str) -> Any:
        a, b = errors[name].to_numpy(dtype=float), errors[NTK].to_numpy(dtype=float)
        return bootstrap(lambda rows: root_mean_square(a[rows]) - root_mean_square(b[rows]), n)

    rows = []
    for name in errors:
        values = errors[name].to_numpy(dtype=float)
        rows.append({
            "method": name,
            "uses": USES.get(str(name), "inputs"),
            "error": bootstrap(lambda rows, values=values: root_mean_square(values[rows]), n),
            "difference": difference(str(name)),
            "bias": float(values.mean()),
        })  # fmt: skip
    rows.sort(key=lambda row: row["error"].value)
    return Outcome(
        numbers={"rows": [plain(row) for row in rows], "networks": n, "median_cpu_seconds": float(seconds.median())},
        claims=[
            measured(
                "ours", "before training, the NTK predicts the accuracy better than an RBF kernel of the inputs",
                "root mean squared error minus the RBF ridge's",
                bootstrap(
                    lambda rows: root_mean_square(errors[NTK].to_numpy(dtype=float)[rows])
                    - root_mean_square(errors["RBF ridge"].to_numpy(dtype=float)[rows]), n,
                ),
                below=0.0, ours=True, unit="networks",
            )
        ],
        tables={"Errors": pandas.DataFrame(map(shown, rows))},
        verdict=(
            "Baselines that never see the network are level with its kernel: the forecast before training states how "
            "hard the data are. The baselines were added after the evaluation."
        ),
        **behind(setting, [known[job_name(item)] for item in items]),
    )  # fmt: skip
