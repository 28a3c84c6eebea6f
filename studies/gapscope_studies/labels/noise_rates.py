"""Coverage of label noise rates on clean but hard data, known rates, and photographs.

The rule of `gapscope.labels` was chosen on data with the seeds 0 to 2 and 501 to 504, and is evaluated here on others.
The embeddings are those of a ResNet-20 trained on CIFAR-10, for errors in the test images.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification, make_gaussian_quantiles
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import NotMeasurable
from gapscope_studies.expected_accuracy.pretrained import build_pretrained, normalize
from gapscope_studies.kit.data import shift_labels
from gapscope_studies.labels.summary import scores, suspicion_of

N = 400
HARD = {
    "parity of 3 signs": 2,
    "xor of 2 signs": 2,
    "4 clusters per class": 3,
    "gaussian quantiles": 3,
    "cifar10": 10,
}
KNOWN = {"linear": 2, "digits": 10, "blobs": 5, "fashion_mnist": 10}
RATES = (0.0, 0.1, 0.2, 0.35)
N_EMBEDDED, RATES_EMBEDDED = 600, (0.0, 0.05, 0.1, 0.2)


def estimate(data: Any, truth: float, **options: Any) -> dict[str, Any]:
    """Estimate the rate without a network, and test whether its interval covers the truth."""
    try:
        noise = gs.estimate_label_noise(None, data, **options)
    except NotMeasurable:
        return {"answered": False}
    covered = noise.low - 1e-9 <= truth <= noise.high + 1e-9
    return {
        "answered": True,
        "rate": noise.rate,
        "low": noise.low,
        "high": noise.high,
        "covered": covered,
    }


def sample_clean(name: str, seed: int) -> tuple[Tensor, Tensor]:
    """Sample a clean data set of 400 samples."""
    rng = np.random.default_rng(seed)
    if name in ("digits", "cifar10", "fashion_mnist"):
        train = gs.load_dataset(name).train
        rows = torch.as_tensor(rng.permutation(len(train))[:N])
        return train.inputs[rows], train.y[rows]
    if name == "4 clusters per class":
        x, y = make_classification(
            N, 20, n_informative=6, n_classes=3, n_clusters_per_class=4, flip_y=0, random_state=seed
        )
    elif name == "gaussian quantiles":
        x, y = make_gaussian_quantiles(n_samples=N, n_features=10, n_classes=3, random_state=seed)
    elif name == "linear":
        x = rng.normal(size=(N, 50))
        y = x[:, :25].sum(1) > 0
    elif name == "blobs":
        centers = rng.normal(size=(5, 8)) * 3
        y = rng.integers(0, 5, N)
        x = centers[y] + rng.normal(size=(N, 8))
    else:
        x = rng.normal(size=(N, 10))
        y = np.sign(x[:, : 3 if name.startswith("parity") else 2]).prod(1) > 0
    return torch.tensor(x, dtype=torch.float32), torch.as_tensor(np.asarray(y).astype(int))


def count_answers(name: str, classes: int, rate: float, seeds: range) -> dict[str, Any]:
    """Count abstentions and covered rates over seeds."""
    estimates = []
    for seed in seeds:
        x, clean = sample_clean(name, seed)
        y = gs.data.inject_label_noise(clean, rate, classes, torch.Generator().manual_seed(seed))
        estimates.append(estimate((x, y), float((y != clean).double().mean()), seed=seed))
    answers = [row for row in estimates if row["answered"]]
    return {
        "data": name,
        "injected": rate,
        "draws": len(estimates),
        "abstained": len(estimates) - len(answers),
        "covered": sum(row["covered"] for row in answers),
        "mean rate": float(np.mean([row["rate"] for row in answers])) if answers else None,
    }


def hard_clean() -> dict[str, Any]:
    """Count answers on hard, clean data, and on data with known rates."""
    start = time.process_time()
    hard = [count_answers(name, classes, 0.0, range(200, 240)) for name, classes in HARD.items()]
    known = [
        count_answers(name, classes, rate, range(200, 210))
        for name, classes in KNOWN.items()
        for rate in RATES
    ]
    return {
        "cpu_seconds": time.process_time() - start,
        "samples": N,
        "hard": hard,
        "known": known,
        "zero_inside_or_abstained": [
            sum(row["abstained"] + row["covered"] for row in hard), sum(row["draws"] for row in hard)
        ],
        "covered_of_known": [
            sum(row["covered"] for row in known), sum(row["draws"] - row["abstained"] for row in known)
        ],
    }  # fmt: skip


def embeddings() -> dict[str, Any]:
    """Estimate noise in labels of CIFAR-10 test images from features of a pretrained network."""
    network, test, rows = (
        build_pretrained("ResNet-20", None, Path()),
        gs.load_dataset("cifar10").test,
        [],
    )
    network.linear = nn.Identity()
    for seed in range(3):
        generator = torch.Generator().manual_seed(3001 + seed)
        picks = torch.randperm(len(test), generator=generator)[:N_EMBEDDED]
        y = test.y[picks]
        with torch.no_grad():
            features = network(normalize(test.inputs[picks]))
        for rate in RATES_EMBEDDED:
            for kind in ("symmetric", "pair-wise")[: 1 if rate == 0 else 2]:
                plant = gs.data.inject_label_noise if kind == "symmetric" else shift_labels
                noisy = plant(y, rate, 10, generator)
                wrong = noisy != y
                truth = float(wrong.double().mean())
                issues = gs.find_label_issues(features=features, labels=noisy)
                ranking = scores(suspicion_of(issues, N_EMBEDDED), wrong.numpy()) if rate else {}
                answer = estimate(None, truth, features=features, labels=noisy)
                rows.append({"kind": kind, "seed": seed, "wrong": truth} | ranking | answer)
    answers = [row for row in rows if row["answered"]]
    return {
        "draws": len(rows),
        "answered": len(answers),
        "covered": sum(row["covered"] for row in answers),
        "mean AUROC": float(np.mean([row["auroc"] for row in rows if row.get("auroc")])),
        "rows": rows,
    }
