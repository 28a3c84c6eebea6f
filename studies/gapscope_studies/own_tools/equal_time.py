"""The gradient similarity penalty beside cheaper remedies for wrong labels, at equal CPU time.

    python -m gapscope_studies.own_tools.equal_time ../results/own_tools/equal_time.json --root ../shared/data

2,000 training images of which 40 % have a wrong label; a tenth of them, wrong labels included, chooses the epoch. Every
method trains a ResNet-20 of half width on 16 x 16 pixels until the largest budget is used, with a constant learning
rate, so that one run answers for every budget: the test accuracy at the best validated epoch so far. Settings are the
defaults of their sources, and 0.001 for the penalty, where its guide says to start; none was tuned here. CPU seconds
are of the training alone, without validation and test.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json, write_atomically
from gapscope.base.samples import Samples
from gapscope.base.specs import LossSpec, PenaltySpec, TrainingSpec
from gapscope.penalties.base import Penalty
from gapscope.pools.jobs import run_cached
from gapscope_studies.kit.page import save_figure
from gapscope_studies.kit.plots import legend, panels, set_labels
from gapscope_studies.kit.provenance import commit

DATA = ("cifar10", "fashion_mnist")
N, N_TEST, LABEL_NOISE, SEEDS = 2000, 2000, 0.4, 3
SIDE = 16  # pixels, so that the largest budget holds some sixty epochs
BUDGETS = (8.0, 16.0, 32.0, 64.0)
PLAIN = TrainingSpec(epochs=10_000, learning_rate=0.05, momentum=0.9, batch_size=64)


def _penalty(**options: Any) -> tuple[PenaltySpec, ...]:
    return (PenaltySpec(name="gradient_similarity", options={"strength": 0.001, **options}),)


class LabelSmoothing(Penalty):
    """What smoothed labels add to the cross-entropy: strength times the mean over classes of log(p_y / p_c)."""

    needs_targets = True

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def value(
        self,
        network: nn.Module,
        inputs: Tensor,
        outputs: Tensor,
        targets: Tensor | None,
        observed: Any,
    ) -> Tensor:
        """Return the difference to the cross-entropy, a mean over the batch."""
        assert targets is not None  # the loop passes them, see needs_targets
        smoothed = nn.functional.cross_entropy(outputs, targets, label_smoothing=self.strength)
        return smoothed - nn.functional.cross_entropy(outputs, targets)


# method -> changes of the training configuration, options of the network
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "early stopping alone": ({}, {}),
    "weight decay": (
        {"penalties": (PenaltySpec(name="weight", options={"strength": 2.5e-4}),)},
        {},
    ),
    "dropout": ({}, {"dropout": 0.2}),
    "label smoothing": ({}, {}),
    "generalized cross-entropy": (
        {"loss": LossSpec(name="generalized_cross_entropy", options={"q": 0.7})},
        {},
    ),
    "penalty, every step": ({"penalties": _penalty()}, {}),
    "penalty, every fourth step": ({"penalties": _penalty(every=4)}, {}),
}


class _BudgetUsed(Exception):
    """The largest budget is used."""


def _accuracy(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((network.eval()(x).argmax(1) == y).double().mean())


def _reduced(samples: Samples) -> Samples:
    inputs = nn.functional.interpolate(samples.inputs.float(), size=SIDE, mode="area")
    return replace(samples, inputs=inputs)


def run(
    data: str, method: str, seed: int, root: Path, budgets: Sequence[float] = BUDGETS
) -> dict[str, Any]:
    """Return CPU seconds, validated accuracy and test accuracy after every epoch."""
    problem = gs.load_dataset(data, root=root)
    generator = torch.Generator().manual_seed(seed)
    train = gs.data.subset(problem.train, N, generator)
    test = gs.data.subset(problem.test, N_TEST, generator)
    train, test = _reduced(train), _reduced(test)
    labels = gs.data.inject_label_noise(train.y, LABEL_NOISE, 10, generator)
    inside, outside = slice(N // 10, None), slice(0, N // 10)
    changes, options = METHODS[method]
    torch.manual_seed(seed)
    network = gs.build_network(
        "resnet20",
        input_shape=tuple(train.inputs.shape[1:]),
        n_outputs=10,
        width_multiplier=0.5,
        **options,
    )
    rows: list[list[float]] = []
    clock = [time.process_time(), 0.0]

    def record(network: nn.Module, row: dict[str, Any]) -> None:
        clock[1] += time.process_time() - clock[0]
        validated = _accuracy(network, train.inputs[outside], labels[outside])
        rows.append([clock[1], validated, _accuracy(network, test.inputs, test.y)])
        if clock[1] > max(budgets):
            raise _BudgetUsed
        network.train()
        clock[0] = time.process_time()

    spec = replace(PLAIN, **changes)
    penalties = [LabelSmoothing(0.1)] if method == "label smoothing" else None
    with contextlib.suppress(_BudgetUsed):
        gs.train(
            network,
            (train.inputs[inside], labels[inside]),
            spec,
            seed=seed,
            penalties=penalties,
            on_epoch=record,
        )
    return {"data": data, "method": method, "seed": seed, "rows": rows}


def at_budget(rows: Sequence[Sequence[float]], seconds: float) -> float | None:
    """Return the test accuracy at the best validated epoch within a budget; None if no epoch fits."""
    within = [row for row in rows if row[0] <= seconds]
    return max(within, key=lambda row: row[1])[2] if within else None


def summarize(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and spread of the test accuracy over seeds, per data set, budget and method."""
    rows: list[dict[str, Any]] = []
    for data in DATA:
        for seconds in BUDGETS:
            for method in METHODS:
                found = [
                    at_budget(r["rows"], seconds)
                    for r in runs
                    if (r["data"], r["method"]) == (data, method)
                ]
                known = [value for value in found if value is not None]
                if not known:
                    continue
                epochs = [
                    sum(row[0] <= seconds for row in r["rows"])
                    for r in runs
                    if (r["data"], r["method"]) == (data, method)
                ]
                rows.append(
                    {
                        "data": data,
                        "seconds": seconds,
                        "method": method,
                        "accuracy": float(np.mean(known)),
                        "standard_error": float(np.std(known, ddof=1) / len(known) ** 0.5)
                        if len(known) > 1
                        else None,
                        "seeds": len(known),
                        "epochs": float(np.mean(epochs)),
                    }
                )
    return rows


