"""Does the advice on batch norm hold? Predicted against measured regularisation, and what became of generalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gapscope_studies.kit.statistics import t_interval
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.advice_runs import (
    REMEDIES,
    World,
    asked_networks,
    followed,
    trials,
    tried,
    worlds,
)
from gapscope_studies.luo2019.old_claims import in_words

Runs = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Followed:
    """What came of one method.

    Attributes:
        name: Batch size and remedy.
        batch_size: Samples a step.
        predicted: Regularisation that the network of small batches predicts, one number a seed.
        runs: Scores and measured regularisation, one a seed.
        numbers: Positions of the seeds among all; a seed whose advice had nothing to say is missing.
    """

    name: str
    batch_size: int
    predicted: list[float]
    runs: Runs
    numbers: list[int]

    @property
    def measured(self) -> list[float]:
        """Regularisation of the trained networks."""
        return [run["regularization"][0] for run in self.runs]

    def score(self, name: str) -> list[float]:
        """A score of each run; "gap" is train accuracy minus test accuracy."""
        if name == "gap":
            return [run["train_accuracy"] - run["test_accuracy"] for run in self.runs]
        return [run[name] for run in self.runs]

    def minus(self, other: Followed, name: str) -> list[float]:
        """Differences of a score, seed by seed, where both have one."""
        theirs = dict(zip(other.numbers, other.score(name), strict=True))
        pairs = zip(self.numbers, self.score(name), strict=True)
        return [value - theirs[number] for number, value in pairs if number in theirs]


def _methods(setting: Setting, world: World) -> list[Followed]:
    asked = asked_networks(setting, world)
    everyone = list(range(len(asked)))
    start = [run["frozen"][str(world.normal)][0] for run in asked]
    methods = [Followed(f"batches of {world.normal}", world.normal, start, asked, everyone)]
    for size in world.sizes:
        found = tried(setting, trials(world, size))
        predicted = [run["frozen"][str(size)][0] for run in asked]
        methods.append(Followed(f"batches of {size}", size, predicted, found, everyone))
    for remedy in REMEDIES:
        wanted = [
            followed(trial, run["advice"], remedy) for trial, run in zip(trials(world, world.large), asked, strict=True)
        ]
        there = [number for number, trial in enumerate(wanted) if trial is not None]
        found = tried(setting, [trial for trial in wanted if trial is not None])
        methods.append(
            Followed(f"{world.large} with {remedy}", world.large, [start[number] for number in there], found, there)
        )
    return methods


def _ratios(method: Followed) -> list[float]:
    return np.divide(method.measured, method.predicted).tolist()


def _row(method: Followed) -> dict[str, Any]:
    amounts = [run["amount"] for run in method.runs]
    row: dict[str, Any] = {
        "method": method.name,
        "amount": f"{np.mean(amounts):.3g}" if any(amounts) else "",
        "predicted": in_words(method.predicted, 4),
        "measured": in_words(method.measured, 4),
        "measured over predicted": "" if method.measured == method.predicted else in_words(_ratios(method), 2),
    }
    for name in ("train_loss", "train_accuracy", "test_accuracy", "gap", "test_loss"):
        row[name.replace("_", " ")] = in_words(method.score(name))
    return row


def _against(methods: list[Followed], large: int, normal: int) -> list[dict[str, Any]]:
    """Paired differences of each remedy to large batches alone and to the small batches that it stands for."""
    by_name = {method.name: method for method in methods}
    rows = []
    for method in methods:
        if method.batch_size != large or method.name == f"batches of {large}":
            continue
        for other in (f"batches of {large}", f"batches of {normal}"):
            rows.append(
                {"method": method.name, "against": other}
                | {name.replace("_", " "): in_words(method.minus(by_name[other], name))
                   for name in ("test_accuracy", "gap", "test_loss")}
            )  # fmt: skip
    return rows


def _bars(axis: Any, places: Any, values: list[list[float]], style: str, label: str, color: str) -> None:
    means = [float(np.mean(v)) if v else np.nan for v in values]
    ends = [t_interval(v)[1] for v in values]
    errors = [end - mean if np.isfinite(end) else 0.0 for end, mean in zip(ends, means, strict=True)]
    axis.errorbar(means, places, xerr=errors, fmt=style, color=color, label=label or None, capsize=2, markersize=5)


def _draw(axes: Any, methods: list[Followed], world: str) -> None:
    places = np.arange(len(methods))[::-1].astype(float)
    _bars(axes[0], places + 0.12, [m.predicted for m in methods], "s", "predicted from small batches", "C0")
    _bars(axes[0], places - 0.12, [m.measured for m in methods], "o", "measured after training", "C1")
    _bars(axes[1], places, [m.score("gap") for m in methods], "o", "", "black")
    _bars(axes[2], places, [m.score("test_loss") for m in methods], "o", "", "black")
    titles = ("regularisation, in units of the loss", "gap of accuracy", "test loss")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_yticks(places, [method.name for method in methods], fontsize=8)
    axes[0].set_ylabel(world, fontsize=9)


def _figure(methods: list[Followed], world: str) -> Figure:
    figure = Figure(figsize=(9.5, 4.0), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    _draw(axes, methods, world)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _in_words(methods: list[Followed], large: int, normal: int) -> str:
    by_name = {method.name: method for method in methods}
    small, alone = by_name[f"batches of {normal}"], by_name[f"batches of {large}"]
    sizes = [m for m in methods if m.name.startswith("batches") and m is not small]
    kept = "; ".join(
        f"{m.batch_size}: predicted {np.mean(m.predicted):.3g}, measured {np.mean(m.measured):.3g}" for m in sizes
    )
    worse = alone.minus(small, "test_loss")
    lines = [
        f"Batches of {normal} add {in_words(small.measured, 4)} to the training loss. What their networks predict for "
        f"others, and what networks trained in these have: {kept}. Large batches alone ({large}) change the test loss "
        f"by {in_words(worse)} and the gap by {in_words(alone.minus(small, 'gap'))}."
    ]
    for method in methods:
        if method.batch_size == large and method is not alone and method.runs:
            change = {name: in_words(method.minus(alone, name)) for name in ("test_loss", "gap", "test_accuracy")}
            lines.append(
                f"{method.name}: {in_words(_ratios(method), 2)} of the predicted regularisation; against {large} alone "
                f"test loss {change['test_loss']}, gap {change['gap']}, test accuracy {change['test_accuracy']}."
            )
    return " ".join(lines)


def _tried_out(setting: Setting, world: World) -> Outcome:
    """Ask networks of small batches, do in large ones what they advise, and compare."""
    import pandas

    methods = _methods(setting, world)
    against = _against(methods, world.large, world.normal)
    return Outcome(
        numbers={
            "methods": {
                m.name: {"predicted": m.predicted, "measured": m.measured, "runs": list(m.runs)} for m in methods
            },
            "differences": against,
        },
        tables={
            "Predicted by the networks of small batches, and measured (mean over seeds, 95 % t interval)": (
                pandas.DataFrame([_row(method) for method in methods])
            ),
            "Differences, paired by seed": pandas.DataFrame(against),
        },
        figures={"advice": _figure(methods, world.name)},
        verdict=f"{world.name}, {world.seeds} seeds. {_in_words(methods, world.large, world.normal)}",
        seeds=range(world.seeds),
    )


def advice(setting: Setting) -> Outcome:
    """The advice followed in fully connected networks."""
    return _tried_out(setting, worlds(setting)[0])


def advice_cnn(setting: Setting) -> Outcome:
    """The advice followed in convolutional networks on data with wrong labels."""
    return _tried_out(setting, worlds(setting)[1])
