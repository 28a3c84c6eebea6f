"""Protocol: methods tuned once with equal budget and frozen, networks trained and scored.

Tuning is a cross-validation on training samples with their wrong labels as they are. Test labels never chose a
strength; epochs, the learning rate, sizes and the ranges of strengths were set by hand, and changed after first results
on test labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch
from torch import nn

from gapscope.base.randomness import derive_seed
from gapscope.base.specs import RunSpec
from gapscope.inspection.losses import default_loss, evaluate
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.measures.kernel_leave_one_out import kernel_alignment
from gapscope.measures.ntk import empirical_ntk
from gapscope.pools.from_spec import network_from_spec, prepare_data
from gapscope.results.records import Record
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope_studies.kit.study import RunSettings, Table
from gapscope_studies.szolnoky2022.setups import Method, Setup

TUNING_SEED = 1000
# log det K is that of the n x n kernel, summed over outputs; the trace is a mean over samples and outputs
OPTIONS = {"ntk_logdet": {"outputs": "traced"}}
HALF_WIDTH, POINTS = 2.0, 61
# of a row of the training's history
HISTORY = (
    "epoch",
    "test_accuracy",
    "train_loss",
    "train_accuracy",
)
Scenario = Mapping[str, Any]


# --- tuning


def held_out_scores(spec: RunSpec, fold: int, folds: int, data_root: str | None) -> dict[str, Any]:
    """Train without one random fold of the (corrupted) training samples, and score on it."""
    problem, _ = prepare_data(spec, data_root)
    generator = torch.Generator().manual_seed(derive_seed(spec.data.seed, "folds"))
    parts = list(torch.randperm(len(problem.train), generator=generator).tensor_split(folds))
    held_out = problem.train.subset(parts.pop(fold))
    network = network_from_spec(spec, problem)
    result = train(network, problem.train.subset(torch.cat(parts)), spec.training, seed=spec.seed)
    return {"status": result.status} | (
        evaluate(network, held_out) if result.status == "finished" else {}
    )


def tuning_row(
    setup: Setup, method: str, strength: float, folds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the mean score over folds (per cent or loss), the worst where one diverged."""
    factor = 100 if setup.metric == "accuracy" else 1
    values = [factor * item[setup.metric] for item in folds if item["status"] == "finished"]
    diverged = len(folds) - len(values)
    worst = math.inf if setup.lower_is_better else 0.0
    return {
        "method": method,
        "strength": strength,
        f"held-out {setup.metric}": float(numpy.mean(values)) if not diverged else worst,
        "sd over folds": float(numpy.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "diverged": diverged,
    }


def tune(setting: RunSettings, setup: Setup) -> Table:
    """Tune every strength of every method in the middle scenario by held-out scores.

    `chosen` marks the selected strengths. What `tuned.csv` has of the same base network, method and strength is reused.
    """
    base, column = setup.with_seed(TUNING_SEED), f"held-out {setup.metric}"
    trials = [
        (method, strength)
        for method in setup.methods
        for strength in method.strengths(setup.n_strengths)
    ]
    stored: Table = pandas.read_csv(Path(__file__).with_name("tuned.csv"), comment="#")
    stored = (
        stored[stored["base"] == base.id]
        .drop(columns=["setup", "base"])
        .rename(columns={"score": column})
    )
    names = {*zip(stored["method"], stored["strength"], strict=True)}
    missing = [
        (method, strength) for method, strength in trials if (method.name, strength) not in names
    ]
    tables = [stored, _tune_missing(setting, setup, base, missing)] if missing else [stored]
    order = [(method.name, strength) for method, strength in trials]
    table = pandas.concat([each for each in tables if len(each)]).set_index(["method", "strength"])
    table = table.loc[order].reset_index()
    score = table[column] * (-1 if setup.lower_is_better else 1)
    table["chosen"] = score.index.isin(score.groupby(table["method"]).idxmax().to_list())
    return table


def _tune_missing(
    setting: RunSettings, setup: Setup, base: RunSpec, trials: Sequence[tuple[Method, float]]
) -> Table:
    jobs: dict[str, Any] = {}
    rows = []
    for method, strength in trials:
        spec = method.apply(base, strength)
        names = [f"{spec.id}-{fold}-of-{setup.folds}" for fold in range(setup.folds_scored)]
        jobs |= {name: partial(held_out_scores, spec, fold, setup.folds, setting.data_root)
                 for fold, name in enumerate(names)}  # fmt: skip
        rows.append((method.name, strength, names))
    scores = setting.cached("tuning", jobs)
    return pandas.DataFrame(tuning_row(setup, name, strength, [scores[fold] for fold in folds])
                            for name, strength, folds in rows)  # fmt: skip


def chosen_strengths(table: Table) -> dict[str, float]:
    """Return the strength of the best held-out score by method (the smallest of equals)."""
    return table[table["chosen"]].set_index("method")["strength"].astype(float).to_dict()


# --- networks of tables


def scenario_row(setup: Setup, method: str, spec: RunSpec, record: Record) -> dict[str, Any]:
    """Return scenario, method, seed, final and best test metric, and curve of one network."""
    factor = 100.0 if setup.metric == "accuracy" else 1.0
    curve = [factor * float(row[f"test_{setup.metric}"]) for row in record.history]
    curve += [setup.chance] * (record.status != "finished")
    best = min if setup.lower_is_better else max
    return {
        "noise": spec.data.target_noise if setup.lower_is_better else spec.data.label_noise,
        "size": spec.data.train_size,
        "batch size": spec.training.batch_size,
        "learning rate": spec.training.learning_rate,
        "epochs": spec.training.epochs,
        "method": method,
        "seed": spec.seed,
        "final": curve[-1],
        "best": best(value for value in curve if not math.isnan(value))
        if len(curve) > 1
        else curve[-1],
        "diverged": record.status != "finished",
        "train_accuracy": record.scores.get("train_accuracy", setup.chance / 100),
        "curve": curve,
        "loss curve": [float(row["train_loss"]) for row in record.history if "train_loss" in row],
    }


def run_scenarios(
    setting: RunSettings, setup: Setup, tuning: Table, scenarios: Sequence[Scenario], runs: int
) -> tuple[Table, list[RunSpec]]:
    """Run every method in every scenario with frozen strengths, and return rows of networks.

    A scenario holds what differs from the middle one.
    """
    strengths = chosen_strengths(tuning)
    specs_by_method = [
        (method.name, method.apply(setup.with_seed(seed).replace(scenario), strengths[method.name]))
        for seed in range(runs)
        for scenario in scenarios
        for method in setup.methods
    ]
    specs = list(dict.fromkeys(spec for _, spec in specs_by_method))
    pool = f"{setup.base.network.name}-{setup.base.data.name}"
    records = dict(zip(specs, setting.train(pool, specs, measures=()), strict=True))
    return pandas.DataFrame(
        scenario_row(setup, method, spec, records[spec]) for method, spec in specs_by_method
    ), specs


def constant_prediction_loss(setting: RunSettings, setup: Setup) -> float:
    """Return the test loss of the mean training target, averaged over runs without noise."""
    losses = []
    for seed in range(setup.runs):
        problem, _ = prepare_data(
            setup.with_seed(seed).replace({"data.target_noise": 0.0}), setting.data_root
        )
        constant = problem.train.y.mean(0).expand_as(problem.test.y)
        losses.append(float(default_loss(constant, problem.test.y)))
    return float(numpy.mean(losses))


# --- networks of figures


def plane() -> torch.Tensor:
    """Return points [61 * 61, 2] of a square around two circles, row by row."""
    axis = torch.linspace(-HALF_WIDTH, HALF_WIDTH, POINTS)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x, y], 2).flatten(0, 1)


