"""The library's estimate of the NTK: as a forecast of the fine-tunes of `ntk_forecast`, and beside the exact NTK."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gapscope as gs
from gapscope.base.files import read_json
from gapscope.base.randomness import derive_seed
from gapscope.measures.fitted_labels import features_row
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out, projected_leave_one_out
from gapscope_studies.pretrained.cells import split
from gapscope_studies.pretrained.features import build, load, pixels
from gapscope_studies.pretrained.ntk_forecast import evaluate, head_of, start

COMBINATIONS = (1, 2, 4)
EXACT = {"LeNet-5": 300, "ResNet-20": 150}  # samples of networks whose exact kernel is affordable


def cell(rule: dict[str, Any], folder: Path, data: str, seed: int) -> dict[str, Any]:
    """Return leave-one-out accuracies of features and estimated NTK, and the truths of the cell of `ntk_forecast`."""
    settings, of_data = rule["ntk_forecast"], rule["data"][data]
    x, y, _ = load(data, of_data["kind"], of_data["pool"], of_data["test"])
    train, _, _ = split(rule, data, settings["size"], derive_seed(seed, "ntk forecast"))
    labels, n_classes = y[train], int(y.max()) + 1
    chosen = x[train] if isinstance(x, Tensor) else [x[row] for row in train.tolist()]
    network = settings["data"][data]
    model, inputs = start(network, chosen, n_classes, settings, derive_seed(seed, "head"))
    begin = time.process_time()
    features = features_row(evaluate(model, inputs)[0].double(), labels, n_classes).score
    seconds = {"features": time.process_time() - begin}

    def estimate(name: str, combinations: int) -> float:
        begin = time.process_time()
        accuracy = projected_leave_one_out(
            model, inputs, labels, combinations=combinations, seed=seed
        ).accuracy
        seconds[name] = time.process_time() - begin
        return accuracy

    forecasts = {"features": features}
    for k in COMBINATIONS:
        forecasts[f"NTK of {k}"] = estimate(f"NTK of {k}", k)
    head_of(model).requires_grad_(False)
    forecasts["NTK without the head"] = estimate("NTK without the head", settings["combinations"])
    truths = read_json(folder / f"ntk_forecast {data} {seed}.json")["truths"]
    return {"data": data, "network": network, "seed": seed, "forecasts": with_means(forecasts, settings),
            "truths": truths, "cpu_seconds": seconds}  # fmt: skip


def with_means(forecasts: dict[str, float], settings: dict[str, Any]) -> dict[str, float]:
    """Add the means with the features; that of the rule's number of combinations is "features and NTK"."""
    features, judged = forecasts["features"], f"NTK of {settings['combinations']}"
    means = {
        "features and NTK" if name == judged else f"features and {name}": (features + value) / 2
        for name, value in forecasts.items()
        if name != "features"
    }
    return forecasts | means


def exact_cell(network: str, seed: int) -> dict[str, Any]:
    """Return leave-one-out accuracies of the exact NTK and of its estimates, and their CPU seconds."""
    generator = torch.Generator().manual_seed(seed)
    n = EXACT[network]
    if network == "LeNet-5":
        problem = gs.load_dataset("mnist")
        rows = torch.randperm(len(problem.train), generator=generator)[:n]
        x, y = problem.train.inputs[rows], problem.train.y[rows]
        model = gs.build_network(
            "lenet5",
            input_shape=problem.input_shape,
            n_outputs=10,
            generator=torch.Generator().manual_seed(seed),
        )
    else:
        x, y, _ = load("fashion_mnist", "pictures", 1000, 400)
        rows = torch.randperm(1000, generator=generator)[:n]
        x, y, model = pixels(network, x[rows], 32), y[rows], build(network)
    begin = time.process_time()
    result = {"network": network, "seed": seed, "samples": n}
    result["exact"] = kernel_leave_one_out(model, x, y).accuracy
    result["exact, seconds"] = time.process_time() - begin
    for k in (10, 4, 1):
        begin = time.process_time()
        result[f"estimate of {k}"] = projected_leave_one_out(
            model, x, y, combinations=k, seed=seed
        ).accuracy
        result[f"estimate of {k}, seconds"] = time.process_time() - begin
    return result


def jobs(rule: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the cells by name; those of `ntk_forecast` are finished before."""
    settings = rule["ntk_forecast"]
    cells = folder.parent / "ntk_forecast"
    return {f"ntk_projected {data} {seed}": partial(cell, rule, cells, data, seed)
            for seed in settings["seeds"] for data in settings["data"]}  # fmt: skip


def exact_jobs() -> dict[str, Any]:
    """Return the cells beside the exact kernel by name."""
    return {f"ntk_exact {network} {seed}": partial(exact_cell, network, seed)
            for network in EXACT for seed in (0, 1, 2)}  # fmt: skip
