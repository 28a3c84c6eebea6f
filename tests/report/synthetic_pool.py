"""A pool of records as a real grid leaves it: histories, several readings, one diverged and two failed networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy

from gapscope.base.specs import RunSpec
from gapscope.results.readings import Reading, Readings
from gapscope.results.records import Record


def _history(
    rng: numpy.random.Generator, epochs: int, train: float, test: float
) -> list[dict[str, float]]:
    rows = []
    for epoch in range(1, epochs + 1):
        done = 1 - math.exp(-3 * epoch / epochs)
        rows.append(
            {
                "epoch": epoch,
                "train_loss": 2.3 * (1 - done) + 0.02,
                "train_accuracy": 0.1 + (train - 0.1) * done / 0.95 + 0.01 * rng.standard_normal(),
                "test_accuracy": 0.1
                + (test - 0.1) * min(1.0, 1.6 * done)
                + 0.015 * rng.standard_normal(),
                "test_loss": 2.3 - 1.5 * test * done,
                "learning_rate": 0.05,
                "seconds": 0.4,
            }
        )
    return rows


def _readings(rng: numpy.random.Generator, gap: float, width: int, depth: int) -> Readings:
    """Values with their standard error, direction and units."""
    noise = rng.standard_normal
    facts = {
        "parameter_count": (
            64 * width + (depth - 1) * width**2 + 10 * width,
            None,
            "none",
            "parameters",
        ),
        "parameter_norm": (
            8 + 0.02 * width + 6 * gap + 0.6 * noise(),
            None,
            "lower",
            "weight units",
        ),
        "distance_from_initialization": (
            2 + 14 * gap + 0.9 * noise(),
            None,
            "lower",
            "weight units",
        ),
        "ntk_trace": (
            math.exp(5 + 5 * gap + 0.4 * noise()),
            3.0,
            "lower",
            "squared output / squared weight",
        ),
        "output_sensitivity": (
            math.exp(-6 + 4 * gap + 0.5 * noise()),
            1e-4,
            "lower",
            "squared logit",
        ),
        "unit_sparsity.zeta": (
            min(0.95, 0.3 + 0.5 * gap + 0.05 * noise()),
            None,
            "lower",
            "fraction of units",
        ),
        "unit_sparsity.kappa": (
            0.5 - 0.35 * gap + 0.05 * noise(),
            None,
            "higher",
            "area between accuracy curves",
        ),
    }
    return Readings(
        Reading(
            measure=name.split(".")[0],
            number=name.split(".")[-1],
            value=float(value),
            standard_error=error,
            direction=direction,  # type: ignore[arg-type]
            units=units,
            aggregation="mean over samples",
            reference="Szolnoky et al. 2022, eq. 3",
            seconds=0.02,
        )
        for name, (value, error, direction, units) in facts.items()
    )


def finished_record(
    seed: int, changes: Mapping[str, Any], *, noise: float, width: int, depth: int
) -> Record:
    """One finished network."""
    rng = numpy.random.default_rng(seed)
    train = min(1.0, 1 - 0.05 * noise + 0.01 * rng.standard_normal())
    test = max(
        0.1, 0.97 - 0.75 * noise - 0.02 * depth + 0.0003 * width + 0.02 * rng.standard_normal()
    )
    spec = RunSpec(seed=seed).replace(changes)
    losses = {"train_loss": 0.02 + 0.3 * noise, "test_loss": 2.5 - 2 * test}
    return Record(
        id=spec.id,
        spec=spec.to_dict(),
        status="finished",
        scores=losses | {"train_accuracy": train, "test_accuracy": test},
        readings=_readings(rng, train - test, width, depth),
        history=_history(rng, 30, train, test),
        environment={"gapscope": "0.1.0", "python": "3.11.9"},
        seconds=12.0 + rng.random(),
        epochs_trained=30,
        stopped="30 epochs",
    )


def synthetic_records(n: int = 30) -> list[Record]:
    """`n` finished networks over label noise, width and depth, then one diverged and two failed ones."""
    records = []
    for i in range(n):
        noise, width, depth = (
            (0.0, 0.2, 0.4, 0.6, 0.8)[i % 5],
            (32, 64, 128)[i // 5 % 3],
            1 + i // 15 % 2,
        )
        changes = {
            "data.label_noise": noise,
            "data.train_size": 800,
            "network.options": {"width": width, "n_hidden": depth},
            "training.learning_rate": 0.05,
            "training.epochs": 30,
        }
        records.append(finished_record(i, changes, noise=noise, width=width, depth=depth))
    hostile = "InvalidInput: network.name must be one of 'lenet5', \"vgg\"; got '<script>alert(1)</script>'."
    for k, (status, message, changes) in enumerate([
        ("diverged", "loss not finite in epoch 3", {"training.learning_rate": 9.0, "data.train_size": 800}),
        ("failed", "out of memory: use a smaller batch, network or chunk size",
         {"network.options": {"width": 10**9}, "data.train_size": 800}),
        ("failed", hostile, {"network.name": "<script>alert(1)</script>"}),
    ]):  # fmt: skip
        spec = RunSpec(seed=n + k).replace(changes)
        epochs = 2 if status == "diverged" else 0
        history = _history(numpy.random.default_rng(0), epochs, 0.2, 0.2)
        records.append(Record(id=spec.id, spec=spec.to_dict(), status=status, message=message,  # type: ignore[arg-type]
                              history=history, epochs_trained=epochs))  # fmt: skip
    return records
