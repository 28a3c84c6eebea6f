"""Fig. 2 with Fig. A.1: decision boundaries between two circles, and the metrics along training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

from gapscope.pools.from_spec import prepared
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.szolnoky2022 import setups, tuning
from gapscope_studies.szolnoky2022.curves import (
    accuracy_sentence,
    draw_curves,
    ends,
    metrics_sentence,
    rank_correlation,
    slower_growth,
    summary,
)
from gapscope_studies.szolnoky2022.paper import Table
from gapscope_studies.szolnoky2022.runs import with_interval, written
from gapscope_studies.szolnoky2022.setups import Setup
from gapscope_studies.szolnoky2022.watching import HALF_WIDTH, POINTS, watched

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _draw_boundary(axis: Axes, values: list[float], setting: Setting, setup: Setup) -> None:
    problem, _ = prepared(setup.with_seed(0), setting.data_root)
    side = numpy.linspace(-HALF_WIDTH, HALF_WIDTH, POINTS)
    surface = numpy.reshape(values, (POINTS, POINTS))
    axis.contourf(side, side, surface, levels=[0, 0.5, 1], colors=["#dbe5f3", "#f8ddd6"])
    # the set of points at which both classes are equally likely, nearly a circle half-way between the two
    angle = numpy.linspace(0, 2 * numpy.pi, 100)
    middle = (1 + problem_factor(setup)) / 2
    axis.plot(middle * numpy.cos(angle), middle * numpy.sin(angle), "k--", lw=0.7)
    assert problem.train.targets is not None
    points, labels = problem.train.inputs.numpy(), problem.train.targets.numpy()
    for label, colour in ((0, "tab:blue"), (1, "tab:red")):
        axis.plot(*points[labels == label].T, ".", color=colour, ms=3)
    axis.set(xticks=[], yticks=[], aspect="equal", xlim=(-HALF_WIDTH, HALF_WIDTH), ylim=(-HALF_WIDTH, HALF_WIDTH))


def problem_factor(setup: Setup) -> float:
    """Radius of the inner circle, that of the outer one being 1."""
    return float(setup.base.data.options.get("factor", 0.5))


def boundaries_figure(setting: Setting, setup: Setup, table: Table, planes: dict[str, list[float]]) -> Figure:
    """Above the decision boundary of every method's first run, below the two metrics along training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.75 * len(setup.methods), 4.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[2, 3])
    above, below = parts
    for axis, method in zip(above.subplots(1, len(setup.methods)).flat, setup.methods, strict=True):
        axis.set_title(method.name, fontsize=8, color=method.colour)
        if method.name in planes:
            _draw_boundary(axis, planes[method.name], setting, setup)
    for axis, column in zip(below.subplots(1, 2).flat, ("trace", "logdet"), strict=True):
        draw_curves(axis, setup, table, column)
        axis.set_xlabel("epoch", fontsize=8)
    axis.legend(fontsize=7, frameon=False)
    return figure


def differences(found: Table) -> dict[str, tuple[float, float, float]]:
    """Method -> its final test accuracy less the unregularised one, mean over runs with a 95 % t-interval."""
    finals: Any = found.pivot(index="seed", columns="method", values="final")
    others = [name for name in finals.columns if name != "Unregularised"]
    return {name: with_interval((finals[name] - finals["Unregularised"]).to_list()) for name in others}


def figure_2(setting: Setting) -> Outcome:
    """Every method, both MGS penalties among them, on two noisy circles.

    Args:
        setting: Scale, work folder, workers.

    Returns:
        Boundaries and metrics, the end of every method, and how they differ from the unregularised network.
    """
    setup = setups.circles(setting)
    tuned = tuning.cross_validated(setting, setup)
    table, planes = watched(
        setting,
        setup,
        tuning.chosen_strengths(tuned),
        every=setting.choose(smoke=5, small=10, paper=20),
        n_samples=100,
    )
    found = ends(table)
    beyond = differences(found)
    gains = ", ".join(f"{name} {written(*beyond[name])}" for name in beyond)
    traces = summary(found).set_index("method")["growth of log tr K"]
    verdict = (
        f"{accuracy_sentence(found)} Beyond the unregularised network, in points over {setup.runs} runs: {gains} (the "
        f"best possible classifier is right on 89.0 %). {metrics_sentence(found)} The penalty on log det lets log tr K "
        f"change by {traces['MGS (log det)']:+.2f}, that on the trace by {traces['MGS']:+.2f} (the paper calls their "
        f"differences subtle). {tuning.description(setup, tuned)}"
    )
    return Outcome(
        numbers={
            "ends": found.to_dict("records"),
            "beyond_unregularised": beyond,
            "rank_correlation": rank_correlation(found),
            "slower_growth": slower_growth(found),
            "strengths": tuning.chosen_strengths(tuned),
        },
        tables={"Ends of training, means over runs": summary(found), "Strengths tried": tuned},
        figures={"boundaries": boundaries_figure(setting, setup, table, planes)},
        verdict=verdict,
        seeds=range(setup.runs),
    )