def by_budget(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per data set and method: its accuracies over the budgets, best at the largest budget first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in summary:
        named = rows.setdefault(
            (row["data"], row["method"]), {"data": row["data"], "method": row["method"]}
        )
        named[f"{row['seconds']:g} s"] = row["accuracy"]
    last = f"{BUDGETS[-1]:g} s"
    return sorted(rows.values(), key=lambda row: (row["data"], -row.get(last, 0.0)))


def draw(summary: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the accuracy over the budgets, with standard errors, one panel per data set."""
    figure, axes = panels(len(DATA))
    for axis, data in zip(axes, DATA, strict=True):
        for number, method in enumerate(METHODS):
            rows = [row for row in summary if (row["data"], row["method"]) == (data, method)]
            seconds, accuracies = (
                [row["seconds"] for row in rows],
                [row["accuracy"] for row in rows],
            )
            errors = [row["standard_error"] for row in rows]
            axis.errorbar(
                seconds,
                accuracies,
                errors,
                color=f"C{number}",
                marker="o",
                ms=3,
                lw=1.3,
                label=method,
            )
        set_labels(
            axis,
            title=data,
            xlabel="CPU seconds",
            ylabel="test accuracy",
            xscale="log",
            xticks=BUDGETS,
        )
        axis.set_xticklabels([f"{seconds:g}" for seconds in BUDGETS])
        axis.minorticks_off()
    legend(figure)
    save_figure(figure, path)


def main() -> None:
    """Run the missing trainings, and write the summary of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--root", type=Path, default=None)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--work", type=Path, default=Path("study-work/equal_time"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {
        f"{data} {method} {seed}": partial(run, data, method, seed, arguments.root)
        for data in arguments.data
        for seed in range(SEEDS)
        for method in METHODS
    }
    runs = list(run_cached(jobs, arguments.work, workers=1).values())
    summary = summarize(runs)
    content = {
        "environment": environment(),
        "commit": commit(),
        "by_budget": by_budget(summary),
        "summary": summary,
        "runs": runs,
    }
    draw(summary, arguments.path.with_suffix(".svg"))
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.path, to_json(content) + "\n")


if __name__ == "__main__":
    main()
