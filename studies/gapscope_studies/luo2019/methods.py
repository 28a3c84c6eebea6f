"""One method over its seeds: what a curve of a figure and a row of a table are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from gapscope_studies.kit.study import Setting
from gapscope_studies.luo2019.cases import Case
from gapscope_studies.luo2019.old_claims import Claim, in_words
from gapscope_studies.luo2019.runs import Run, runs

if TYPE_CHECKING:
    import pandas

SHOWN = {
    "train_loss": "train loss",
    "test_loss": "validation loss",
    "train_accuracy": "train accuracy",
    "test_accuracy": "validation accuracy",
}


@dataclass(frozen=True)
class Method:
    """What was trained under one name.

    Attributes:
        name: As in the figures.
        runs: One run a seed, in the order of the seeds.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> list[Run]:
        """Runs that did not diverge."""
        return [run for run in self.runs if run.status == "finished"]

    def final(self, score: str) -> list[float]:
        """Scores at the end, in evaluation mode, of the runs that did not diverge."""
        return [run.scores[score] for run in self.finished]

    def curve(self, column: str) -> np.ndarray:
        """Values of the runs that did not diverge [runs, epochs]."""
        return np.array([[row[column] for row in run.history] for run in self.finished])


def trained(setting: Setting, named_cases: Mapping[str, Sequence[Case]]) -> dict[str, Method]:
    """Train what is missing, seed by seed, so that a stopped study has whole seeds.

    Args:
        setting: Where and how large.
        named_cases: Name of each method -> a case a seed.

    Returns:
        Name -> method.
    """
    order = [(name, case) for name, found in named_cases.items() for case in found]
    order.sort(key=lambda item: item[1].spec.seed)
    found = runs(setting, [case for _, case in order])
    grouped: dict[str, list[Run]] = {name: [] for name in named_cases}
    for (name, _), run in zip(order, found, strict=True):
        grouped[name].append(run)
    return {name: Method(name, tuple(group)) for name, group in grouped.items()}


def differences(one: Method, other: Method, score: str) -> tuple[float, ...]:
    """One minus the other, seed by seed, where neither diverged."""
    pairs = zip(one.runs, other.runs, strict=True)
    return tuple(
        a.scores[score] - b.scores[score] for a, b in pairs if a.status == "finished" and b.status == "finished"
    )


def larger(source: str, statement: str, one: Method, other: Method, score: str) -> Claim:
    """The claim that `one` has more of a score than `other`."""
    values = differences(one, other, score)
    return Claim(source, statement, f"{SHOWN[score]} of {one.name} minus {other.name}", values, above=0.0)


def smaller(source: str, statement: str, one: Method, other: Method, score: str) -> Claim:
    """The claim that `one` has less of a score than `other`."""
    values = differences(one, other, score)
    return Claim(source, statement, f"{SHOWN[score]} of {one.name} minus {other.name}", values, below=0.0)


def method_table(methods: Mapping[str, Method]) -> pandas.DataFrame:
    """One row a method: batch size, scores at the end with intervals over seeds, runs that diverged."""
    import pandas

    rows = []
    for method in methods.values():
        row = {"method": method.name, "batch": method.runs[0].case.batch_size}
        row |= {title: in_words(method.final(score)) for score, title in SHOWN.items()}
        rows.append(row | {"diverged": f"{len(method.runs) - len(method.finished)} of {len(method.runs)}"})
    return pandas.DataFrame(rows)


def curves(methods: Mapping[str, Method], panels: Sequence[tuple[str, Mapping[str, str]]]) -> Figure:
    """Means over seeds along training, a panel a quantity.

    Args:
        methods: The methods, a colour each.
        panels: Title, and column of the history -> line style.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(4.6 * len(panels) + 1.5, 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, columns) in zip(axes, panels, strict=True):
        highest = []
        for number, method in enumerate(methods.values()):
            for column, style in columns.items():
                values = method.curve(column)
                if len(values):
                    mean = values.mean(0)
                    axis.plot(range(1, len(mean) + 1), mean, style, color=f"C{number}", lw=1.3)
                    highest.append(float(mean[len(mean) // 4 :].max()))
        if "loss" in title and highest:
            axis.set_ylim(0, 1.1 * max(highest))
        axis.set_xlabel("epoch")
        axis.set_title(title, fontsize=10)
    for number, name in enumerate(methods):
        axes[-1].plot([], [], color=f"C{number}", label=name)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure
