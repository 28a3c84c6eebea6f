"""Rankings of wrong labels where a sample has several: attributes of pictures, and masks.

Errors are planted into real pictures (digits, MNIST, Fashion-MNIST): labels are flipped at random, or present ones are
forgotten, as people do; pixels of masks are flipped one by one, or in squares, as a careless outline leaves them. The
error model is that of class labels; nothing was chosen on these cells. Beside it, on the same held-out probabilities:
the probability of the given label (cleanlab's score of a pixel or label), and cleanlab's score of a sample with several
labels; and that of logistic regression in five folds. Ranking is by AUROC and average precision.
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
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.randomness import derive_seed

DATA, RATES = ("digits", "mnist", "fashion_mnist"), (0.02, 0.05, 0.1)
# Masks were cut from four seeds to two for time, before a result was looked at.
SEEDS = {"attributes": (1, 2, 3, 4), "masks": (1, 2)}
N_LABELLED, N_MASKS = 600, 200
# Classes that have each attribute: even, above four, a loop; for clothes: shoes, for the upper body, with sleeves.
ATTRIBUTES = {
    "digits": ((0, 2, 4, 6, 8), (5, 6, 7, 8, 9), (0, 6, 8, 9)),
    "mnist": ((0, 2, 4, 6, 8), (5, 6, 7, 8, 9), (0, 6, 8, 9)),
    "fashion_mnist": ((5, 7, 9), (0, 2, 3, 4, 6), (0, 2, 4, 6)),
}


def _draw(name: str, n: int, seed: int) -> tuple[Tensor, Tensor, torch.Generator]:
    train = gs.load_dataset(name).train
    generator = torch.Generator().manual_seed(derive_seed(seed, f"several labels {name}"))
    rows = torch.randperm(len(train), generator=generator)[:n]
    x = train.inputs[rows]
    if x.shape[-1] > 16:
        x = nn.functional.avg_pool2d(x, 2)
    return x, train.y[rows], generator


def _scores(suspicion: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    return {
        "auroc": float(roc_auc_score(wrong.ravel(), suspicion.ravel())),
        "average_precision": float(average_precision_score(wrong.ravel(), suspicion.ravel())),
    }


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def _suspicion(issues: Any, shape: Sequence[int]) -> np.ndarray:
    """Return minus the rank of every label, [n, ...]."""
    suspicion = np.full(shape, -np.inf)
    order = -np.arange(len(issues.indices), dtype=float)
    suspicion[(issues.indices.numpy(), *issues.places.unbind(1))] = order
    return suspicion


def _flags(issues: Any, wrong: np.ndarray) -> dict[str, float]:
    flagged = (issues.indices[: issues.n_flagged].numpy(), *issues.places[: issues.n_flagged].unbind(1))
    return {
        "flagged": int(issues.n_flagged),
        "expected_precision": float(issues.expected_precision),
        "precision": float(wrong[flagged].mean()) if issues.n_flagged else float("nan"),
    }


def attributes(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """Return the scores of one cell with three labels per picture."""
    x, y, generator = _draw(name, N_LABELLED, seed)
    clean = torch.stack([torch.isin(y, torch.tensor(classes)) for classes in ATTRIBUTES[name]], 1)
    wrong = torch.rand(clean.shape, generator=generator) < rate
    if kind == "forgotten":
        wrong = (torch.rand(clean.shape, generator=generator) < rate / clean.double().mean()) & clean
    given = clean ^ wrong
    truth, data = wrong.numpy(), gs.Samples(x, given)
    issues, seconds = _timed(lambda: gs.find_label_issues(None, data, seed=seed))
    held, held_seconds = _timed(lambda: gs.out_of_sample(None, data, seed=seed).to_numpy())
    flat = x.flatten(1).numpy()

    def folds() -> np.ndarray:
        model = LogisticRegression(max_iter=1000)
        columns: list[Any] = [
            cross_val_predict(model, flat, given[:, k].numpy(), method="predict_proba") for k in range(3)
        ]
        return np.stack([column[:, 1] for column in columns], 1)

    logistic, logistic_seconds = _timed(folds)
    labels = given.numpy()
    suspicion = {"gapscope": (_suspicion(issues, labels.shape), seconds)}
    for method, (values, cost) in {
        "given label, same probabilities": (held, held_seconds),
        "given label, logistic regression": (logistic, logistic_seconds),
    }.items():
        suspicion[method] = (1 - np.where(labels, values, 1 - values), cost)
    methods = {key: {**_scores(value, truth), "cpu_seconds": cost} for key, (value, cost) in suspicion.items()}
    ranked = issues.rank_samples()
    of_sample = np.zeros(len(x))
    of_sample[ranked["sample"].to_numpy()] = -np.arange(len(ranked), dtype=float)
    samples = {"gapscope": of_sample}
    for method, values in {"cleanlab, same probabilities": held, "cleanlab, logistic regression": logistic}.items():
        samples[method] = 1 - _cleanlab_scores(labels, values)
    is_wrong: Any = truth.any(1)
    of_samples = {key: _scores(value, is_wrong) for key, value in samples.items()}
    return {"methods": methods, "samples": of_samples, **_flags(issues, truth)}


def _cleanlab_scores(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return cleanlab's quality of each sample with several labels."""
    from cleanlab.multilabel_classification import get_label_quality_scores  # pyright: ignore[reportMissingImports]

    return get_label_quality_scores([np.flatnonzero(row).tolist() for row in labels], probabilities)


def masks(name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """Return the scores of one cell with a class for each pixel: ink or clothes against the background."""
    x, _, generator = _draw(name, N_MASKS, seed)
    clean = (x[:, 0] > x.mean()).long()
    pictures = x + 0.5 * x.std() * torch.randn(x.shape, generator=generator)
    wrong = torch.rand(clean.shape, generator=generator) < rate
    if kind == "squares":
        corners = (torch.rand(clean.shape, generator=generator) < rate / 4).float()
        wrong = nn.functional.max_pool2d(nn.functional.pad(corners, (1, 0, 1, 0))[:, None], 2, 1)[:, 0] > 0
    given = torch.where(wrong, 1 - clean, clean)
    torch.manual_seed(derive_seed(seed, "network"))
    network = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 2, 1))
    truth, data = wrong.numpy(), gs.Samples(pictures, given, task="pixels")
    issues, seconds = _timed(lambda: gs.find_label_issues(network, data, seed=seed))
    held, held_seconds = _timed(lambda: gs.out_of_sample(network, data, seed=seed))
    assert held.positions is not None
    places = tuple(held.positions.T)
    of_given = held.predictions[np.arange(len(held)), held.targets]
    suspicion = _suspicion(issues, truth.shape)[places]
    methods = {
        "gapscope": {**_scores(suspicion, truth[places]), "cpu_seconds": seconds},
        "given label, same probabilities": {**_scores(1 - of_given, truth[places]), "cpu_seconds": held_seconds},
    }
    return {"methods": methods, "samples": {}, **_flags(issues, truth)}


KINDS = {"attributes": ("flipped", "forgotten"), "masks": ("single", "squares")}


def _cell(task: str, name: str, kind: str, rate: float, seed: int) -> dict[str, Any]:
    run = attributes if task == "attributes" else masks
    return {"task": task, "data": name, "kind": kind, "rate": rate, "seed": seed, **run(name, kind, rate, seed)}


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return every cell by its name."""
    return {
        f"several-{task}-{name}-{kind}-{rate}-{seed}": partial(_cell, task, name, kind, rate, seed)
        for task, kinds in KINDS.items()
        for name in DATA
        for kind in kinds
        for rate in RATES
        for seed in SEEDS[task]
    }


def summarize(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return mean scores by task, kind and method, and the precision of the flagged labels."""
    rows = [
        {"task": cell["task"], "kind": cell["kind"], "data": cell["data"], "of": of, "method": method, **scores}
        for cell in cells
        for key, of in (("methods", "labels"), ("samples", "samples"))
        for method, scores in cell[key].items()
    ]
    table = pandas.DataFrame(rows).astype({"auroc": float, "average_precision": float, "cpu_seconds": float})
    means = table.groupby(["task", "of", "method"], sort=False)[["auroc", "average_precision", "cpu_seconds"]].mean()
    by_kind = table.groupby(["task", "kind", "of", "method"], sort=False)[["auroc", "average_precision"]].mean()
    by_data = table.groupby(["task", "data", "of", "method"], sort=False)[["auroc", "average_precision"]].mean()
    columns = ("task", "flagged", "expected_precision", "precision")
    flags = pandas.DataFrame([{key: cell[key] for key in columns} for cell in cells])
    # a cell in which nothing was flagged has no precision
    flags = flags.astype({"expected_precision": float, "precision": float})
    return {
        "cells": len(cells),
        "means": means.round(4).reset_index().to_dict("records"),
        "by_kind": by_kind.round(4).reset_index().to_dict("records"),
        "by_data": by_data.round(4).reset_index().to_dict("records"),
        "flags": flags.groupby("task", sort=False).mean().round(4).reset_index().to_dict("records"),
    }
