"""Held-out probabilities of `gs.out_of_sample`: how accurate and calibrated, beside five folds.

Protocol: tables of scikit-learn and 500 images each of four data sets; the labels as they are, and with a fifth
replaced by random classes. The network has one hidden layer of 64 units and 200 steps of Adam on all samples.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import DataNotFound
from gapscope.base.randomness import derive_seed
from gapscope_studies.expected_accuracy.rows import to_numbers, to_table
from gapscope_studies.kit.statistics import bootstrap
from gapscope_studies.kit.study import Outcome, RunSettings, Table

TABLES = ("iris", "wine", "breast_cancer")
IMAGES = ("digits", "mnist", "fashion_mnist", "cifar10")
N_IMAGES, NOISE = 500, (0.0, 0.2)
CLOSED, SHORT, NETWORK = (
    "kernels of the inputs, closed form",
    "two short halves, continued",
    "network in five folds",
)
LOGISTIC, FOREST = "logistic regression in five folds", "forest, out of bag"
METHODS = (CLOSED, SHORT, NETWORK, LOGISTIC, FOREST)


def _load(name: str, root: str | None) -> tuple[np.ndarray, np.ndarray]:
    if name in TABLES:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        return bunch.data.astype("float32"), bunch.target
    samples = gs.load_dataset(name, root=root).train.first(N_IMAGES)
    return samples.inputs.reshape(len(samples), -1).float().numpy(), samples.y.numpy()


def _train(x: Tensor, y: Tensor, steps_fraction: float = 1.0) -> nn.Module:
    network = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, int(y.max()) + 1))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(round(200 * steps_fraction)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network


def _source(method: str) -> tuple[Any, float]:
    """Return the source and cost of a method."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    forest = RandomForestClassifier(200, random_state=0)
    sources = {
        CLOSED: (None, 0),
        SHORT: (_train, 0.5),
        NETWORK: (_train, 5),
        LOGISTIC: (logistic, 5),
        FOREST: (forest, 1),
    }
    return sources[method]


def read(name: str, noise: float, root: str | None = None) -> list[dict[str, Any]]:
    """Return one row per method for one data set with a fraction of random labels."""
    x, y = _load(name, root)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)
    random = np.random.default_rng(derive_seed(0, f"{name} {noise}"))
    labels = np.where(random.random(len(y)) < noise, random.integers(y.max() + 1, size=len(y)), y)
    rows = []
    for method in METHODS:
        source, cost = _source(method)
        start = time.process_time()
        result = gs.out_of_sample(source, (x, labels), cost=cost)
        rows.append({
            "data": name, "noise": noise, "samples": len(y), "method": method, "accuracy": result.score,
            "cross-entropy": result.cross_entropy, "calibration error": result.calibration_error,
            "seconds": time.process_time() - start,
        })  # fmt: skip
    return rows


def _means(table: Table, noise: float) -> list[dict[str, Any]]:
    part = table[table["noise"] == noise].pivot(index="data", columns="method")
    rows = []
    for method in METHODS:
        columns = {
            name: part[name][method].to_numpy()
            for name in ("accuracy", "cross-entropy", "calibration error")
        }
        excess = columns["cross-entropy"] - part["cross-entropy"][NETWORK].to_numpy()
        rows.append({
            "random labels": f"{noise:.0%}", "method": method, "data sets": len(part),
            "accuracy": float(columns["accuracy"].mean()), "cross-entropy": float(columns["cross-entropy"].mean()),
            "minus the network in five folds": bootstrap(lambda rows, e=excess: float(e[rows].mean()), len(excess)),
            "calibration error": float(columns["calibration error"].mean()),
            "CPU seconds": float(part["seconds"][method].mean()),
        })  # fmt: skip
    return rows


def held_out(setting: RunSettings) -> Outcome:
    """Compare held-out probabilities of five sources on seven data sets."""
    names = TABLES[:2] if setting.scale == "smoke" else (*TABLES, *IMAGES)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for name in names:
        try:
            for noise in NOISE:
                rows += read(name, noise, setting.data_root)
        except DataNotFound:
            missing.append(name)
        setting.say(f"  held_out: {name}")
    table = pandas.DataFrame(rows)
    means = {noise: _means(table, noise) for noise in NOISE}
    return Outcome(
        numbers={
            "rows": rows,
            **{f"{noise:.0%}": to_numbers(part) for noise, part in means.items()},
        },
        tables={f"{noise:.0%} random labels": to_table(part) for noise, part in means.items()},
        verdict=(
            f"Means over {table['data'].nunique()} data sets. The cross-entropy is that of the given labels, also of "
            "wrong ones."
        ),
        stands_in_for=[
            {"what": "data", "paper": "", "here": ", ".join(dict.fromkeys(table["data"]))}
        ],
        data=dict.fromkeys(missing, "not on this machine"),
    )
