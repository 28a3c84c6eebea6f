"""Generalization error of one-layer students over P/N, in theory and simulation (Fig. 1).

The paper gives neither epochs nor learning rate of its batch norm students, so they are evaluated after several
budgets. Our control: SGD without normalization, in the same batches, for as long. Batches have 32 samples for linear
students (N = 4096 in the paper) and 16 for ReLU students (the text; the caption has 32).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas
from jaxtyping import Float
from matplotlib.figure import Figure

from gapscope.theory import (
    batch_norm_zeta,
    draw_teacher_task,
    least_squares_students,
    student_generalization,
    train_students,
)
from gapscope.theory.statistical_mechanics import Student
from gapscope_studies.kit import plots
from gapscope_studies.kit.claims import HELD, OPEN, Claim, estimate, identity
from gapscope_studies.kit.statistics import Interval, bootstrap, mean
from gapscope_studies.kit.study import Outcome, RunSettings

NOISE = 0.25
# Passes over the data after which students are judged, before the longest.
BUDGETS = (10, 30, 60, 100, 200)
BATCH_SIZES = {"linear": 32, "relu": 16}
METHODS = {"batch_norm": "batch norm", "batches": "SGD in batches"}
GRID = np.linspace(0.02, 3.1, 617)
ON_THE_CURVE = 0.1
BEST_OF_BUDGETS = "the best of several budgets, and SGD without batch norm comes as near at its own (control open)"
TASKS: dict[str, Any] = {"unit": "tasks", "compared": (), "untrained": "simulated students"}
Point = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a simulation: `students` independent tasks per load P/N, in N dimensions."""

    student: Student
    n_inputs: int
    students: int
    longest: int
    full_epochs: int
    loads: tuple[float, ...]

    @property
    def batch_size(self) -> int:
        """M."""
        return BATCH_SIZES[self.student]

    @property
    def zeta(self) -> float:
        """Gamma decay that the paper equates with these batches."""
        return float(batch_norm_zeta(self.batch_size, student=self.student))

    @property
    def budgets(self) -> tuple[int, ...]:
        """Epochs after which students are evaluated."""
        return (*(epochs for epochs in BUDGETS if epochs < self.longest), self.longest)

    def curve(self, loads: Any, zeta: float) -> Float[np.ndarray, "*shape"]:
        """Return the closed form of the generalization error."""
        return student_generalization(loads, student=self.student, noise_variance=NOISE, zeta=zeta)


def simulate_point(plan: Plan, load: float, seed: int = 0) -> Point:
    """Train every kind of student on the tasks of one load, and return errors per task.

    Batch norm and its control run at a constant learning rate of 0.5 (in the units of `train_students`).
    """
    generator = np.random.default_rng([seed, round(1000 * load)])
    task = draw_teacher_task(load, n_inputs=plan.n_inputs, noise_variance=NOISE, students=plan.students,
                             generator=generator)  # fmt: skip
    # SGD and weight norm with gamma decay to the end: by linear algebra where the student is linear, else by training
    if plan.student == "linear":
        end, decayed = least_squares_students(task), least_squares_students(task, zeta=plan.zeta)
    else:
        end = train_students(
            task, method="sgd", student="relu", epochs=plan.full_epochs, anneal=False
        )
        decayed = train_students(
            task, method="weight_norm", student="relu", zeta=plan.zeta, epochs=plan.full_epochs
        )
    result = {
        method: train_students(
            task, method=method, student=plan.student, batch_size=min(plan.batch_size, task.inputs.shape[1]),
            epochs=plan.longest, anneal=False, checkpoints=plan.budgets, generator=generator,
        )
        for method in ("batch_norm", "sgd")
    }  # fmt: skip
    last = result["batch_norm"].weights[-1]
    lengths = np.linalg.norm(last, axis=-1) * np.linalg.norm(end.weights, axis=-1)
    errors = {
        method: {
            str(b): e.tolist()
            for b, e in zip(plan.budgets, students.generalization_error, strict=True)
        }
        for method, students in result.items()
    }
    return {
        "load": load,
        "plain": end.generalization_error.tolist(),
        "decayed": decayed.generalization_error.tolist(),
        "batch_norm": errors["batch_norm"],
        "batches": errors["sgd"],
        "cosine": (np.sum(last * end.weights, axis=-1) / lengths).tolist(),
    }


