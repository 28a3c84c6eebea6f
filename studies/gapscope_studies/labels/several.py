"""Rankings of label errors where a sample has several: attributes of handwritten digits, textures and texts.

Errors are planted: labels are flipped at random, or present ones are forgotten, as people do. Nothing was chosen on
these data. Beside gapscope, on the same held-out probabilities: the probability of the given label (cleanlab's score
of a label), and cleanlab's score of a sample with several labels; and that of logistic regression in five folds.
Rankings are judged by AUROC and average precision; the interval of the rate by the label noise rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import gapscope as gs
from gapscope.base.randomness import derive_seed
from gapscope_studies.labels.summary import scores
from gapscope_studies.labels.uneven_data import load_clean

RATES, SEEDS, N_LABELLED = (0.02, 0.05, 0.1), (1, 2, 3, 4), 600
# Classes that have each attribute; of digits: even, above four, a loop.
ATTRIBUTES = {
    "keel optdigits": ((0, 2, 4, 6, 8), (5, 6, 7, 8, 9), (0, 6, 8, 9)),
    "keel texture": ((0, 2, 4, 6, 8, 10), (6, 7, 8, 9, 10), (1, 4, 7)),
    "banking77, other intents": (
        (0, 2, 4, 6, 8, 10, 12, 14),
        (8, 9, 10, 11, 12, 13, 14),
        (1, 4, 7, 10, 13),
    ),
}
KINDS = ("flipped", "forgotten")


def draw_rows(name: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return standardized features of n samples [n, d], and their classes."""
    x, y = load_clean(name)
    rows = torch.randperm(len(x), generator=generator)[:n]
    x = x[rows].flatten(1).double()
    return ((x - x.mean(0)) / x.std(0).clamp_min(1e-6)).float(), y[rows]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call and its CPU seconds."""
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def suspicion_of_labels(issues: Any, shape: Sequence[int]) -> np.ndarray:
    """Return minus the rank of every label, [n, ...]."""
    suspicion = np.full(shape, -np.inf)
    order = -np.arange(len(issues.indices), dtype=float)
    suspicion[(issues.indices.numpy(), *issues.places.unbind(1))] = order
    return suspicion


def suspicion_of_samples(issues: Any, n: int) -> np.ndarray:
    """Return minus the rank of every sample, [n]."""
    ranked = issues.rank_samples()
    suspicion = np.zeros(n)
    suspicion[ranked["sample"].to_numpy()] = -np.arange(len(ranked), dtype=float)
    return suspicion


def answer_of(issues: Any, wrong: np.ndarray) -> dict[str, float]:
    """Return the rate, the number of flagged labels, and their expected and observed precision."""
    noise = issues.noise
    flagged = (
        issues.indices[: issues.n_flagged].numpy(),
        *issues.places[: issues.n_flagged].unbind(1),
    )
    return {
        "wrong": float(wrong.mean()),
        "low": float("nan") if noise is None else noise.low,
        "high": float("nan") if noise is None else noise.high,
        "flagged": int(issues.n_flagged),
        "expected_precision": float(issues.expected_precision),
        "precision": float(wrong[flagged].mean()) if issues.n_flagged else float("nan"),
    }


def attributes(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """Return the scores of one cell with three labels per picture."""
    generator = torch.Generator().manual_seed(derive_seed(seed, f"several labels {name}"))
    x, y = draw_rows(name, N_LABELLED, generator)
    clean = torch.stack([torch.isin(y, torch.tensor(classes)) for classes in ATTRIBUTES[name]], 1)
    wrong = torch.rand(clean.shape, generator=generator) < rate
    if kind == "forgotten":
        wrong = (
            torch.rand(clean.shape, generator=generator) < rate / clean.double().mean()
        ) & clean
    given = clean ^ wrong
    truth, data = wrong.numpy(), gs.Samples(x, given)
    issues, seconds = timed(lambda: gs.find_label_issues(None, data, seed=seed))
    held, held_seconds = timed(lambda: gs.out_of_sample(None, data, seed=seed).to_numpy())
    flat = x.numpy()

    def folds() -> np.ndarray:
        model = LogisticRegression(max_iter=1000)
        columns: list[Any] = [
            cross_val_predict(model, flat, given[:, k].numpy(), method="predict_proba")
            for k in range(3)
        ]
        return np.stack([column[:, 1] for column in columns], 1)

    logistic, logistic_seconds = timed(folds)
    labels = given.numpy()
    suspicion = {"gapscope": (suspicion_of_labels(issues, labels.shape), seconds)}
    for method, (values, cost) in {
        "given label, same probabilities": (held, held_seconds),
        "given label, logistic regression": (logistic, logistic_seconds),
    }.items():
        suspicion[method] = (1 - np.where(labels, values, 1 - values), cost)
    methods = {
        key: {**scores(value.ravel(), truth.ravel()), "cpu_seconds": cost}
        for key, (value, cost) in suspicion.items()
    }
    samples = {"gapscope": suspicion_of_samples(issues, len(x))}
    for method, values in {
        "cleanlab, same probabilities": held,
        "cleanlab, logistic regression": logistic,
    }.items():
        samples[method] = 1 - _cleanlab_scores(labels, values)
    is_wrong: Any = truth.any(1)
    of_samples = {key: scores(value, is_wrong) for key, value in samples.items()}
    return {"methods": methods, "samples": of_samples, **answer_of(issues, truth)}


def _cleanlab_scores(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return cleanlab's quality of each sample with several labels."""
    from cleanlab.multilabel_classification import get_label_quality_scores  # pyright: ignore[reportMissingImports]

    return get_label_quality_scores([np.flatnonzero(row).tolist() for row in labels], probabilities)


