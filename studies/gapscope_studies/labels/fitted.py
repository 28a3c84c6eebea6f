"""Are predictions recognized that had seen the labels, and are out-of-sample ones accepted?

Eight models give probabilities of 500 samples with errors planted at four rates: fitted on these samples, and in five
folds. The rule of `gapscope.labels.given_predictions` was chosen on digits, MNIST, breast cancer, California thirds and
features of CIFAR-10 from a ResNet-20. It is evaluated here on five other data sets. The kinds of errors were cut from
four to two for time, before a result was looked at.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope.statistics.baselines import sample_features
from gapscope_studies.labels.uneven import plant
from gapscope_studies.labels.uneven_data import load_clean

DATA = ("wine", "concrete", "fashion_mnist", "gaussians", "resnet44")
RATES, KINDS = (0.0, 0.05, 0.1, 0.2), ("even", "human")
N, SUBSETS = 500, (0,)

MODELS: dict[str, Callable[[], Any]] = {
    "network, 20 epochs": lambda: MLPClassifier(64, max_iter=20, random_state=0),
    "network, 60 epochs": lambda: MLPClassifier(64, max_iter=60, random_state=0),
    "network, 200 epochs": lambda: MLPClassifier(64, max_iter=200, random_state=0),
    "logistic regression, C = 1": lambda: LogisticRegression(max_iter=200),
    "logistic regression, C = 100": lambda: LogisticRegression(C=100, max_iter=200),
    "forest, leaves of 5": lambda: RandomForestClassifier(60, min_samples_leaf=5, random_state=0),
    "forest": lambda: RandomForestClassifier(60, random_state=0),
    "5 neighbours": lambda: KNeighborsClassifier(5),
}


def _answer(x: torch.Tensor, noisy: torch.Tensor, probabilities: np.ndarray) -> dict[str, Any]:
    issues = gs.find_label_issues(None, (x, noisy), pred_probs=probabilities)
    agrees = float((probabilities.argmax(1) == noisy.numpy()).mean())
    return {"recognized": issues.method != "pred_probs", "agrees": agrees}


def run_cell(name: str, kind: str, subset: int) -> dict[str, Any]:
    """Ask about the predictions of all models at all rates of one kind of errors."""
    x, y = load_clean(name)
    rows = torch.randperm(
        len(x), generator=torch.Generator().manual_seed(derive_seed(subset, f"fitted {name}"))
    )[:N]
    features, (_, y) = x[rows].flatten(1), y[rows].unique(return_inverse=True)
    shown = x[rows]
    planes = sample_features(gs.Samples(features, y))
    answers = []
    for rate in RATES if kind == "even" else RATES[1:]:
        generator = torch.Generator().manual_seed(
            derive_seed(subset, f"fitted {name} {kind} {rate}")
        )
        noisy = plant(kind, rate, planes, y, generator) if rate else y
        known = {
            "data": name,
            "kind": kind,
            "rate": rate,
            "wrong": float((noisy != y).double().mean()),
        }
        for model, build in MODELS.items():
            estimator = make_pipeline(StandardScaler(), build())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                # a class with fewer samples than folds
                warnings.simplefilter("ignore", UserWarning)
                fitted = estimator.fit(features.numpy(), noisy.numpy()).predict_proba(
                    features.numpy()
                )
                folds = StratifiedKFold(5, shuffle=True, random_state=subset)
                held_out: Any = cross_val_predict(
                    estimator, features.numpy(), noisy.numpy(), cv=folds, method="predict_proba"
                )
            for how, probabilities in (("fitted", fitted), ("five folds", held_out)):
                answers.append(
                    {**known, "model": model, "how": how} | _answer(shown, noisy, probabilities)
                )
    return {"answers": answers}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return all cells by name."""
    return {
        f"fitted {name} {kind} {subset}": partial(run_cell, name, kind, subset)
        for name in DATA
        for kind in KINDS
        for subset in SUBSETS
    }


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fraction that was recognized by model and by data set.

    A fit is harmful if fitted predictions agree with at least 5 points more of the labels than those of five folds.
    """
    frame = pandas.DataFrame([answer for cell in cells for answer in cell["answers"]])
    keys = ["data", "kind", "rate", "wrong", "model"]
    frame["case"] = frame.groupby([*keys, "how"]).cumcount()
    wide = frame.pivot_table(
        index=[*keys, "case"], columns="how", values=["recognized", "agrees"], aggfunc="first"
    )
    wide = wide.reset_index()
    excess = (wide["agrees", "fitted"] - wide["agrees", "five folds"]).astype(float)
    wide["harmful"] = excess >= 0.05

    def rows(by: str) -> list[dict[str, Any]]:
        found = []
        for value, part in wide.groupby(by, sort=False):
            harmful = part[part["harmful"]]
            found.append(
                {
                    by: value, "cases": len(part), "fitted agree": float(part["agrees", "fitted"].mean()),
                    "folds agree": float(part["agrees", "five folds"].mean()), "harmful": len(harmful),
                    "recognized": float(harmful["recognized", "fitted"].astype(float).mean()),
                    "folds refused": float(part["recognized", "five folds"].astype(float).mean()),
                }
            )  # fmt: skip
        return found

    harmful = wide[wide["harmful"]]
    return {
        "cases": len(wide),
        "harmful": len(harmful),
        "recognized": float(harmful["recognized", "fitted"].astype(float).mean()),
        "folds_refused": float(wide["recognized", "five folds"].astype(float).mean()),
        "by_data": rows("data"),
        "by_model": rows("model"),
        "by_rate": rows("rate"),
    }
