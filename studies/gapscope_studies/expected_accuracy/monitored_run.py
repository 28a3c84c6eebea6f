"""Predictions of one run for the samples that it was trained on, beside those for new samples.

To use a run's own predictions as out-of-sample ones, read them at an epoch before it memorizes. Canaries (mislabelled
training samples) find this epoch without new data: most of them are still predicted as their true class, not as the
label that is trained on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import DataNotFound
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope_studies.expected_accuracy.rows import scale_rows, to_numbers, to_table
from gapscope_studies.kit.statistics import bootstrap_mean
from gapscope_studies.kit.study import Outcome, RunSettings

DATA = ("breast_cancer", "digits", "mnist", "fashion_mnist", "cifar10")
NOISE, EPOCHS, MAX_TRAINED, MAX_NEW = (0.0, 0.2), 30, 500, 1500
TIMES = {"canaries": "epoch that canaries choose", "last": "last epoch"}


def _load(name: str, root: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "breast_cancer":
        from sklearn import datasets

        bunch: Any = datasets.load_breast_cancer()
        return torch.from_numpy(bunch.data).float(), torch.from_numpy(bunch.target)
    train = gs.load_dataset(name, root=root).train
    return train.inputs.float().flatten(1), train.y


def read(name: str, noise: float, seed: int, root: str | None = None) -> dict[str, Any]:
    """Return accuracies of one run on its own samples and on new ones, labels with the same noise."""
    x, y = _load(name, root)
    generator = torch.Generator().manual_seed(derive_seed(seed, name))
    order = torch.randperm(len(x), generator=generator)[: MAX_TRAINED + MAX_NEW]
    n = min(MAX_TRAINED, len(order) // 2)
    x, y = x[order], y[order]
    spread = x[:n].std(0)
    x = ((x - x[:n].mean(0)) / spread)[:, spread > 1e-6]
    classes = int(y.max()) + 1
    y = gs.data.inject_label_noise(y, noise, classes, generator)
    canaries = gs.Canaries(y[:n], n_classes=classes, seed=seed)
    own = torch.ones(n, dtype=torch.bool)
    own[canaries.positions] = False
    result: list[tuple[float, float, float]] = []

    def accuracy(network: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> float:
        return float((network(rows).argmax(1) == labels).double().mean())

    def observe(network: nn.Module, row: dict[str, Any]) -> None:
        with torch.no_grad():
            of_canaries = accuracy(network, x[canaries.positions], y[canaries.positions])
            result.append(
                (
                    of_canaries,
                    accuracy(network, x[:n][own], y[:n][own]),
                    accuracy(network, x[n:], y[n:]),
                )
            )

    network = gs.build_network(
        "fully_connected", input_shape=(x.shape[1],), n_outputs=classes, width=64
    )
    spec = gs.TrainingSpec(epochs=EPOCHS, batch_size=32, optimizer="adam", learning_rate=3e-3)
    gs.train(network, Samples(x[:n], canaries.labels), spec, seed=seed, on_epoch=observe)
    chosen = max(range(len(result)), key=lambda epoch: result[epoch][0])
    times = {"canaries": result[chosen], "last": result[-1]}
    values = {time: {"own": own, "new": new} for time, (_, own, new) in times.items()}
    return {"data": name, "noise": noise, "seed": seed, "epoch": chosen + 1, **values}


def monitored_run(setting: RunSettings) -> Outcome:
    """Compare the accuracies of runs on their own samples with those on new ones."""
    seeds = setting.choose(smoke=1, small=3, paper=3)
    names = DATA[:1] if setting.scale == "smoke" else DATA
    rows, missing = [], {}
    for name in names:
        try:
            rows += [
                read(name, noise, seed, setting.data_root)
                for noise in NOISE
                for seed in range(seeds)
            ]
        except DataNotFound:
            missing[name] = "not on this machine"
    table = []
    for time, what in TIMES.items():
        for noise in NOISE:
            cells = [row for row in rows if row["noise"] == noise]
            own, new = (np.array([row[time][key] for row in cells]) for key in ("own", "new"))
            excess = bootstrap_mean(own - new, [row["data"] for row in cells])
            table.append({"predictions at": what, "label noise": f"{noise:.0%}", "runs": len(cells),
                          "accuracy on its own samples": float(own.mean()), "on new samples": float(new.mean()),
                          "excess": excess, "largest excess": float((own - new).max())})  # fmt: skip
    return Outcome(
        numbers={"rows": to_numbers(table), "runs": rows},
        tables={"Accuracy of one run": to_table(table)},
        verdict="Even where canaries find no memorization, a run predicts its own samples better than new ones.",
        stands_in_for=scale_rows({"data": ", ".join(dict.fromkeys(row["data"] for row in rows))}),
        seeds=list(range(seeds)),
        data=missing,
    )