def _apart(errors: Sequence[Sequence[float]], target: Sequence[float], rows: Any = None) -> float:
    """Return the largest relative distance of the mean error to a finite curve.

    >>> _apart([[1.0, 2.0], [7.0]], [2.0, math.inf])
    0.25
    """
    means = [np.mean(np.asarray(e)[slice(None) if rows is None else rows]) for e in errors]
    return max(
        abs(float(m) / t - 1) for m, t in zip(means, target, strict=True) if math.isfinite(t)
    )


def _errors(points: Sequence[Point], method: str, epochs: int) -> list[list[float]]:
    return [point[method][str(epochs)] for point in points]


def _claims(
    plan: Plan, points: list[Point], best: Mapping[str, int], decay: Sequence[float]
) -> list[Claim]:
    """Return claims that batch norm is on the curve of gamma decay."""
    source = "Fig. 1a" if plan.student == "linear" else "Fig. 1b"

    def off(method: str, epochs: int, rows: Any) -> float:
        return _apart(_errors(points, method, epochs), decay, rows)

    def distance(says: str, function: Any, **more: Any) -> Claim:
        return estimate(source, says, "largest relative distance over the loads",
                        bootstrap(function, plan.students, draws=500), **TASKS, **more)  # fmt: skip

    farther = distance(
        "SGD in the same batches is farther at its best budget: it is batch norm that puts them there",
        lambda rows: off("batches", best["batches"], rows) - off("batch_norm", best["batch_norm"], rows),
        above=0.0, ours=True,
    )  # fmt: skip
    lie = distance(
        f"batch norm's students lie on gamma decay 1/{round(1 / plan.zeta)} (some budget: {best['batch_norm']} epochs)",
        partial(off, "batch_norm", best["batch_norm"]), below=ON_THE_CURVE,
    )  # fmt: skip
    if lie.outcome == HELD and farther.outcome != HELD:
        lie = replace(lie, status=OPEN, why=BEST_OF_BUDGETS)
    long = distance(f"they lie on it after long training ({plan.longest} epochs)",
                    partial(off, "batch_norm", plan.longest), below=ON_THE_CURVE)  # fmt: skip
    return [lie, long, farther]


def _peak_claims(points: list[Point]) -> list[Claim]:
    """Return claims that SGD's error peaks at P/N = 2, unlike that of gamma decay."""
    top = int(np.argmax([np.mean(point["plain"]) for point in points]))
    loads, sgd = [point["load"] for point in points], np.array(points[top]["plain"])
    # the largest of a few loads says no more than that the peak lies between its neighbours
    peak = Interval(
        loads[top], loads[max(top - 1, 0)], loads[min(top + 1, len(loads) - 1)], len(sgd)
    )
    below = [point["plain"] for point in points if point["load"] < 2]
    closed = [1 - load / 4 + load * NOISE / (2 * (2 - load)) for load in loads if load < 2]
    off = bootstrap(lambda rows: _apart(below, closed, rows), len(below[0]), draws=500)
    return [
        estimate("Eq. 25", "trained ReLU students err as the closed form says", "largest distance below P/N = 2",
                 off, below=ON_THE_CURVE, **TASKS),
        estimate("Fig. 1b", "SGD's error has its peak at P/N = 2",
                 "load with the largest error, between its neighbours", peak, above=1.9, below=2.1, **TASKS),
        estimate("Fig. 1b", "gamma decay suppresses that peak", "error there over SGD's",
                 mean(np.array(points[top]["decayed"]) / sgd), below=1.0, **TASKS),
    ]  # fmt: skip