def _cell(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    return {
        "data": name,
        "kind": kind,
        "rate": rate,
        "seed": seed,
        **attributes(name, kind, rate, seed),
    }


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return every cell by its name."""
    return {
        f"several-{name}-{kind}-{rate}-{seed}": partial(_cell, name, kind, rate, seed)
        for name in ATTRIBUTES
        for kind in KINDS
        for rate in RATES
        for seed in SEEDS
    }


def coverage(answers: Sequence[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    """Return how many rates were answered, and how many intervals hold the label noise rate."""
    table = pandas.DataFrame(
        [{key: answer[key] for key in (*by, "wrong", "low", "high")} for answer in answers]
    )
    table = table.astype({"wrong": float, "low": float, "high": float})
    table["answered"] = table["high"].notna()
    table["covered"] = table["wrong"].between(table["low"] - 1e-9, table["high"] + 1e-9)
    table["width"] = table["high"] - table["low"]
    rows: Any = table.groupby([*by], sort=False).agg(
        cells=("wrong", "size"),
        answered=("answered", "sum"),
        covered=("covered", "sum"),
        width=("width", "median"),
    )
    return rows.reset_index().to_dict("records")


def flag_means(answers: Sequence[dict[str, Any]], *by: str) -> list[dict[str, Any]]:
    """Return the mean number of flagged labels, and expected and observed precision where one is promised."""
    table = pandas.DataFrame(
        [
            {key: answer[key] for key in (*by, "flagged", "expected_precision", "precision")}
            for answer in answers
        ]
    ).astype({"expected_precision": float, "precision": float})
    table["promised"] = table["expected_precision"].notna()
    table = table[table["promised"]]
    rows: Any = table.groupby([*by], sort=False).agg(
        lists=("promised", "sum"),
        flagged=("flagged", "mean"),
        expected_precision=("expected_precision", "mean"),
        precision=("precision", "mean"),
    )
    return rows.round(4).reset_index().to_dict("records")


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores by method, the precision of the flagged labels, and the coverage of the rate."""
    rows = [
        {"kind": cell["kind"], "data": cell["data"], "of": of, "method": method, **found}
        for cell in cells
        for key, of in (("methods", "labels"), ("samples", "samples"))
        for method, found in cell[key].items()
    ]
    table = pandas.DataFrame(rows).astype(
        {"auroc": float, "average_precision": float, "cpu_seconds": float}
    )

    def means(*by: str) -> list[dict[str, Any]]:
        values = ["auroc", "average_precision", "cpu_seconds"]
        found: Any = (
            table.groupby([*by], sort=False)[values]
            .mean()
            .round(4)
            .reset_index()
            .to_dict("records")
        )
        return found

    return {
        "cells": len(cells),
        "means": means("of", "method"),
        "by_data": means("data", "of", "method"),
        "flags": flag_means(cells, "data"),
        "coverage": coverage(cells, "data"),
    }
