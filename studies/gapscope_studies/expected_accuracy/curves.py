"""Continued subset runs, control variates and `estimate_accuracy` on fresh networks."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import Any

import numpy as np
import pandas
import torch
from torch import nn

import gapscope as gs
from gapscope.accuracy.continued_runs import continued_predictions, move_towards_kernel
from gapscope.accuracy.subset_designs import CONTINUED_ERROR, folds, quarter_and_halves
from gapscope.base.errors import GapscopeError
from gapscope.base.randomness import derive_seed
from gapscope.statistics.baselines import feature_matrix, rbf_ridge
from gapscope_studies.expected_accuracy.pools import Configuration, plans, spread_evenly
from gapscope_studies.expected_accuracy.rows import (
    error_claim,
    provenance,
    rms_difference,
    rms_error,
    root_mean_square,
    to_numbers,
    to_table,
)
from gapscope_studies.expected_accuracy.runs import (
    accuracy,
    build,
    data_of,
    load_or_read,
    on_equally_noisy,
)
from gapscope_studies.kit.statistics import bootstrap, to_list
from gapscope_studies.kit.study import Outcome, RunSettings, Table

FRESH = plans("third_cifar_batch_norm", "third_images", "third_table")
SHARES = {"long": 1.0, "short": 0.25}
HOLD_OUT, FOLDS, SHORT, LONG = (
    "20 % hold-out",
    "five folds",
    "short continued halves",
    "continued halves",
)
COSTS = {
    "RBF ridge": 0.0,
    SHORT: 0.5,
    HOLD_OUT: 1.0,
    "two halves as scored": 2.0,
    LONG: 2.0,
    FOLDS: 5.0,
}
SECONDS = {SHORT: "short.seconds", LONG: "long.seconds", FOLDS: "folds.seconds"}
# columns of value, low and high, minus the truth
VALIDATED = {"control variates": slice(0, 3), "validation samples alone": slice(3, 6)}
LINES = {"same_noise": "same label noise", "clean_labels": "clean labels"}


# --- reading one network


def _random(configuration: Configuration, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(configuration.seed, f"{configuration.pool} {purpose}"))


def _reseed(configuration: Configuration, name: str) -> Configuration:
    return dataclasses.replace(configuration, seed=derive_seed(configuration.seed, name) % 2**31)


def _train(
    configuration: Configuration,
    part: gs.Samples,
    outputs: int,
    name: str,
    full: int,
    share: float = 1.0,
) -> nn.Module:
    """Train a network on a part, with (a fraction of) the optimizer steps of all samples."""
    training = dict(configuration.recipe.training)
    batches, batches_of_all = (
        math.ceil(size / min(training["batch_size"], full)) for size in (len(part), full)
    )
    training["epochs"] = max(1, round(share * training["epochs"] * batches_of_all / batches))
    other = _reseed(configuration, name)
    network = build(other, part, outputs)
    gs.train(network, part, gs.TrainingSpec.from_dict(training), seed=other.seed)
    return network.eval()


def _is_correct(network: nn.Module, samples: gs.Samples) -> np.ndarray:
    with torch.no_grad():
        return (network(samples.inputs).argmax(1) == samples.targets).double().numpy()


def _split(train: gs.Samples, split: Any) -> list[gs.Samples]:
    return [train.subset(torch.from_numpy(part)) for part in (split.trained, split.scored)]


def halves(configuration: Configuration, train: gs.Samples, classes: int) -> dict[str, Any]:
    """Return scores of both halves, as trained and continued, per number of steps."""
    n, labels = len(train), train.targets
    assert labels is not None
    features = feature_matrix(train.inputs)
    _, *splits = quarter_and_halves(np.arange(n), _random(configuration, "halves"))
    parts = [torch.from_numpy(split.trained) for split in splits]
    half_scores = [
        rbf_ridge(features[rows], labels[rows], n_classes=classes).score for rows in parts
    ]
    result: dict[str, Any] = {
        "rbf": rbf_ridge(features, labels, n_classes=classes).score,
        "rbf_half": float(np.average(half_scores, weights=[len(rows) for rows in parts])),
    }
    for name, share in SHARES.items():
        readings = []
        for split in splits:
            half, rest = _split(train, split)
            start = time.process_time()
            network = _train(configuration, half, classes, f"{name} {split.name}", n, share)
            seconds = time.process_time() - start
            continued = (
                (continued_predictions(network, rest).argmax(1) == rest.targets).double().mean()
            )
            raw = _is_correct(network, rest).mean()
            readings.append({"raw": raw, "continued": float(continued), "seconds": seconds})
        result |= {
            f"{name}.{key}": float(np.mean([each[key] for each in readings])) for key in readings[0]
        }
    return result


def baselines(
    configuration: Configuration, train: gs.Samples, test: gs.Samples, classes: int
) -> dict[str, Any]:
    """Return baselines: network on all samples, five folds, and validation of fold networks."""
    n = len(train)

    def validate(network: nn.Module, held_out: gs.Samples, part: gs.Samples) -> list[float]:
        truth = on_equally_noisy(accuracy(network, test), configuration.noise, classes)
        validated = gs.validated_accuracy(network, held_out, part)
        plain = validated.plain
        ends = (validated.score, validated.low, validated.high, plain.value, plain.low, plain.high)
        return [end - truth for end in ends]

    start = time.process_time()
    network = _train(configuration, train, classes, "all", n)
    seconds, clean = time.process_time() - start, accuracy(network, test)
    scores, networks, start = [], [], time.process_time()
    for split in folds(np.arange(n), 5, _random(configuration, "folds")):
        part, rest = _split(train, split)
        fold_network = _train(configuration, part, classes, split.name, n)
        scores.append(_is_correct(fold_network, rest))
        networks.append((fold_network, rest, part))
    return {
        "seconds": seconds,
        "clean_truth": clean,
        "truth": on_equally_noisy(clean, configuration.noise, classes),
        "train_score": accuracy(network, train),
        "folds": float(np.concatenate(scores).mean()),
        "hold_out": float(scores[0].mean()),
        "folds.seconds": time.process_time() - start,
        "validated.fifth": [validate(*each) for each in networks],
        "validated.tenth": [
            validate(fold_network, rest.subset(tenth), part)
            for fold_network, rest, part in networks
            for tenth in torch.arange(len(rest)).tensor_split([len(rest) // 2])
        ],
    }


def estimates(configuration: Configuration, train: gs.Samples, classes: int) -> dict[str, Any]:
    """Return `estimate_accuracy` of the full-data network, with and without initial weights."""
    network = _train(configuration, train, classes, "all", len(train))
    before = build(_reseed(configuration, "all"), train, classes)
    result: dict[str, Any] = {}
    for name, state in (("given", before.state_dict()), ("resampled", None)):
        try:
            estimate = gs.estimate_accuracy(
                network, train, initial_state=state, n_training=len(train)
            )
        except GapscopeError as error:
            result[f"estimate.{name}"] = str(error)[:80]
            continue
        for line in LINES:
            answer = getattr(estimate, line)
            result[f"estimate.{name}.{line}"] = None if answer is None else to_list(answer)
    return result


def read(configuration: Configuration, root: str | None = None) -> dict[str, Any]:
    """Return all readings of one fresh network as JSON-serializable values."""
    train, test, classes = data_of(configuration, root)
    result = configuration.facts() | {"name": configuration.job, "classes": classes}
    result |= halves(configuration, train, classes) | baselines(configuration, train, test, classes)
    return result | estimates(configuration, train, classes)


# --- evaluation of all networks


def predictions(table: Table) -> dict[str, np.ndarray]:
    """Return the predicted score of each network by every method."""
    columns = {
        "RBF ridge": "rbf",
        HOLD_OUT: "hold_out",
        "two halves as scored": "long.raw",
        FOLDS: "folds",
    }
    result = {name: table[column].to_numpy(dtype=float) for name, column in columns.items()}
    for name, part in ((SHORT, "short"), (LONG, "long")):
        rows = table[[f"{part}.continued", "rbf", "rbf_half"]].to_numpy(dtype=float)
        result[name] = np.array([move_towards_kernel(*row) for row in rows])
    return {name: result[name] for name in COSTS}


def is_covered(
    forecast: np.ndarray, samples: np.ndarray, truth: np.ndarray, network_error: float
) -> np.ndarray:
    """Return whether each 90 % interval with this error between networks covers the truth."""
    variance = np.maximum(forecast * (1 - forecast), (1 - 1 / samples) / samples)
    return np.abs(forecast - truth) <= 1.645 * np.sqrt(
        variance * (1 / samples + 4 * network_error**2)
    )


def _errors(table: Table, group: str) -> list[dict[str, Any]]:
    truth, samples = table["truth"].to_numpy(dtype=float), table["samples"].to_numpy(dtype=float)
    data, rows = table["data"].tolist(), []
    values = predictions(table)
    errors = {name: value - truth for name, value in values.items()}
    for name, error in errors.items():
        baseline = FOLDS if COSTS[name] >= 2 else HOLD_OUT
        seconds = covered = float("nan")
        if name in SECONDS:  # columns of seconds are means over two halves, or sums of folds
            factor = 1 if name == FOLDS else 2
            seconds = factor * float(table[SECONDS[name]].sum() / table["seconds"].sum())
        if name in (SHORT, LONG):
            covered = float(is_covered(values[name], samples, truth, CONTINUED_ERROR).mean())
        rows.append({
            "networks": group, "n": len(table), "method": name, "cost in trainings (steps)": COSTS[name],
            "cost in trainings (CPU seconds)": seconds, "RMSE": rms_error(error, data), "bias": float(error.mean()),
            "minus the rival": rms_difference(error, errors[baseline], data), "rival": baseline, "covered": covered,
        })  # fmt: skip
    return rows


def _validated(table: Table) -> list[dict[str, Any]]:
    rows = []
    for size, column in (("10 %", "validated.tenth"), ("20 %", "validated.fifth")):
        # one row per validation split of a network
        repeats = table[["data", column]].explode(column)
        data, values = repeats["data"].tolist(), np.array(repeats[column].tolist(), dtype=float)
        alone = values[:, VALIDATED["validation samples alone"]][:, 0]
        for name, columns in VALIDATED.items():
            error, low, high = values[:, columns].T

            def worth(
                rows: np.ndarray, error: np.ndarray = error, alone: np.ndarray = alone
            ) -> float:
                return float((alone[rows] ** 2).mean() / (error[rows] ** 2).mean())

            rows.append({
                "validation split": size, "method": name, "networks": len(values), "RMSE": rms_error(error, data),
                "worth, in multiples of the split": bootstrap(worth, len(values), data),
                "covered": float(((low <= 0) & (high >= 0)).mean()), "width": float((high - low).mean()),
            })  # fmt: skip
    return rows


def _estimates(table: Table) -> list[dict[str, Any]]:
    """Return coverage and error of both lines of `estimate_accuracy`, by noise and weights."""
    rows = []
    parts = [("all", table), *((f"{value:.0%}", part) for value, part in table.groupby("noise"))]
    for weights, line, (noise, part) in itertools.product(("given", "resampled"), LINES, parts):
        column, truth = (
            f"estimate.{weights}.{line}",
            "truth" if line == "same_noise" else "clean_truth",
        )
        answers = part.loc[part[column].map(lambda value: isinstance(value, list)), [column, truth]]
        row = {"line": LINES[line], "initial weights": weights, "label noise": noise, "n": len(part),
               "answered": len(answers)} | dict.fromkeys(("covered", "RMSE", "bias"), math.nan)  # fmt: skip
        if len(answers):
            value, low, high = np.array(answers[column].tolist()).T
            errors, is_inside = value - answers[truth], answers[truth].between(low, high)
            row |= {
                "covered": float(is_inside.mean()),
                "RMSE": root_mean_square(errors),
                "bias": float(errors.mean()),
            }
        rows.append(row)
    return rows


def curves(setting: RunSettings) -> Outcome:
    """Evaluate all methods on the fresh networks that are stored, or that are trained now."""
    order = expected = spread_evenly(FRESH)
    if setting.scale == "smoke":
        expected = [item for item in order if item.pool == "third_table"][:3]
    networks = load_or_read(setting, expected, "curves", read)
    table = pandas.DataFrame(networks)
    groups: dict[str, Table] = {
        "all classifiers": table,
        "clean labels": table[table["noise"] == 0],
        "20 and 40 % label noise": table[table["noise"] > 0],
        "CNNs with batch norm": table[
            table["recipe"].str.contains("cnn") & table["recipe"].str.contains("batch_norm")
        ],
    }
    rows = {name: _errors(part, name) for name, part in groups.items() if len(part)}
    validated, lines = _validated(table), _estimates(table)
    return Outcome(
        numbers={
            "errors": {name: to_numbers(part) for name, part in rows.items()},
            "validated": to_numbers(validated),
            "estimates": lines,
            "networks": len(table),
            "drawn": len(order),
        },
        claims=[
            error_claim(f"{row['method']} err less than {row['rival']}, which cost more",
                        "root mean squared error minus the rival's", row["minus the rival"], below=0.0)
            for row in rows["all classifiers"] if row["method"] in (SHORT, LONG)
        ],
        tables={
            **{name: to_table(part) for name, part in rows.items()},
            "Validation accuracy with control variates": to_table(validated),
            "estimate_accuracy": to_table(lines),
        },
        verdict=(
            f"{len(networks)} of {len(order)} drawn networks were trained, after the rule had been committed. "
            "Intervals are over data sets. The rival from a cost of two trainings is five folds, else the hold-out."
        ),
        **provenance(setting, networks),
    )  # fmt: skip