def _linear_claims(plan: Plan, points: list[Point], decay: Sequence[float]) -> list[Claim]:
    """Return claims that SGD's error diverges at P/N = 1, and weak decay stays below."""
    grid = np.setdiff1d(GRID, [1.0])
    sgd, weak = plan.curve(grid, 0.0), plan.curve(grid, plan.zeta)
    at_one = float(plan.curve(1.0, plan.zeta))
    at = {point["load"]: np.array(point["plain"]) for point in points}
    nearest = [max(load for load in at if load < 1), min(load for load in at if load > 1)]
    peak = np.log(at[1.0] / np.maximum(*(at[load] for load in nearest)))
    name = f"decay 1/{round(1 / plan.zeta)}"
    at_peak = next(point for point in points if point["load"] == 1.0)["batch_norm"]
    first, last = (
        np.log(np.array(at_peak[str(epochs)]) / at_one)
        for epochs in (plan.budgets[0], plan.longest)
    )
    stopping = "log of batch norm's error over the curve at P/N = 1"
    return [
        identity("Fig. 1a", f"decay {NOISE:g} is the lowest curve everywhere", "largest excess over the other decay",
                 float(np.max(plan.curve(GRID, NOISE) - plan.curve(GRID, plan.zeta))), below=1e-12),
        identity("Fig. 1a", "SGD's error diverges at P/N = 1", "closed form at P/N = 1 - 1e-6",
                 float(plan.curve(1 - 1e-6, 0.0)), above=1e4),
        estimate("Fig. 1a", "SGD's students err most at P/N = 1", "log of their error there over the larger beside it",
                 mean(peak), above=0.0, **TASKS),
        identity("Fig. 1a", f"{name} overtrains around P/N = 1",
                 "its error at 1 minus the smallest at smaller loads", at_one - float(weak[grid < 1].min()), above=0.0),
        identity("Fig. 1a", f"{name} still errs less than SGD at every load", "largest error minus SGD's",
                 float((weak - sgd).max()), below=0.0),
        identity("Sec. 4", "simulated ridge students follow the closed form", "largest relative distance",
                 _apart([point["decayed"] for point in points], decay), below=ON_THE_CURVE, ours=True),
        # the number of epochs, which the paper does not report, decides on which side of the curve batch norm is
        estimate("Fig. 1a", f"early stopping: after {plan.budgets[0]} epochs batch norm errs less than {name}",
                 stopping, mean(first), below=0.0, ours=True, **TASKS),
        estimate("Fig. 1a", f"early stopping: after {plan.longest} epochs batch norm errs more than {name}",
                 stopping, mean(last), above=0.0, ours=True, **TASKS),
    ]  # fmt: skip


def _table(plan: Plan, points: list[Point]) -> pandas.DataFrame:
    rows = []
    for point in points:
        sgd = float(plan.curve(point["load"], 0.0))
        row: dict[str, Any] = {
            "P/N": point["load"],
            "SGD, closed form": sgd if math.isfinite(sgd) else "infinite",
            "SGD to the end": str(mean(point["plain"])),
            f"decay {plan.zeta:.3g}, closed form": float(plan.curve(point["load"], plan.zeta)),
            f"decay {plan.zeta:.3g} to the end": str(mean(point["decayed"])),
        }
        for method, title in METHODS.items():
            row |= {
                f"{title}, {epochs} epochs": str(mean(point[method][str(epochs)]))
                for epochs in plan.budgets
            }
        rows.append(row | {"cosine with SGD's end": str(mean(point["cosine"]))})
    return pandas.DataFrame(rows)


