"""Regression with noisy targets: when the alarms that need no classes end a training, beside a split of a tenth.

    python benchmarks/regression_alarms/run.py --kept DIR --out benchmarks/results/regression_alarms.json

Every cell is 300 samples of California housing (standardized targets), Gaussian noise on the training targets, a fully
connected network and a seed. Both alarms watch one training with their defaults; another training leaves a tenth out.
What is kept is the test error (mean squared, without noise, in units of the targets' variance) where each stops.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import torch

import gapscope as gs
from gapscope.base.environment import environment
from gapscope.base.files import to_json
from gapscope.base.random_streams import make_generator
from gapscope.data import load_dataset
from gapscope.pools.jobs import run_cached
from gapscope.training.alarms.base import make_alarm
from gapscope_studies.overfitting_alarm.alarms import EvidenceAlarm

NOISES = (0.0, 0.5, 1.0, 2.0)
ALARMS = ("gradient_disparity", "evidence")
SAMPLES, TEST = 300, 2000
TRAINING = gs.TrainingSpec(optimizer="adam", learning_rate=0.003, batch_size=30, epochs=100)


def samples_of(noise: float, seed: int, root: str | None) -> tuple[gs.Samples, gs.Samples]:
    """Training samples with noise on their targets, and test samples without; targets have variance 1."""
    problem = load_dataset("california_housing", root=root)
    chosen = torch.randperm(len(problem.train), generator=make_generator(seed, "subset"))[:SAMPLES]
    train, test = problem.train.subset(chosen), problem.test.subset(torch.arange(TEST))
    assert train.targets is not None and test.targets is not None
    centre, scale = train.targets.mean(), train.targets.std()
    noisy = (train.targets - centre) / scale
    noisy = noisy + noise * torch.randn(noisy.shape, generator=make_generator(seed, "noise"))
    return replace(train, targets=noisy), replace(test, targets=(test.targets - centre) / scale)


def errors_of(train: gs.Samples, test: gs.Samples, seed: int, on_epoch: Any = None) -> list[float]:
    """Test error after each epoch."""
    shape = tuple(train.inputs.shape[1:])
    weights = make_generator(seed, "weights")
    network = gs.build_network(
        "fully_connected", input_shape=shape, n_outputs=1, n_hidden=2, width=64, generator=weights
    )
    result = gs.train(network, train, TRAINING, seed=seed, test=test, on_epoch=on_epoch)
    return [float(row["test_loss"]) for row in result.history]


def cell(noise: float, seed: int, root: str | None) -> dict[str, Any]:
    """Both training runs of one cell."""
    train, test = samples_of(noise, seed, root)
    alarms = {"gradient_disparity": make_alarm("gradient_disparity"), "evidence": EvidenceAlarm()}
    monitors = [
        gs.Monitor(train, [], alarm=alarm, seed=seed, max_time_fraction=None)
        for alarm in alarms.values()
    ]

    def watch(network: torch.nn.Module, row: dict[str, Any]) -> None:
        for monitor in monitors:
            monitor.observe(network, row["epoch"])

    errors = errors_of(train, test, seed, watch)
    order = torch.randperm(SAMPLES, generator=make_generator(seed, "split"))
    tenth, rest = (train.subset(part) for part in order.tensor_split([SAMPLES // 10]))
    held_out: list[float] = []

    def score(network: torch.nn.Module, row: dict[str, Any]) -> None:
        with torch.no_grad():
            held_out.append(float((network(tenth.inputs) - tenth.targets).square().mean()))

    split = errors_of(rest, test, seed, score)
    raised = {name: alarm.raised_at for name, alarm in alarms.items()}
    return {
        "noise": noise,
        "seed": seed,
        "raised": raised,
        "best_epoch": 1 + min(range(len(errors)), key=errors.__getitem__),
        "errors": {
            "end of training": errors[-1],
            **{name: errors[-1 if at is None else at - 1] for name, at in raised.items()},
            "nine tenths, best checkpoint": split[
                min(range(len(held_out)), key=held_out.__getitem__)
            ],
            "best epoch by the test samples": min(errors),
        },
    }


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean errors a noise, and in how many training runs each alarm was raised."""
    rows = []
    for noise in NOISES:
        part = [one for one in cells if one["noise"] == noise]
        errors = pandas.DataFrame([one["errors"] for one in part]).mean()
        counts = {name: sum(one["raised"][name] is not None for one in part) for name in ALARMS}
        rows.append(
            {"noise": noise, "trainings": len(part), "errors": errors.to_dict(), "raised": counts}
        )
    return rows


def main() -> None:
    """Run the cells that are not kept yet, and write all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", type=Path, required=True, help="folder of finished cells")
    parser.add_argument("--out", type=Path, help="JSON with all cells and their summary")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data-root", default=None)
    given = parser.parse_args()
    jobs = {
        f"{noise} {seed}": partial(cell, noise, seed, given.data_root)
        for seed in range(given.seeds)
        for noise in NOISES
    }
    cells = list(run_cached(jobs, given.kept, workers=1).values())
    rows = summary(cells)
    print(pandas.json_normalize(rows).T.to_string(float_format="{:.3f}".format))
    if given.out:
        given.out.write_text(
            to_json({"environment": environment(), "summary": rows, "cells": cells}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