def monitor_run(spec: RunSpec, every: int, n_samples: int, data_root: str | None) -> dict[str, Any]:
    """Train a network, and read its kernel at the start and after every `every`-th epoch.

    Return its status and `rows`, one per recording: trace is tr K / nC, masked_logdet that of a network with its
    dropout masks on. For inputs of two numbers also alignment, that of the kernel with the kernel of the labels, and
    `plane`, the final probabilities of class 1 on the plane, to three digits.
    """
    problem, _ = prepare_data(spec, data_root)
    network = network_from_spec(spec, problem)
    common: dict[str, Any] = {"every": every, "n_samples": n_samples, "max_time_fraction": None}
    monitor = Monitor(problem.train, options=OPTIONS, **common)
    masked = None
    if any(isinstance(module, nn.Dropout) for module in network.modules()):
        options = {"ntk_logdet": OPTIONS["ntk_logdet"]}
        masked = Monitor(problem.train, ["ntk_logdet"], mode="train", options=options, **common)
    rows: list[dict[str, Any]] = []
    flat = problem.input_shape == (2,)

    def record(network: nn.Module, row: Mapping[str, Any]) -> None:
        if row["epoch"] % every:
            return
        readings = monitor.observe(network, row["epoch"])
        result = {name: row[name] for name in HISTORY if name in row}
        result |= {
            "trace": readings["ntk_trace"] / (len(monitor.samples) * problem.n_outputs),
            "logdet": readings["ntk_logdet"],
        }
        if flat:
            labels = nn.functional.one_hot(problem.train.y).double()
            kernel = empirical_ntk(network, problem.train.inputs, outputs="traced")
            result["alignment"] = kernel_alignment(kernel, labels @ labels.T)  # centred
        if masked is not None:
            result["masked_logdet"] = masked.observe(network, row["epoch"])["ntk_logdet"]
        rows.append(result)

    record(network, {"epoch": 0})
    status = train(
        network, problem.train, spec.training, seed=spec.seed, test=problem.test, on_epoch=record
    ).status
    content: dict[str, Any] = {"status": status, "rows": rows}
    if flat and status == "finished":
        with inspection_mode(network):
            probabilities = network_outputs(network, plane()).softmax(1)[:, 1]
        content["plane"] = [round(value, 3) for value in probabilities.tolist()]
    return content