def _figure(plan: Plan, points: list[Point], best: int) -> Figure:
    figure, [axis] = plots.panels(1, width=7.2, height=4.6)
    axis.plot(GRID, np.minimum(plan.curve(GRID, 0.0), 10), "C0", label="SGD, closed form")
    if plan.student == "linear":
        axis.plot(
            GRID,
            plan.curve(GRID, plan.zeta),
            "C2",
            label=f"decay {plan.zeta:.3g} (1/2M), closed form",
        )
        axis.plot(GRID, plan.curve(GRID, NOISE), "C3", label=f"decay {NOISE:g}, closed form")
    else:
        noiseless = student_generalization(GRID, student="relu", noise_variance=0.0)
        axis.plot(GRID, noiseless, "C3", label="SGD without noise, closed form")
    series = {
        "SGD to the end": ([point["plain"] for point in points], "o", "C0"),
        f"gamma decay {plan.zeta:.3g} to the end": (
            [point["decayed"] for point in points],
            "^",
            "C2",
        ),
        f"batch norm, {best} epochs": (_errors(points, "batch_norm", best), "s", "black"),
        f"batch norm, {plan.longest} epochs": (
            _errors(points, "batch_norm", plan.longest),
            "s",
            "0.6",
        ),
        f"SGD in batches, {best} epochs": (_errors(points, "batches", best), "x", "C1"),
    }
    for name, (errors, marker, color) in series.items():
        plots.lines(
            axis, {name: np.transpose(errors)}, plan.loads, style=marker, colors={name: color}
        )
    axis.set_ylim((0, 2) if plan.student == "linear" else (0.5, 2.2))
    title = f"{plan.student} students, batches of {plan.batch_size}, N = {plan.n_inputs}"
    plots.set_labels(axis, title=title, xlabel="load P/N", ylabel="generalization error")
    plots.legend(figure)
    return figure


def figure_1(setting: RunSettings, student: Student) -> Outcome:
    """Compare the points of batch norm with those of gamma decay (Fig. 1)."""
    options = setting.read(__file__)["theory"][student]
    plan = Plan(**options | {"student": student, "loads": tuple(options["loads"])})
    name = f"{student}-{plan.n_inputs}-{plan.students}-{plan.longest}-{plan.full_epochs}"
    jobs = {f"{name}-{load:g}": partial(simulate_point, plan, load) for load in plan.loads}
    points = list(setting.cached("students", jobs).values())
    end, decay = (
        [float(np.mean(point[kind])) for point in points] for kind in ("plain", "decayed")
    )
    if student == "linear":
        decay = [float(plan.curve(load, plan.zeta)) for load in plan.loads]
    distances = pandas.DataFrame(
        {"method": title, "epochs": epochs, "to_decay": _apart(_errors(points, method, epochs), decay),
         "to_end": _apart(_errors(points, method, epochs), end)}
        for method, title in METHODS.items() for epochs in plan.budgets
    )  # fmt: skip
    # the budget at which each method comes nearest to gamma decay
    nearest: Any = distances.loc[distances.groupby("method")["to_decay"].idxmin()].set_index(
        "method"
    )["epochs"]
    best = {method: int(nearest[title]) for method, title in METHODS.items()}
    more = _linear_claims(plan, points, decay) if student == "linear" else _peak_claims(points)
    return Outcome(
        numbers={"zeta": plan.zeta, "points": points, "distances": distances.to_dict("records")},
        claims=[*_claims(plan, points, best, decay), *more],
        stands_in_for=[
            {"what": "N", "paper": "4,096" if student == "linear" else "not said", "here": f"{plan.n_inputs:,}"},
            {"what": "tasks a load", "paper": "not said", "here": str(plan.students)},
            {"what": "epochs", "paper": "not said", "here": ", ".join(map(str, plan.budgets))},
        ],
        tables={
            "Errors, with 95 % intervals over tasks": _table(plan, points),
            "Largest relative distance to gamma decay and to the end of SGD": distances,
        },
        figures={"errors": _figure(plan, points, best["batch_norm"])},
        seeds=[0],
    )  # fmt: skip
