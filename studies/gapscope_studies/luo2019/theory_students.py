"""One-layer students on few noisy samples, simulated side by side: what the points of Fig. 1 are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from gapscope.theory import (
    StudentWeights,
    TeacherTask,
    batch_norm_zeta,
    draw_teacher_task,
    least_squares_students,
    student_generalization,
    train_students,
)
from gapscope.theory.order_parameters import Student
from gapscope_studies.kit.statistics import t_interval
from gapscope_studies.kit.study import Setting
from gapscope_studies.luo2019.runs import kept_results

NOISE = 0.25
BUDGETS = (10, 30, 60, 100, 200)
"""Passes over the data after which students are judged, in every plan, before the longest."""

Values = Float[np.ndarray, " k"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is simulated.

    Attributes:
        student: Activation of the student; the teacher is linear.
        batch_size: M.
        n_inputs: N.
        students: Independent tasks at every load.
        longest: Epochs of the longest training of real batch norm and of SGD in the same batches.
        full_epochs: Epochs of ReLU students that are trained on the whole data at once.
        loads: P/N.
    """

    student: Student
    batch_size: int
    n_inputs: int
    students: int
    longest: int
    full_epochs: int
    loads: tuple[float, ...]

    @property
    def zeta(self) -> float:
        """The gamma decay that the paper puts in the place of these batches."""
        return float(batch_norm_zeta(self.batch_size, student=self.student))

    @property
    def budgets(self) -> tuple[int, ...]:
        """Epochs after which students are judged."""
        return (*(epochs for epochs in BUDGETS if epochs < self.longest), self.longest)

    def curve(self, loads: Any, zeta: float) -> Float[np.ndarray, ...]:
        """Closed form of the generalization error."""
        return student_generalization(loads, student=self.student, noise_variance=NOISE, zeta=zeta)


@dataclass(frozen=True, eq=False)
class Point:
    """Generalization errors of the students at one load, one number a task.

    Attributes:
        plain: SGD to the end.
        decayed: Weight norm with gamma decay to the end.
        batch_norm: Real batch norm, by epochs of training.
        batches: SGD without normalisation in the same batches, by epochs of training.
        cosine: Cosine of batch norm's direction after the longest training with that of SGD at the end.
    """

    load: float
    plain: Values
    decayed: Values
    batch_norm: dict[int, Values]
    batches: dict[int, Values]
    cosine: Values

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "load": self.load,
            "plain": self.plain.tolist(),
            "decayed": self.decayed.tolist(),
            "batch_norm": {str(epochs): values.tolist() for epochs, values in self.batch_norm.items()},
            "batches": {str(epochs): values.tolist() for epochs, values in self.batches.items()},
            "cosine": self.cosine.tolist(),
        }


def mean_and_half_width(values: Values) -> tuple[float, float]:
    """Mean with half of its 95 % interval by Student's t, infinite for a single value."""
    low, high = t_interval(list(values))
    return float(np.mean(values)), (high - low) / 2


def _cosines(first: StudentWeights, second: StudentWeights) -> Values:
    lengths = np.linalg.norm(first.weights, axis=-1) * np.linalg.norm(second.weights, axis=-1)
    return np.sum(first.weights * second.weights, axis=-1) / lengths


def _to_the_end(plan: Plan, task: TeacherTask) -> tuple[StudentWeights, StudentWeights]:
    """SGD and weight norm with gamma decay: by linear algebra where the student is linear, else by training."""
    if plan.student == "linear":
        return least_squares_students(task), least_squares_students(task, zeta=plan.zeta)
    plain = train_students(task, method="sgd", student="relu", epochs=plan.full_epochs, anneal=False)
    decayed = train_students(task, method="weight_norm", student="relu", zeta=plan.zeta, epochs=plan.full_epochs)
    return plain, decayed


def simulate_point(plan: Plan, load: float, seed: int = 0) -> Point:
    """Draw the tasks of one load and train every kind of student on them.

    Real batch norm and its control run at a constant learning rate of 0.5 (in the units of `train_students`).

    Args:
        plan: What is simulated.
        load: P/N.
        seed: Seed of tasks and batches.

    Returns:
        The errors.
    """
    generator = np.random.default_rng([seed, round(1000 * load)])
    task = draw_teacher_task(
        load, n_inputs=plan.n_inputs, noise_variance=NOISE, students=plan.students, generator=generator
    )
    plain, decayed = _to_the_end(plan, task)
    batch = min(plan.batch_size, task.inputs.shape[1])
    found = {
        method: train_students(
            task, method=method, student=plan.student, batch_size=batch, epochs=plan.longest, anneal=False,
            checkpoints=plan.budgets, generator=generator,
        )
        for method in ("batch_norm", "sgd")
    }  # fmt: skip
    last = StudentWeights(found["batch_norm"].weights[-1], task.teachers, plan.student)
    errors = {
        method: dict(zip(plan.budgets, students.generalization_error, strict=True))
        for method, students in found.items()
    }
    return Point(
        load=load,
        plain=plain.generalization_error,
        decayed=decayed.generalization_error,
        batch_norm=errors["batch_norm"],
        batches=errors["sgd"],
        cosine=_cosines(last, plain),
    )


def _plain(folder: Path, *, plan: Plan, load: float) -> dict[str, Any]:
    return simulate_point(plan, load).to_dict()


def _by_epochs(content: dict[str, Any]) -> dict[int, Values]:
    return {int(epochs): np.array(values) for epochs, values in content.items()}


def simulated_points(setting: Setting, plan: Plan) -> list[Point]:
    """Simulate the loads of a plan that were not simulated before.

    Args:
        setting: Work folder and workers.
        plan: What is simulated.

    Returns:
        One point a load.
    """
    name = hashlib.sha256(repr(replace(plan, loads=())).encode()).hexdigest()[:16]
    jobs = [
        (setting.work / "students" / f"{name}-{load:g}" / "point.json", partial(_plain, plan=plan, load=load))
        for load in plan.loads
    ]
    found = kept_results(setting, jobs, f"loads of {plan.student} students")
    return [
        Point(
            load=load,
            plain=np.array(content["plain"]),
            decayed=np.array(content["decayed"]),
            batch_norm=_by_epochs(content["batch_norm"]),
            batches=_by_epochs(content["batches"]),
            cosine=np.array(content["cosine"]),
        )
        for load, content in zip(plan.loads, found, strict=True)
    ]


def distance(errors: list[Values], target: Float[np.ndarray, " l"]) -> float:
    """Largest relative distance over the loads between mean errors and a curve; where it is infinite does not count.

    Args:
        errors: Errors at each load.
        target: The curve there.

    Returns:
        The largest of |mean / target - 1|.

    >>> distance([np.array([1.0, 2.0]), np.array([7.0])], np.array([2.0, np.inf]))
    0.25
    """
    means = np.array([float(np.mean(values)) for values in errors])
    finite = np.isfinite(target)
    return float(np.max(np.abs(means[finite] / target[finite] - 1)))
