"""Networks of the study, trained once for all parts, with scores, claims and curves.

SGD with momentum 0.9, a learning rate that grows in proportion to the batch size and falls by the factor 1e-4 a step,
as in the paper's section 5. What the scales change is said in their TOML files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gapscope.base.specs import RunSpec
from gapscope.pools.from_spec import prepared
from gapscope.results.records import Record
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim, downsample_curve
from gapscope_studies.kit.pool import make_arm, outcome
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, RunSettings

POOL = "networks"
PLAIN = {"normalization": "none"}
PAPER_TRAINING_SAMPLES = 50_000
FALL_OVER_A_SHORT_RUN = 0.02
DIRECTIONS_STD = 0.05
SHOWN = {
    "train_loss": "train loss",
    "test_loss": "validation loss",
    "train_accuracy": "train accuracy",
    "test_accuracy": "validation accuracy",
}
PANELS = ("train_loss", "test_loss", "test_accuracy")
PAPER = {"data": "CIFAR-10, 50,000 training images, 10 classes, 3 x 32 x 32", "batch size": "128, 1,024"}


def epochs_of(scale: Mapping[str, Any], batch_size: int, epochs: int) -> int:
    """Return the epochs at a batch size for `epochs` at the normal one.

    There are as many, or enough for as many steps.

    >>> epochs_of({"equal_steps": True, "normal": 16}, 128, 12), epochs_of({"equal_steps": False}, 128, 12)
    (96, 12)
    """
    return math.ceil(epochs * batch_size / scale["normal"]) if scale["equal_steps"] else epochs


def method(
    setting: RunSettings, architecture: str, batch_size: int, *, epochs: int | None = None, seeds: int | None = None,
    options: Mapping[str, Any] | None = None, **normalization: Any,
) -> list[RunSpec]:  # fmt: skip
    """Specs of one method, one per seed, which draws weights, order and training images.

    `options` are the network's, the rest fields of the normalization. `seeds` replaces the number of the scale.
    """
    scale = setting.read(__file__)
    base = RunSpec.from_dict(scale[architecture])
    epochs = epochs_of(scale, batch_size, epochs or base.training.epochs)
    rate = base.training.learning_rate * batch_size / 128
    if normalization.get("weight_norm"):
        # narrow networks get vectors of the lengths that full ones have, which set how fast directions turn
        normalization["directions_std"] = DIRECTIONS_STD / base.network.options.get("width_multiplier", 1.0) ** 0.5
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
    return [base.replace(changes | {"seed": seed, "data.seed": seed}) for seed in range(seeds or scale["seeds"])]


@dataclass(frozen=True)
class Method:
    """Networks of one method: a record per seed, in order of seeds, and the number of classes."""

    name: str
    records: tuple[Record, ...]
    n_classes: int

    @property
    def finished(self) -> list[Record]:
        """Runs that did not diverge."""
        return [record for record in self.records if record.status == "finished"]

    def final(self, score: str) -> list[float]:
        """Scores at the end, in evaluation mode, of the runs that did not diverge."""
        return [record.scores[score] for record in self.finished]

    def arm(self, score: str) -> ComparisonArm:
        """Return how well it learned, for the guard."""
        return make_arm(self.name, self.records, self.n_classes, score=score)

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return int(self.records[0].spec["training"]["batch_size"])


def train_methods(setting: RunSettings, named: Mapping[str, Sequence[RunSpec]]) -> dict[str, Method]:
    """Train what is missing, seed by seed, so that a stopped study has whole seeds."""
    specs = sorted((spec for of_name in named.values() for spec in of_name), key=lambda spec: spec.seed)
    records = {record.id: record for record in setting.train(POOL, specs, measures=())}
    return {
        name: Method(name, tuple(records[spec.id] for spec in of_name),
                     prepared(of_name[0], setting.data_root)[0].n_outputs)
        for name, of_name in named.items()
    }  # fmt: skip


def arm_of(name: str, runs: Iterable[Mapping[str, Any]], chance: float, curve: str = "curve") -> ComparisonArm:
    """Return the training fit of runs with scores and curves, for the guard.

    `curve` names the curve: "accuracies" or a loss.
    """
    runs = list(runs)
    accuracy, loss = (float(np.median([run[score] for run in runs])) for score in ("train_accuracy", "train_loss"))
    return ComparisonArm(
        name=name, train_accuracy=accuracy, chance=chance, train_loss=loss, falling=curve == "curve",
        curve=downsample_curve([run.get(curve, ()) for run in runs]),
    )  # fmt: skip


def by_seed(*methods: Method) -> list[tuple[Record, ...]]:
    """The records of several methods, seed by seed, where none diverged."""
    together = zip(*(method.records for method in methods), strict=True)
    return [records for records in together if all(record.status == "finished" for record in records)]


def claims_of(source: str, methods: Mapping[str, Method], rows: Sequence[Sequence[Any]]) -> list[Claim]:
    """Claims that one method has a larger or smaller score than another, seed by seed.

    Rows are what is said, the two methods, "larger" or "smaller", the score, and further fields of the claim.
    """
    claims = []
    for says, one, other, sign, score, *more in rows:
        a, b = methods[one], methods[other]
        values = [first.scores[score] - second.scores[score] for first, second in by_seed(a, b)]
        bound = {"above": 0.0} if sign == "larger" else {"below": 0.0}
        facts = {"source": source, "compared": (a.arm(score), b.arm(score)), **bound, **(more[0] if more else {})}
        claims.append(claim(says=says, quantity=f"{SHOWN[score]} of {a.name} minus {b.name}", values=values, **facts))
    return claims


def _curves(methods: Mapping[str, Method]) -> Figure:
    """Plot means over seeds along training, with bands of the range, one panel per score."""
    figure, axes = plots.panels(len(PANELS))
    for axis, score in zip(axes, PANELS, strict=True):
        values = {name: np.array([[float(row[score]) for row in record.history] for record in method.finished])
                  for name, method in methods.items()}  # fmt: skip
        plots.lines(axis, values)
        highest = [v.mean(0)[v.shape[1] // 4 :].max() for v in values.values() if v.size]
        if "loss" in score and highest:
            axis.set_ylim(0, 1.1 * max(highest))
        plots.set_labels(axis, title=SHOWN[score], xlabel="epoch")
    plots.legend(figure)
    return figure


def compared_methods(
    setting: RunSettings, methods: Mapping[str, Method], paper: Mapping[str, str], *,
    tables: Mapping[str, Any] = MappingProxyType({}), figures: Mapping[str, Figure] = MappingProxyType({}), **more: Any,
) -> Outcome:  # fmt: skip
    """Return an outcome that compares methods, with their curves.

    The curves are plotted unless other `figures` have that name.
    """
    import pandas

    specs = [RunSpec.from_dict(record.spec) for method in methods.values() for record in method.records]
    numbers = {
        name: {score: method.final(score) for score in SHOWN} | {"status": [r.status for r in method.records]}
        for name, method in methods.items()
    }
    rows = pandas.DataFrame(
        {"method": name, "batch": method.batch_size}
        | {title: str(mean(method.final(score))) for score, title in SHOWN.items()}
        | {"diverged": f"{len(method.records) - len(method.finished)} of {len(method.records)}"}
        for name, method in methods.items()
    )
    table = {"Methods at the end of training (mean over seeds, 95 % t interval)": rows}
    return outcome(
        setting, specs, {**PAPER, **paper}, numbers={"methods": numbers}, tables={**table, **tables},
        figures=figures if "curves" in figures else {"curves": _curves(methods), **figures}, **more,
    )  # fmt: skip
