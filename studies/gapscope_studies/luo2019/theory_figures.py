"""Fig. 1: generalization error of one-layer students over P/N, closed forms and simulated students.

The paper gives neither the epochs nor the learning rate of its batch norm students, so they are judged after several
budgets. Beside them stands what the paper leaves out: SGD without normalisation, in the same batches, for as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from gapscope.theory import student_generalization
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.theory_students import (
    NOISE,
    Plan,
    Point,
    Values,
    distance,
    mean_and_half_width,
    simulated_points,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

GRID = np.linspace(0.02, 3.1, 617)
BATCH_NORM, CONTROL = "batch norm", "SGD in batches"


def linear_plan(setting: Setting) -> Plan:
    """Fig. 1a: linear students, batches of 32; the paper has N = 4096."""
    size, students, longest = setting.choose(smoke=(32, 2, 20), small=(1024, 5, 600), paper=(4096, 5, 1000))
    few = (0.25, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0)
    loads = setting.choose(smoke=(0.5, 1.0, 2.0), small=few, paper=(*few, 2.5, 3.0))
    return Plan(
        student="linear", batch_size=32, n_inputs=size, students=students, longest=longest, full_epochs=0, loads=loads
    )


def relu_plan(setting: Setting) -> Plan:
    """Fig. 1b: ReLU students, batches of 16 as in the text (the caption has 32); N is not given."""
    size, students, longest = setting.choose(smoke=(32, 2, 20), small=(256, 8, 2000), paper=(4096, 5, 3000))
    loads = setting.choose(
        smoke=(0.5, 1.0, 2.5),
        small=(0.25, 0.5, 1.0, 1.4, 1.7, 2.0, 2.5),
        paper=(0.25, 0.5, 0.75, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5),
    )
    full = setting.choose(smoke=20, small=4000, paper=20_000)
    return Plan(
        student="relu", batch_size=16, n_inputs=size, students=students, longest=longest, full_epochs=full, loads=loads
    )


def _cell(values: Values) -> str:
    mean, half = mean_and_half_width(values)
    return f"{mean:.3f} ± {half:.3f}"


def _infinite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _table(plan: Plan, points: list[Point]) -> pandas.DataFrame:
    """Closed forms and simulated errors with 95 % intervals over the tasks."""
    import pandas

    rows = []
    for point in points:
        row: dict[str, Any] = {
            "P/N": point.load,
            "SGD, closed form": _infinite(float(plan.curve(point.load, 0.0))),
            "SGD to the end": _cell(point.plain),
            f"decay {plan.zeta:.3g}, closed form": float(plan.curve(point.load, plan.zeta)),
            f"decay {plan.zeta:.3g} to the end": _cell(point.decayed),
        }
        row |= {f"batch norm, {epochs} epochs": _cell(values) for epochs, values in point.batch_norm.items()}
        row |= {f"SGD in batches, {epochs} epochs": _cell(values) for epochs, values in point.batches.items()}
        rows.append(row | {"cosine with SGD's end": _cell(point.cosine)})
    return pandas.DataFrame(rows)


@dataclass(frozen=True)
class _Distance:
    """Largest relative distance over the loads of one method after so many epochs, to gamma decay and to SGD's end."""

    method: str
    epochs: int
    to_decay: float
    to_end: float


def _distances(
    plan: Plan, points: list[Point], decay: Float[np.ndarray, " l"], end: Float[np.ndarray, " l"]
) -> list[_Distance]:
    found = []
    for method, name in (("batch_norm", BATCH_NORM), ("batches", CONTROL)):
        for epochs in plan.budgets:
            errors = [getattr(point, method)[epochs] for point in points]
            found.append(_Distance(name, epochs, distance(errors, decay), distance(errors, end)))
    return found


def _nearest(distances: list[_Distance], method: str) -> _Distance:
    """The budget of a method that comes nearest to gamma decay."""
    return min((item for item in distances if item.method == method), key=lambda item: item.to_decay)


def _last(distances: list[_Distance], method: str) -> _Distance:
    return [item for item in distances if item.method == method][-1]


def _draw_points(axes: Axes, plan: Plan, points: list[Point], budgets: tuple[int, ...]) -> None:
    loads = [point.load for point in points]
    series: list[tuple[str, list[Values], str, str]] = [
        ("SGD to the end", [point.plain for point in points], "o", "C0"),
        (f"gamma decay {plan.zeta:.3g} to the end", [point.decayed for point in points], "^", "C2"),
        *(
            (f"batch norm, {epochs} epochs", [point.batch_norm[epochs] for point in points], "s", colour)
            for epochs, colour in zip(budgets, ("black", "0.6"), strict=False)
        ),
        (f"SGD in batches, {budgets[0]} epochs", [point.batches[budgets[0]] for point in points], "x", "C1"),
    ]
    for shift, (name, values, marker, colour) in zip((-0.02, -0.01, 0, 0.01, 0.02), series, strict=False):
        means, halves = np.transpose([mean_and_half_width(v) for v in values])
        axes.errorbar(
            np.add(loads, shift), means, np.where(np.isfinite(halves), halves, 0), fmt=marker, color=colour,
            markerfacecolor="none", markersize=5, linewidth=0.8, label=name,
        )  # fmt: skip


