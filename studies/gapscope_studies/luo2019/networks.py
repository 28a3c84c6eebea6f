"""Networks of the study, trained once for all parts, with their scores, claims and curves.

SGD with momentum 0.9, a learning rate proportional to the batch size that falls by the factor 1e-4 per step, as in
section 5 of the paper. The TOML files state what the scales change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

from gapscope.base.specs import RunSpec
from gapscope.pools.from_spec import prepare_data
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve
from gapscope_studies.kit.pool import make_arm, outcome
from gapscope_studies.kit.runs import differences, interval_table
from gapscope_studies.kit.study import Outcome, RunSettings, Table

POOL = "networks"
PLAIN = {"normalization": "none"}
PAPER_TRAINING_SAMPLES = 50_000
FALL_OVER_A_SHORT_RUN = 0.02
DIRECTIONS_STD = 0.05
SCORES = {
    "train_loss": "train loss",
    "test_loss": "validation loss",
    "train_accuracy": "train accuracy",
    "test_accuracy": "validation accuracy",
}
PANELS = ("train_loss", "test_loss", "test_accuracy")
PAPER = {
    "data": "CIFAR-10, 50,000 training images, 10 classes, 3 x 32 x 32",
    "batch size": "128, 1,024",
}


def scale_epochs(scale: Mapping[str, Any], batch_size: int, epochs: int) -> int:
    """Return the epochs at a batch size: those of the normal size, or for as many steps.

    >>> scale_epochs({"equal_steps": True, "normal": 16}, 128, 12), scale_epochs({"equal_steps": False}, 128, 12)
    (96, 12)
    """
    return math.ceil(epochs * batch_size / scale["normal"]) if scale["equal_steps"] else epochs


def make_specs(
    setting: RunSettings, architecture: str, batch_size: int, *, epochs: int | None = None, seeds: int | None = None,
    options: Mapping[str, Any] | None = None, **normalization: Any,
) -> list[RunSpec]:  # fmt: skip
    """Return the specs of one method, one per seed (of weights, order and training images).

    `options` are the network's, the rest fields of the normalization. `seeds` replaces the number of the scale.
    """
    scale = setting.read(__file__)
    base = RunSpec.from_dict(scale[architecture])
    epochs = scale_epochs(scale, batch_size, epochs or base.training.epochs)
    rate = base.training.learning_rate * batch_size / 128
    if normalization.get("weight_norm"):
        # narrow networks get vectors of the lengths that full ones have, which set how fast directions turn
        normalization["directions_std"] = (
            DIRECTIONS_STD / base.network.options.get("width_multiplier", 1.0) ** 0.5
        )
        rate *= scale["slower_weight_norm"] if architecture == "resnet" else 1.0
    if normalization.get("kind") == "population":
        normalization.setdefault("population_samples", scale["population_samples"])
    steps = math.ceil(PAPER_TRAINING_SAMPLES / batch_size)
    short = FALL_OVER_A_SHORT_RUN ** (1 / epochs)
    changes = {
        "network.options": {**base.network.options, **(options or {})},
        "training.learning_rate": rate,
        "training.batch_size": batch_size,
        "training.epochs": epochs,
        "training.schedule": "exponential",
        "training.schedule_factor": short if scale["short_schedule"] else (1 - 1e-4) ** steps,
    }
    changes |= {f"normalization.{name}": value for name, value in normalization.items()}
    return [
        base.replace(changes | {"seed": seed, "data.seed": seed})
        for seed in range(seeds or scale["seeds"])
    ]


def train_methods(setting: RunSettings, methods: Mapping[str, Sequence[RunSpec]]) -> Table:
    """Train missing networks, and return one row per run (no scores if it diverged)."""
    # seed by seed, so that a stopped study has whole seeds
    specs = sorted(
        (spec for of_method in methods.values() for spec in of_method), key=lambda spec: spec.seed
    )
    records = {record.id: record for record in setting.train(POOL, specs, measures=())}
    n_classes = prepare_data(specs[0], setting.data_root)[0].n_outputs
    rows = []
    for name, of_method in methods.items():
        for spec in of_method:
            record = records[spec.id]
            scores = (
                record.scores if record.status == "finished" else dict.fromkeys(SCORES, math.nan)
            )
            columns = {
                "id": spec.id,
                "status": record.status,
                "n_classes": n_classes,
                "record": record,
            }
            rows.append(
                {
                    "method": name,
                    "seed": spec.seed,
                    "batch": spec.training.batch_size,
                    **columns,
                    **scores,
                }
            )
    return pandas.DataFrame(rows)


def arm_of(runs: Table, method: str) -> ComparisonArm:
    """Return the training fit of one method's networks, for the guard."""
    of_method = runs[runs["method"] == method]
    return make_arm(method, of_method["record"].to_list(), int(of_method["n_classes"].iloc[0]))


