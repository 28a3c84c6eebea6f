"""Planted label errors in embeddings of photographs and texts: gapscope beside cleanlab's score on the same features.

cleanlab's score is the self-confidence (probability of the given label) of a logistic regression of the standardized
features in five folds, the recipe of its documentation; it equals `cleanlab.rank.get_self_confidence_for_each_label`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gapscope as gs
from gapscope_studies.labels.several import timed
from gapscope_studies.labels.summary import differences, rankings, scores, suspicion_of
from gapscope_studies.labels.uneven_data import load_clean

DATA = ("flowers12", "trash6", "banking77")
RATES = (0.05, 0.15)
SEEDS = range(4)
SAMPLES = 600


def _self_confidence(x: torch.Tensor, labels: torch.Tensor, seed: int) -> np.ndarray:
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    learner = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    probabilities: Any = cross_val_predict(
        learner, x.numpy(), labels.numpy(), cv=folds, method="predict_proba"
    )
    return probabilities[np.arange(len(x)), labels.numpy()]


def _cell(name: str, seed: int) -> dict[str, Any]:
    """Return the scores of both methods at all rates."""
    features, classes = load_clean(name)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(features), generator=generator)[:SAMPLES]
    x, y = features[chosen], classes[chosen].unique(return_inverse=True)[1]
    cells = []
    for rate in RATES:
        labels = gs.data.inject_label_noise(
            y, rate, n_classes=int(y.max()) + 1, generator=generator
        )
        wrong = (labels != y).numpy()
        issues, seconds = timed(lambda given=labels: gs.find_label_issues(None, (x, given)))
        confidence, theirs = timed(lambda given=labels: _self_confidence(x, given, seed))
        methods = {
            "gapscope": scores(suspicion_of(issues, len(x)), wrong) | {"seconds": seconds},
            "cleanlab": scores(-confidence, wrong) | {"seconds": theirs},
        }
        cells.append({"data": name, "seed": seed, "rate": rate, "methods": methods})
    return {"cells": cells}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cells by name."""
    return {
        f"beside cleanlab {name} {seed}": partial(_cell, name, seed)
        for name in DATA
        for seed in SEEDS
    }


def summarize(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores by data set, and differences: over the data sets, and in each over its subsets."""
    cells = [cell for part in parts for cell in part["cells"]]
    pairs = [("gapscope", "cleanlab")]
    rows = [{"of": "all", **row} for row in differences(cells, pairs)]
    for name in DATA:
        subsets = [{**cell, "data": cell["seed"]} for cell in cells if cell["data"] == name]
        rows += [{"of": name, **row} for row in differences(subsets, pairs)]
    return {"by_data": rankings(cells, "data"), "differences": rows}