def _figure(plan: Plan, points: list[Point], budgets: tuple[int, ...], draw_theory: Callable[[Axes], None]) -> Figure:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_theory(axes)
    _draw_points(axes, plan, points, budgets)
    axes.set(xlabel="load P/N", ylabel="generalization error", xlim=(0, max(plan.loads) + 0.1))
    axes.set_title(f"{plan.student} students, batches of {plan.batch_size}, N = {plan.n_inputs}", fontsize=10)
    axes.set_ylim((0, 2) if plan.student == "linear" else (0.5, 2.2))
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _outcome(
    plan: Plan, points: list[Point], distances: list[_Distance], draw_theory: Callable[[Axes], None], verdict: str
) -> Outcome:
    import pandas

    rows = [asdict(item) for item in distances]
    budgets = (_nearest(distances, BATCH_NORM).epochs, plan.longest)
    return Outcome(
        numbers={
            "n_inputs": plan.n_inputs,
            "batch_size": plan.batch_size,
            "zeta": plan.zeta,
            "points": [point.to_dict() for point in points],
            "distances": rows,
        },
        tables={
            "Errors, with 95 % intervals over tasks": _table(plan, points),
            "Largest relative distance over the loads to gamma decay and to the end of SGD": pandas.DataFrame(rows),
        },
        figures={"errors": _figure(plan, points, budgets, draw_theory)},
        verdict=verdict,
        seeds=[0],
    )


def figure_1a(setting: Setting) -> Outcome:
    """Linear students: are batch norm's points those of ridge regression with zeta = 1/2M?"""
    plan = linear_plan(setting)
    points = simulated_points(setting, plan)
    decay, end = plan.curve(np.array(plan.loads), plan.zeta), np.array([np.mean(point.plain) for point in points])
    distances = _distances(plan, points, decay, end)

    def theory(axes: Axes) -> None:
        axes.plot(GRID, np.minimum(plan.curve(GRID, 0.0), 10), "C0", label="SGD, closed form")
        axes.plot(GRID, plan.curve(GRID, plan.zeta), "C2", label=f"decay {plan.zeta:.3g} (1/2M), closed form")
        axes.plot(GRID, plan.curve(GRID, NOISE), "C3", label=f"decay {NOISE:g}, closed form")

    return _outcome(plan, points, distances, theory, _words_1a(plan, points, distances, decay))


def _words_1a(plan: Plan, points: list[Point], distances: list[_Distance], decay: Float[np.ndarray, " l"]) -> str:
    lowest = bool(np.all(plan.curve(GRID, NOISE) <= plan.curve(GRID, plan.zeta) + 1e-12))
    cosine = min(float(np.mean(p.cosine)) for p in points if np.isfinite(plan.curve(p.load, 0.0)))
    ridge = distance([point.decayed for point in points], decay)
    return (
        f"N = {plan.n_inputs}. Simulated ridge students lie within {ridge:.0%} of the closed form at all loads; decay "
        f"{NOISE:g} is {'' if lowest else 'not '}the lowest curve everywhere (paper: it is). "
        f"{_on_the_curve(distances, 'the curve 1/2M')} At the end its direction has a cosine of at least {cosine:.3f} "
        "with that of least squares, where SGD ends (all loads but the divergence)."
    )


def _on_the_curve(distances: list[_Distance], curve: str) -> str:
    """Whether batch norm is on a curve: at which budget, and whether SGD in the same batches is there as well."""
    best, last = _nearest(distances, BATCH_NORM), _last(distances, BATCH_NORM)
    control = _nearest(distances, CONTROL)
    judged = (
        "holds for one training budget, not at convergence" if best.to_decay < 0.5 * last.to_decay
        else "holds after long training too" if last.to_decay < 0.1 else "does not hold at any budget tried"
    )  # fmt: skip
    cause = (
        "so that it is the budget that puts students there"
        if control.to_decay <= 1.5 * best.to_decay
        else "which is farther: the batch statistics matter"
    )
    return (
        f"That batch norm lies on {curve} {judged}: its largest distance over the loads is {best.to_decay:.0%} after "
        f"{best.epochs} epochs and {last.to_decay:.0%} after {last.epochs}. SGD without normalisation in the same "
        f"batches comes within {control.to_decay:.0%} (after {control.epochs} epochs), {cause}."
    )


def figure_1b(setting: Setting) -> Outcome:
    """ReLU students of a linear teacher: SGD's divergence at alpha = 2, and batch norm beside decay 1/4M."""
    plan = relu_plan(setting)
    points = simulated_points(setting, plan)
    decay, end = (np.array([np.mean(getattr(p, name)) for p in points]) for name in ("decayed", "plain"))
    distances = _distances(plan, points, decay, end)

    def theory(axes: Axes) -> None:
        axes.plot(GRID, np.minimum(plan.curve(GRID, 0.0), 10), "C0", label="SGD, closed form")
        noiseless = student_generalization(GRID, student="relu", noise_variance=0.0)
        axes.plot(GRID, noiseless, "C3", label="SGD without noise, closed form")

    return _outcome(plan, points, distances, theory, _words_1b(plan, points, distances))


def _words_1b(plan: Plan, points: list[Point], distances: list[_Distance]) -> str:
    def peak(errors: Callable[[Point], Values]) -> tuple[float, float]:
        return max((float(np.mean(errors(point))), point.load) for point in points)

    plain, where = peak(lambda point: point.plain)
    decayed, _ = peak(lambda point: point.decayed)
    own, own_where = peak(lambda point: point.batch_norm[plan.longest])
    return (
        f"N = {plan.n_inputs}. The error of SGD is largest at P/N = {where:g}, {plain:.2f} after {plan.full_epochs} "
        f"epochs (closed form: it diverges at 2); with gamma decay {plan.zeta:.3g} (1/4M) the largest is {decayed:.2f} "
        f"(paper: no peak). {_on_the_curve(distances, 'gamma decay')} Batch norm's own largest error then is "
        f"{own:.2f}, at P/N = {own_where:g}."
    )