def accuracy_controls(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return a row about the accuracy for each row about the loss of two methods without one.

    >>> accuracy_controls([("BN has a lower loss", "BN", "WN", "smaller", "test_loss")])[0][1:5]
    ('BN', 'WN', 'larger', 'test_accuracy')
    """
    has_accuracy = {frozenset(row[1:3]) for row in rows if row[4] == "test_accuracy"}
    controls = []
    for statement, one, other, sign, score, *more in rows:
        if score == "test_loss" and frozenset((one, other)) not in has_accuracy:
            has_accuracy.add(frozenset((one, other)))
            fields = {**(more[0] if more else {}), "source": "control", "ours": True}
            opposite = "larger" if sign == "smaller" else "smaller"
            controls.append(
                (f"by accuracy: {statement}", one, other, opposite, "test_accuracy", fields)
            )
    return controls


def claims_of(source: str, runs: Table, rows: Sequence[Sequence[Any]]) -> list[Claim]:
    """Return claims that one method has a larger or smaller score than another, seed by seed.

    Rows are the statement, the two methods, "larger" or "smaller", the score, and further fields of the claim. A row
    about the validation loss whose methods have none about the accuracy gets one as a control (ours): a lower loss may
    be smaller logits alone.
    """
    claims = []
    for statement, one, other, sign, score, *more in [*rows, *accuracy_controls(rows)]:
        # a method of fewer seeds is compared on these alone
        common = set.intersection(
            *(set(runs.loc[runs["method"] == name, "seed"]) for name in (one, other))
        )
        pair = runs[runs["seed"].isin(common)]
        finished = pair[pair["status"] == "finished"]
        fields = {
            "source": source,
            "above" if sign == "larger" else "below": 0.0,
            **(more[0] if more else {}),
        }
        claims.append(
            claim(says=statement, quantity=f"{SCORES[score]} of {one} minus {other}",
                  values=differences(finished, one, other, score), compared=(arm_of(pair, one), arm_of(pair, other)),
                  **fields)
        )  # fmt: skip
    return claims


def _curves(runs: Table) -> Figure:
    figure, axes = plots.panels(len(PANELS))
    for axis, score in zip(axes, PANELS, strict=True):
        values = {
            str(name): np.array(
                [
                    [float(row[score]) for row in r.history]
                    for r in records
                    if r.status == "finished"
                ]
            )
            for name, records in runs.groupby("method", sort=False)["record"]
        }
        plots.lines(axis, values)
        highest = [v.mean(0)[v.shape[1] // 4 :].max() for v in values.values() if v.size]
        if "loss" in score and highest:
            axis.set_ylim(0, 1.1 * max(highest))
        plots.set_labels(axis, title=SCORES[score], xlabel="epoch")
    plots.legend(figure)
    return figure


def compare_methods(
    setting: RunSettings, runs: Table, paper: Mapping[str, str], *, tables: Mapping[str, Any] | None = None,
    figures: Mapping[str, Figure] | None = None, **more: Any,
) -> Outcome:  # fmt: skip
    """Return the outcome of a part that compares methods, with their scores and curves.

    The curves are plotted unless other `figures` have that name.
    """
    groups = runs.groupby("method", sort=False)
    numbers = {
        name: {score: group[score].dropna().to_list() for score in SCORES}
        | {"status": group["status"].to_list()}
        for name, group in groups
    }
    table = interval_table(runs, ("method", "batch"), SCORES)
    table["diverged"] = [
        f"{(group['status'] != 'finished').sum()} of {len(group)}" for _, group in groups
    ]
    figures = figures or {}
    return outcome(
        setting, [RunSpec.from_dict(record.spec) for record in runs["record"]], {**PAPER, **paper},
        numbers={"methods": numbers},
        tables={"Methods at the end of training (mean over seeds, 95 % t interval)": table, **(tables or {})},
        figures=figures if "curves" in figures else {"curves": _curves(runs), **figures}, **more,
    )  # fmt: skip


def dictionary_arm(name: str, runs: Table, chance: float, curve: str = "curve") -> ComparisonArm:
    """Return the training fit of runs with scores and curves, for the guard.

    `curve` names the curve: "accuracies" or a loss.
    """
    accuracy, loss = (float(runs[score].median()) for score in ("train_accuracy", "train_loss"))
    return ComparisonArm(
        name=name, train_accuracy=accuracy, chance=chance, train_loss=loss, falling=curve == "curve",
        curve=downsample_curve(runs[curve].to_list()),
    )  # fmt: skip
