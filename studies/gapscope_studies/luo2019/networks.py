"""Networks of the study: specs of each method, trained once for all parts. Scores, claims and curves of a method.

SGD with momentum 0.9, a learning rate that grows in proportion to the batch size and falls by the factor 1e-4 a step,
as in the paper's section 5. What the scales change is said in their TOML files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from gapscope.base.specs import RunSpec
from gapscope.pools.from_spec import prepared
from gapscope.results.records import Record
from gapscope.training.checkpoints import load_tensors
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import Claim, ComparisonArm, claim
from gapscope_studies.kit.pool import compared, outcome, weights_of
from gapscope_studies.kit.statistics import mean
from gapscope_studies.kit.study import Outcome, RunSettings

if TYPE_CHECKING:
    import pandas

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
PANELS = {"train_loss": "train loss", "test_loss": "validation loss", "test_accuracy": "validation accuracy"}
PAPER = {"data": "CIFAR-10, 50,000 training images, 10 classes, 3 x 32 x 32", "batch size": "128, 1,024"}


def epochs_of(scale: Mapping[str, Any], batch_size: int, epochs: int) -> int:
    """Epochs at a batch size where `epochs` are those of the normal one: as many, or for as many steps.

    >>> epochs_of({"equal_steps": True, "normal": 16}, 128, 12), epochs_of({"equal_steps": False}, 128, 12)
    (96, 12)
    """
    return math.ceil(epochs * batch_size / scale["normal"]) if scale["equal_steps"] else epochs


def method(
    setting: RunSettings,
    architecture: str,
    batch_size: int,
    *,
    epochs: int | None = None,
    seeds: int | None = None,
    options: Mapping[str, Any] | None = None,
    **normalization: Any,
) -> list[RunSpec]:
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
    """Networks of one name: one record per seed, in the order of the seeds, and the number of classes."""

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

    def curve(self, column: str) -> np.ndarray:
        """Values of the runs that did not diverge [runs, epochs]."""
        return np.array([[float(row[column]) for row in record.history] for record in self.finished])

    def learnt(self, score: str) -> ComparisonArm:
        """Return how well it learned, for the guard."""
        return compared(self.name, self.records, self.n_classes, score=score)

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return int(self.records[0].spec["training"]["batch_size"])


def trained(setting: RunSettings, named: Mapping[str, Sequence[RunSpec]]) -> dict[str, Method]:
    """Train what is missing, seed by seed, so that a stopped study has whole seeds."""
    specs = sorted((spec for result in named.values() for spec in result), key=lambda spec: spec.seed)
    records = {record.id: record for record in setting.train(POOL, specs, measures=())}
    return {
        name: Method(
            name, tuple(records[spec.id] for spec in result), prepared(result[0], setting.data_root)[0].n_outputs
        )
        for name, result in named.items()
    }


def gamma_squared(setting: RunSettings, record: Record, layer: str) -> float:
    """Mean over channels of gamma^2 of a layer at the end."""
    tensors, _ = load_tensors(weights_of(setting, POOL, record.id))
    return tensors[f"{layer}.weight"].square().mean().item()


def by_seed(*methods: Method) -> list[tuple[Record, ...]]:
    """The records of several methods, seed by seed, where none diverged."""
    together = zip(*(method.records for method in methods), strict=True)
    return [records for records in together if all(record.status == "finished" for record in records)]


def differences(one: Method, other: Method, score: str) -> list[float]:
    """One minus the other, seed by seed, where neither diverged."""
    return [a.scores[score] - b.scores[score] for a, b in by_seed(one, other)]


def larger(source: str, says: str, one: Method, other: Method, score: str, **more: Any) -> Claim:
    """The claim that `one` has more of a score than `other`. With `below=0.0` in `more`, less."""
    more = {"above": 0.0} | more if "below" not in more else more
    return claim(
        source, says, f"{SHOWN[score]} of {one.name} minus {other.name}", differences(one, other, score),
        compared=(one.learnt(score), other.learnt(score)), **more,
    )  # fmt: skip


def smaller(source: str, says: str, one: Method, other: Method, score: str, **more: Any) -> Claim:
    """The claim that `one` has less of a score than `other`."""
    return larger(source, says, one, other, score, below=0.0, **more)


def curves(methods: Mapping[str, Method]) -> Figure:
    """Means over seeds along training, with bands from the smallest to the largest, a panel a score."""
    figure, axes = plots.panels(len(PANELS))
    for axis, (column, title) in zip(axes, PANELS.items(), strict=True):
        values = {name: result.curve(column) for name, result in methods.items()}
        plots.lines(axis, values)
        highest = [v.mean(0)[v.shape[1] // 4 :].max() for v in values.values() if v.size]
        if "loss" in column and highest:
            axis.set_ylim(0, 1.1 * max(highest))
        plots.named(axis, title=title, xlabel="epoch")
    plots.legend(figure)
    return figure


def compared_methods(
    setting: RunSettings,
    methods: Mapping[str, Method],
    paper: Mapping[str, str],
    *,
    tables: Mapping[str, pandas.DataFrame] = MappingProxyType({}),
    figures: Mapping[str, Figure] = MappingProxyType({}),
    **found: Any,
) -> Outcome:
    """Return what a comparison of methods found. Its curves are drawn unless other `figures` have that name."""
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
        figures=figures if "curves" in figures else {"curves": curves(methods), **figures}, **found,
    )  # fmt: skip
