"""Cells of the study: one training sample of a data set, with features of one network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import gapscope as gs
from gapscope.accuracy.forecast_curve import growth_per_doubling
from gapscope.accuracy.forecast_result import LearningCurvePoint
from gapscope.accuracy.loo_rows import forecast_interval
from gapscope.base.randomness import derive_seed
from gapscope.statistics.baselines import target_matrix
from gapscope.statistics.kernel_ridge import log_evidence_per_sample
from gapscope_studies.labels.confident_learning import self_confidence
from gapscope_studies.labels.summary import scores, suspicion_of
from gapscope_studies.labels.uneven import plant
from gapscope_studies.pretrained.features import features, load

FORECAST, CURVE, FOLDS, HOLD_OUT = (
    "forecast_accuracy",
    "learning_curve",
    "linear probe, five folds",
    "20 % hold-out",
)
LOGME, SIZE = "LogME", "parameter count"
MAX_ITERATIONS = 300


def probe() -> Any:
    """Return a linear probe: logistic regression on standardized features."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=MAX_ITERATIONS))


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes with fewer samples than folds
        result = call()
    return result, time.process_time() - start


def split(rule: dict[str, Any], data: str, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of a training sample and of the test, and all classes."""
    settings = rule["data"][data]
    _, y, pool = load(data, settings["kind"], settings["pool"], settings["test"])
    generator = torch.Generator().manual_seed(derive_seed(seed, f"training sample of {data}"))
    return torch.randperm(pool, generator=generator)[:n], torch.arange(pool, len(y)), y


def _forecast(x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    result, seconds = _timed(lambda: gs.forecast_accuracy(None, (x, y), seed=seed))
    low, high = result.interval or (None, None)
    curve = [[point.samples, point.score] for point in result.curve if not point.extrapolated]
    return {"value": result.score, "low": low, "high": high, "answered": not result.abstained_because,
            "cpu_seconds": seconds, "curve": curve}  # fmt: skip


def with_present_interval(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell whose forecast has the interval that the library gives today, from its stored learning curve."""
    forecast = cell["methods"][FORECAST]
    if not forecast["answered"]:
        return cell
    growth = growth_per_doubling([LearningCurvePoint(*point) for point in forecast["curve"]])
    low, high = forecast_interval(forecast["value"], cell["n"], growth)
    return cell | {"methods": cell["methods"] | {FORECAST: forecast | {"low": low, "high": high}}}


def _curve(x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    result, seconds = _timed(lambda: gs.learning_curve(probe(), (x.numpy(), y.numpy()), seed=seed))
    return {"value": result.score, "low": result.low, "high": result.high, "answered": not result.abstained_because,
            "cpu_seconds": seconds}  # fmt: skip


def _folds(x: np.ndarray, y: np.ndarray, n_folds: int, seed: int) -> dict[str, Any]:
    split = KFold(n_folds, shuffle=True, random_state=seed)
    predictions, seconds = _timed(lambda: cross_val_predict(probe(), x, y, cv=split))
    return {"value": float((predictions == y).mean()), "cpu_seconds": seconds}


def _hold_out(x: np.ndarray, y: np.ndarray, fraction: float, seed: int) -> dict[str, Any]:
    order = np.random.default_rng(derive_seed(seed, "hold-out")).permutation(len(x))
    first = order[: round(fraction * len(x))]
    rest = np.setdiff1d(order, first)
    fitted, seconds = _timed(lambda: probe().fit(x[rest], y[rest]))
    return {"value": float(fitted.score(x[first], y[first])), "cpu_seconds": seconds}


def accuracy(
    rule: dict[str, Any], folder: Path, data: str, network: str, n: int, seed: int
) -> dict[str, Any]:
    """Return the truth, and every prediction of it with its CPU seconds."""
    values, facts = features(rule, data, network, folder)
    settings = rule["accuracy"]
    rows, test, y = split(rule, data, n, seed)
    x, labels = values[rows], y[rows]
    inputs, targets = x.numpy(), labels.numpy()
    fitted, probe_seconds = _timed(lambda: probe().fit(inputs, targets))
    methods = {
        FORECAST: _forecast(x, labels, seed),
        FOLDS: _folds(inputs, targets, settings["folds"], seed),
        HOLD_OUT: _hold_out(inputs, targets, settings["hold_out"], seed),
    }
    if "untrained" not in network and n >= settings["min_curve_size"]:
        methods[CURVE] = _curve(x, labels, seed)
    evidence, seconds = _timed(
        lambda: log_evidence_per_sample(x, target_matrix(labels, int(y.max()) + 1))
    )
    scores_only = {LOGME: {"value": evidence, "cpu_seconds": seconds},
                   SIZE: {"value": facts["parameters"], "cpu_seconds": 0.0}}  # fmt: skip
    return {
        "data": data, "network": network, "n": len(rows), "seed": seed,
        "truth": float(fitted.score(values[test].numpy(), y[test].numpy())), "probe_seconds": probe_seconds,
        "feature_seconds": facts["cpu_seconds"] * len(rows) / len(values), "methods": methods, "scores": scores_only,
    }  # fmt: skip


def labels(
    rule: dict[str, Any], folder: Path, data: str, network: str, kind: str, seed: int
) -> dict[str, Any]:
    """Return AUROC and average precision of planted label errors, by `find_label_issues` and by cleanlab's score."""
    settings = rule["labels"]
    values, _ = features(rule, data, network, folder)
    rows, _, y = split(rule, data, settings["size"], derive_seed(seed, "labels"))
    x, (_, clean) = values[rows], y[rows].unique(return_inverse=True)
    generator = torch.Generator().manual_seed(derive_seed(seed, f"{data} {kind}"))
    noisy = plant(kind, settings["rate"], x.double(), clean, generator)
    wrong = (noisy != clean).numpy()
    issues, seconds = _timed(lambda: gs.find_label_issues(None, (x, noisy), seed=seed))
    given = noisy.numpy()

    def held_out() -> np.ndarray:
        folds = StratifiedKFold(rule["accuracy"]["folds"], shuffle=True, random_state=seed)
        predicted: Any = cross_val_predict(
            probe(), x.numpy(), given, cv=folds, method="predict_proba"
        )
        present = np.unique(given)
        everything = np.zeros((len(given), int(clean.max()) + 1))
        everything[:, present] = predicted
        return everything

    probabilities, cleanlab_seconds = _timed(held_out)
    ours = scores(suspicion_of(issues, len(rows)), wrong)
    theirs = scores(1 - self_confidence(given, probabilities), wrong)
    return {
        "data": data, "network": network, "kind": kind, "seed": seed, "wrong": float(wrong.mean()),
        "methods": {"find_label_issues": ours | {"cpu_seconds": seconds},
                    "cleanlab, self-confidence": theirs | {"cpu_seconds": cleanlab_seconds}},
    }  # fmt: skip


def _sizes(rule: dict[str, Any], data: str, network: str) -> list[int]:
    """Return the training sizes of a network on a data set."""
    settings = rule["accuracy"]
    if "untrained" in network:
        return [settings["untrained_size"]]
    return list(dict.fromkeys(min(n, rule["data"][data]["pool"]) for n in settings["sizes"]))


def jobs(rule: dict[str, Any], folder: Path) -> dict[str, dict[str, Callable[[], dict[str, Any]]]]:
    """Return the cells of both parts by name."""
    of_accuracy, of_labels = {}, {}
    for data, settings in rule["data"].items():
        for network in rule["networks"][settings["kind"]]:
            for n in _sizes(rule, data, network):
                for seed in rule["accuracy"]["seeds"]:
                    name = f"accuracy {data} {network} {n} {seed}"
                    of_accuracy[name] = partial(accuracy, rule, folder, data, network, n, seed)
        network = rule["networks"][settings["kind"]][0]
        for kind in rule["labels"]["kinds"]:
            for seed in rule["labels"]["seeds"]:
                name = f"labels {data} {kind} {seed}"
                of_labels[name] = partial(labels, rule, folder, data, network, kind, seed)
    return {"accuracy": of_accuracy, "labels": of_labels}
