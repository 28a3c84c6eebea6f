"""Planted label errors in embeddings of photographs and texts: gapscope beside cleanlab's score on the same features.

python -m gapscope_studies.labels.beside_cleanlab    # writes results/labels/beside_cleanlab.json

cleanlab's score is the self-confidence (probability of the given label) of a logistic regression of the standardized
features in five folds, the recipe of its documentation; it equals `cleanlab.rank.get_self_confidence_for_each_label`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gapscope as gs
from gapscope.base.environment import environment
from gapscope_studies.kit.statistics import mean, to_list
from gapscope_studies.labels.uneven_data import load_clean

DATA = ("flowers12", "trash6", "banking77")
RATES = (0.05, 0.15)
SEEDS = range(4)
SAMPLES = 600
RESULT = Path(__file__).parents[3] / "results" / "labels" / "beside_cleanlab.json"


def _scores(x: torch.Tensor, labels: torch.Tensor, seed: int) -> dict[str, tuple[np.ndarray, float]]:
    """Suspicion of each sample and CPU seconds, by method."""
    start = time.process_time()
    issues = gs.find_label_issues(None, (x, labels))
    own = np.zeros(len(x))
    own[np.asarray(issues.indices)] = np.arange(len(x), 0, -1)
    middle = time.process_time()
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    learner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    probabilities: Any = cross_val_predict(learner, x.numpy(), labels.numpy(), cv=folds, method="predict_proba")
    suspicion = 1 - probabilities[np.arange(len(x)), labels.numpy()]
    return {"gapscope": (own, middle - start), "cleanlab": (suspicion, time.process_time() - middle)}


def differences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the paired differences between gapscope and cleanlab per data set, with intervals over the subsets."""
    found = []
    for name in (*DATA, "all"):
        part = [row for row in rows if name in (row["data"], "all")]
        own, theirs = ([row for row in part if row["method"] == method] for method in ("gapscope", "cleanlab"))
        clusters = [row["data"] if name == "all" else row["seed"] for row in own]
        row: dict[str, Any] = {"data": name, "cells": len(own)}
        for metric in ("auroc", "average_precision"):
            gains = [a[metric] - b[metric] for a, b in zip(own, theirs, strict=True)]
            row[metric] = to_list(mean(gains, clusters))
            row[f"{metric}, ahead"] = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
        found.append(row)
    return found


def main() -> None:
    """Write the rows, their means by data set, and the differences."""
    rows: list[dict[str, Any]] = []
    for name in DATA:
        features, classes = load_clean(name)
        for seed in SEEDS:
            generator = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(features), generator=generator)[:SAMPLES]
            x, y = features[chosen], classes[chosen].unique(return_inverse=True)[1]
            for rate in RATES:
                labels = gs.data.inject_label_noise(y, rate, n_classes=int(y.max()) + 1, generator=generator)
                wrong = (labels != y).numpy()
                for method, (score, seconds) in _scores(x, labels, seed).items():
                    row = {"data": name, "seed": seed, "rate": rate, "method": method, "cpu_seconds": seconds}
                    row |= {
                        "auroc": roc_auc_score(wrong, score),
                        "average_precision": average_precision_score(wrong, score),
                    }
                    rows.append(row)
                    print(rows[-1], flush=True)
    means = [
        {"data": name, "method": method, "cells": len(part)}
        | {key: fmean(row[key] for row in part) for key in ("auroc", "average_precision", "cpu_seconds")}
        for name in DATA
        for method in ("gapscope", "cleanlab")
        if (part := [row for row in rows if row["data"] == name and row["method"] == method])
    ]
    content = {"environment": environment(), "by_data": means, "differences": differences(rows), "rows": rows}
    RESULT.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