def fill_recordings(content: Mapping[str, Any], setup: Setup, every: int) -> list[dict[str, Any]]:
    """Return the recordings of a run, filled up after divergence (accuracies in per cent)."""
    rows: list[dict[str, Any]] = [
        {column: float(value) for column, value in row.items()} for row in content["rows"]
    ]
    for row in rows:
        for column in ("test_accuracy", "train_accuracy"):
            row[column] = 100 * row.get(column, math.nan)
    if content["status"] != "finished":
        missing = range(round(rows[-1]["epoch"]) + every, setup.base.training.epochs + 1, every)
        after = {
            "diverged": True,
            "test_accuracy": setup.chance,
            "trace": math.nan,
            "logdet": math.nan,
        }
        rows += [after | {"epoch": float(epoch)} for epoch in missing]
    return rows


def monitor_methods(
    setting: RunSettings, setup: Setup, tuning: Table
) -> tuple[Table, dict[tuple[str, int], list[float]], list[RunSpec]]:
    """Monitor every method in the middle scenario with its frozen strength.

    Return one row per recording, final probabilities on the plane by method and seed, and the specs.
    """
    every, n_samples = setup.watched["every"], setup.watched["n_samples"]
    strengths = chosen_strengths(tuning)
    names, jobs, specs = {}, {}, []
    for method in setup.methods:
        for seed in range(setup.runs):
            specs.append(method.apply(setup.with_seed(seed), strengths[method.name]))
            names[method.name, seed] = name = f"{specs[-1].id}-{every}-{n_samples}"
            jobs[name] = partial(monitor_run, specs[-1], every, n_samples, setting.data_root)
    result = setting.cached("watched", jobs)
    rows = [
        {"method": method, "seed": seed, "diverged": False} | row
        for (method, seed), name in names.items()
        for row in fill_recordings(result[name], setup, every)
    ]
    planes = {key: result[name]["plane"] for key, name in names.items() if "plane" in result[name]}
    return pandas.DataFrame(rows), planes, specs
