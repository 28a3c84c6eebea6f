"""A pool of networks that nobody trained: records and histories as pools write them, with drawn numbers."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gapscope.base.files import to_json
from gapscope.pools import Grid
from gapscope.results.readings import SCHEMA

READINGS = {
    "parameter_count": ("lower", "parameters"),
    "parameter_norm": ("lower", "squared weight units"),
    "distance_from_initialization": ("lower", "weight units"),
    "loss": ("none", "nats"),
    "accuracy": ("none", "fraction of samples"),
    "ntk_trace": ("lower", "squared output / squared weight"),
    "output_sensitivity": ("lower", "squared output units"),
    "input_jacobian_norm": ("lower", "output units / input unit"),
    "unit_sparsity.zeta": ("lower", "fraction of units"),
    "unit_sparsity.kappa": ("higher", "accuracy"),
    "margin_signature.input.median": ("higher", "log of distance / spread of the layer"),
    "gradient_neighbours.agreement": ("higher", "fraction of samples"),
}
EPOCHS = 20
WIDTHS, RATES, NOISES, SEEDS = (
    (32, 64, 128, 256, 512),
    (0.01, 0.03, 0.1, 0.3),
    (0.0, 0.1, 0.2, 0.3, 0.5),
    5,
)


def grid(networks: int) -> Grid:
    """A grid of so many networks: widths, rates, label noise, batch sizes and five seeds of each.

    Args:
        networks: How many; a multiple of 500.
    """
    sizes = networks // (len(WIDTHS) * len(RATES) * len(NOISES) * SEEDS)
    return Grid.from_dict(
        {
            "base": {"network": {"name": "lenet5"}, "training": {"epochs": EPOCHS}},
            "axes": {
                "network.options.width": list(WIDTHS),
                "training.learning_rate": list(RATES),
                "data.label_noise": list(NOISES),
                "training.batch_size": list(range(8, 8 + sizes)),
                "seed": list(range(SEEDS)),
            },
        }
    )


def toml(specs: Grid) -> str:
    """The same as a file."""
    axes = "\n".join(
        f'"{path}" = {json.dumps(list(values))}' for path, values in specs.axes.items()
    )
    return f'[base.network]\nname = "lenet5"\n[base.training]\nepochs = {EPOCHS}\n[axes]\n{axes}\n'


def _reading(name: str, value: float, rng: random.Random) -> dict[str, Any]:
    direction, units = READINGS[name]
    measure, _, number = name.partition(".")
    return {
        "measure": measure, "number": number or measure, "value": value, "standard_error": None,
        "direction": direction, "units": units, "aggregation": "mean over samples", "reference": "drawn numbers",
        "seconds": rng.random(), "note": "", "title": name.replace("_", " "),
    }  # fmt: skip


def _values(width: int, noise: float, gap: float, rng: random.Random) -> dict[str, float]:
    """Readings of which some go with the gap."""
    drawn = {name: rng.lognormvariate(0, 1) for name in READINGS}
    drawn["ntk_trace"] *= 1 + gap
    drawn["unit_sparsity.zeta"] = gap + rng.gauss(0, 0.05)
    return drawn | {"parameter_count": float(1000 * width), "loss": noise + rng.random()}


def record(spec_id: str, spec: Mapping[str, Any], rng: random.Random) -> tuple[str, str]:
    """Texts of one record and its history.

    Args:
        spec_id: The id.
        spec: The settings as JSON-serializable values.
        rng: Where numbers come from.
    """
    noise, width = spec["data"]["label_noise"], spec["network"]["options"]["width"]
    gap = min(0.9, max(0.0, 0.05 + noise + 0.01 * rng.gauss(0, 3)))
    scores = {
        "train_loss": rng.random(),
        "train_accuracy": 0.98,
        "test_loss": 1 + gap,
        "test_accuracy": 0.98 - gap,
    }
    content = {
        "schema": SCHEMA, "id": spec_id, "spec": spec, "status": "finished", "message": "", "scores": scores,
        "corruption": {"label_noise": {"rate": noise, "wrong": round(600 * noise)}}, "measured_samples": 600,
        "unmeasured": {}, "environment": {"gapscope": "synthetic", "threads": 1}, "seconds": 10 * rng.random(),
        "epochs_trained": EPOCHS, "stopped": f"{EPOCHS} epochs",
        "readings": [_reading(name, value, rng) for name, value in _values(width, noise, gap, rng).items()],
    }  # fmt: skip
    rows = (
        {
            "epoch": epoch + 1, "train_loss": rng.random(), "penalty": 0.0, "learning_rate": 0.1,
            "train_accuracy": rng.random(), "test_loss": rng.random(), "test_accuracy": rng.random(),
            "seconds": rng.random(),
        }
        for epoch in range(EPOCHS)
    )  # fmt: skip
    return to_json(content, indent=1) + "\n", "".join(to_json(row) + "\n" for row in rows)


def fill(folder: Path, networks: int) -> None:
    """Write the pool; what is there already stays, so that a stopped call continues.

    Args:
        folder: The pool's folder.
        networks: How many; a multiple of 500.
    """
    specs = grid(networks)
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    (folder / "pool.json").write_text(to_json({"schema": SCHEMA}) + "\n")
    folder.with_suffix(".toml").write_text(toml(specs))
    for spec in specs:
        run = folder / "runs" / spec.id
        if (run / "record.json").exists():
            continue
        run.mkdir(exist_ok=True)
        texts = record(spec.id, spec.to_dict(), random.Random(spec.id))
        (run / "history.jsonl").write_text(texts[1])
        (run / "record.json").write_text(texts[0])
