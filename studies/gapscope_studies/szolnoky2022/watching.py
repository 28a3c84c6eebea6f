"""Networks of figures: trace and log determinant of the kernel along training, beside the test accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gapscope.base.specs import Spec
from gapscope.inspection.outputs import inspecting, network_outputs
from gapscope.pools.from_spec import build_network, prepared
from gapscope.training.loop import train
from gapscope.training.monitor import Monitor
from gapscope_studies.kit.study import Setting
from gapscope_studies.szolnoky2022.kept import kept
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.setups import Setup

# log det K is that of the n x n kernel, summed over outputs; the trace is a mean over samples and outputs.
OPTIONS = {"ntk_trace": {"reduction": "mean"}, "ntk_logdet": {"outputs": "traced"}}
HALF_WIDTH, POINTS = 2.0, 61


def plane() -> torch.Tensor:
    """Points [61 * 61, 2] of a square around two circles, row by row."""
    axis = torch.linspace(-HALF_WIDTH, HALF_WIDTH, POINTS)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x, y], 2).flatten(0, 1)


def _on_the_plane(network: nn.Module) -> list[float]:
    """Probability of class 1 on the points of `plane`, to three digits."""
    with inspecting(network):
        probabilities = network_outputs(network, plane()).softmax(1)[:, 1]
    return [round(value, 3) for value in probabilities.tolist()]


def watch(spec: Spec, every: int, n_samples: int, data_root: str | None) -> dict[str, Any]:
    """Train a network and take the readings of its kernel at the start and after every `every`-th epoch.

    Args:
        spec: What is trained.
        every: Epochs from one recording to the next.
        n_samples: Training samples of the kernel, the same all along.
        data_root: Where the data lie.

    Returns:
        Status; `rows`, one a recording: epoch, trace (tr K / nC), logdet, and after training began test_accuracy and
        train_loss; for networks with dropout also masked_logdet, with its masks on; for inputs of two numbers
        `plane`, the final probabilities on the plane.
    """
    problem, _ = prepared(spec, data_root)
    network = build_network(spec, problem)
    common: dict[str, Any] = {"every": every, "n_samples": n_samples}
    monitor = Monitor(problem.train, options=OPTIONS, **common)
    masked = None
    if any(isinstance(module, nn.Dropout) for module in network.modules()):
        options = {"ntk_logdet": OPTIONS["ntk_logdet"]}
        masked = Monitor(problem.train, ["ntk_logdet"], mode="train", options=options, **common)
    rows: list[dict[str, Any]] = []

    def record(network: nn.Module, row: Mapping[str, Any]) -> None:
        if row["epoch"] % every:
            return
        numbers = monitor.record(network, row["epoch"])
        kept_columns = {name: row[name] for name in ("epoch", "test_accuracy", "train_loss") if name in row}
        found = {"trace": numbers["ntk_trace"], "logdet": numbers["ntk_logdet"]}
        if masked is not None:
            found["masked_logdet"] = masked.record(network, row["epoch"])["ntk_logdet"]
        rows.append(kept_columns | found)

    record(network, {"epoch": 0})
    result = train(network, problem.train, spec.training, seed=spec.seed, test=problem.test, on_epoch=record)
    content: dict[str, Any] = {"status": result.status, "rows": rows}
    if problem.input_shape == (2,) and result.status == "finished":
        content["plane"] = _on_the_plane(network)
    return content


def _completed(content: Mapping[str, Any], setup: Setup, every: int) -> list[dict[str, Any]]:
    """The recordings of a run, with those that it did not live to see; accuracies in per cent."""
    rows: list[dict[str, Any]] = [{column: float(value) for column, value in row.items()} for row in content["rows"]]
    for row in rows:
        row["test_accuracy"] = 100 * row.get("test_accuracy", math.nan)
    if content["status"] != "finished":
        left = range(round(rows[-1]["epoch"]) + every, setup.base.training.epochs + 1, every)
        after = {"diverged": True, "test_accuracy": setup.chance, "trace": math.nan, "logdet": math.nan}
        rows += [after | {"epoch": float(epoch)} for epoch in left]
    return rows


def watched(
    setting: Setting, setup: Setup, strengths: Mapping[str, float], *, every: int, n_samples: int
) -> tuple[Table, dict[str, list[float]]]:
    """Watch every method in the middle scenario, with the strengths as they were frozen.

    Args:
        setting: Scale, work folder, workers.
        setup: Network, data and methods.
        strengths: Method -> strength.
        every: Epochs from one recording to the next.
        n_samples: Samples of the kernel.

    Returns:
        One row a recording with its method, seed and whether the run had diverged by then (accuracies in per cent;
        after it the accuracy is that of guessing, and the kernel's numbers are NaN), and method -> final
        probabilities on the plane of its first run, where inputs are points of the plane.
    """
    import pandas

    names, jobs = {}, {}
    for method in setup.methods:
        for seed in range(setup.runs):
            spec = method.applied(setup.with_seed(seed), strengths[method.name])
            names[method.name, seed] = f"{spec.id}-{every}-{n_samples}"
            jobs[names[method.name, seed]] = (spec, every, n_samples)
    found = kept(setting, "watched", watch, jobs)
    rows = [
        {"method": method, "seed": seed, "diverged": False} | row
        for (method, seed), name in names.items()
        for row in _completed(found[name], setup, every)
    ]
    table = pandas.DataFrame(rows)
    planes = {method: found[name]["plane"] for (method, seed), name in names.items()
              if seed == 0 and "plane" in found[name]}  # fmt: skip
    return table, planes


def gaps(table: Table, column: str) -> int:
    """Recordings at which the kernel was numerically singular, so that its log determinant is -inf."""
    return int((table[column] == -math.inf).sum()) if column in table else 0
