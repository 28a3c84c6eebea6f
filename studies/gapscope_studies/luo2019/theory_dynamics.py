"""Learning dynamics, eqs. (6) to (10): differential equations of the order parameters against simulated students.

Batch norm is here what the paper makes of it: weight norm with gamma decay zeta. All students learn online from a
teacher of their own kind without label noise, t = (seen samples)/N.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from gapscope.theory import learning_dynamics, order_parameter_integrals, simulate_learning
from gapscope.theory.dynamics import Trajectory
from gapscope.theory.order_parameters import Student
from gapscope.theory.student_steps import activate, pre_activations, steps
from gapscope.theory.teacher_students import draw_teachers
from gapscope_studies.kit.study import Outcome, Setting
from gapscope_studies.luo2019.old_claims import in_words
from gapscope_studies.luo2019.theory_students import mean_and_half_width
from gapscope_studies.luo2019.theory_table import APPROACHES, RATE, SEED, STUDENTS, ZETA, Approach

PARAMETERS = {"gamma": "gain γ", "overlap": "overlap R", "length": "length L"}


def _simulate(setting: Setting, approach: Approach, student: Student, times: Any, rate: float) -> Trajectory:
    size, students = setting.choose(smoke=(40, 2), small=(1000, 8), paper=(4000, 12))
    return simulate_learning(
        times, learning_rate=rate, method=approach.method, student=student, zeta=approach.zeta, n_inputs=size,
        students=students, generator=np.random.default_rng(SEED),
    )  # fmt: skip


def _deviations(setting: Setting) -> tuple[list[dict[str, Any]], Figure]:
    """Simulated students against the equations, for every approach and activation."""
    until = setting.choose(smoke=2.0, small=16.0, paper=32.0)
    times = np.linspace(0, until, 33)
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes, rows = figure.subplots(2, 3, sharex=True, sharey="row"), []
    for i, student in enumerate(STUDENTS):
        rate = RATE if student == "relu" else 3 * RATE
        for j, approach in enumerate(APPROACHES):
            drawn = _simulate(setting, approach, student, times, rate)
            path = learning_dynamics(
                times, learning_rate=rate, method=approach.method, student=student, zeta=approach.zeta
            )
            rows.append(_deviation(approach, student, rate, path, drawn))
            _draw(axes[i, j], path, drawn, f"{approach.name}, {student}, η = {rate:g}")
            setting.say(f"  {approach.name}, {student} done")
    for axis in axes[1]:
        axis.set_xlabel("t = seen samples / N", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return rows, figure


def _draw(axis: Any, path: Trajectory, drawn: Trajectory, title: str) -> None:
    for number, (name, label) in enumerate(PARAMETERS.items()):
        values = getattr(drawn, name)
        axis.plot(path.times, getattr(path, name), color=f"C{number}", label=f"{label}, equations")
        axis.plot(
            path.times, values.mean(1), "o", color=f"C{number}", markersize=3, markerfacecolor="none",
            label=f"{label}, simulated",
        )  # fmt: skip
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=8)


def _deviation(
    approach: Approach, student: Student, rate: float, path: Trajectory, drawn: Trajectory
) -> dict[str, Any]:
    row: dict[str, Any] = {"student": student, "approach": approach.name, "η": rate}
    for name in PARAMETERS:
        apart = getattr(drawn, name) - getattr(path, name)[:, None]
        row[f"{name}: largest of the mean"] = float(np.abs(apart.mean(1)).max())
        row[f"{name}: one student, rms"] = float(np.sqrt((apart**2).mean()))
    return row


def _rms_by_size(setting: Setting) -> tuple[list[dict[str, Any]], list[float]]:
    """Root mean square deviation of single students from the equations over N, and its power of N by student."""
    sizes, students = setting.choose(
        smoke=((20, 40), 2), small=((125, 250, 500, 1000, 2000), 24), paper=((250, 500, 1000, 2000, 4000), 24)
    )
    until = setting.choose(smoke=2.0, small=8.0, paper=16.0)
    times = np.linspace(0, until, 17)
    path = learning_dynamics(times, learning_rate=RATE, zeta=ZETA)
    each = np.empty((len(sizes), students))
    for number, size in enumerate(sizes):
        drawn = simulate_learning(
            times, learning_rate=RATE, zeta=ZETA, n_inputs=size, students=students,
            generator=np.random.default_rng([SEED, size]),
        )  # fmt: skip
        each[number] = np.sqrt(np.mean((drawn.overlap - path.overlap[:, None]) ** 2, axis=0))
    rows = []
    for size, values in zip(sizes, each, strict=True):
        mean, half = mean_and_half_width(values)
        rows.append({"N": size, "rms of R": mean, "half of 95 % interval": half, "times √N": mean * size**0.5})
    return rows, np.polyfit(np.log(sizes), np.log(each), 1)[0].tolist()


def printed_step(size: int, until: float, students: int) -> Float[np.ndarray, " k"]:
    """Gain of simulated ReLU students when it moves by the printed step, learning rate and not learning rate over N.

    Args:
        size: N.
        until: Training time.
        students: Number of students.

    Returns:
        Standard deviation of each student's gain over the second half of training.
    """
    generator = np.random.default_rng(SEED)
    teachers = draw_teachers(size, students, generator)
    weights, gains, later = teachers + generator.standard_normal(teachers.shape), np.full(students, 0.5), []
    for _ in range(round(until * size)):
        x = generator.standard_normal((students, 1, size)) / np.sqrt(size)
        labels = activate(pre_activations(x, teachers), "relu")
        turn, growth = steps("weight_norm", weights, gains, x, labels, "relu")
        weights, gains = weights + RATE * turn, gains + RATE * (size * growth - ZETA * gains)
        later.append(gains)
    return np.std(later[len(later) // 2 :], axis=0)


def printed_i2(gamma: float, overlap: float) -> float:
    """I2 of ReLU students as printed in eq. (15), with pi R in the place of pi in its middle term.

    Args:
        gamma: Gain.
        overlap: R.

    Returns:
        The printed value, wrong unless R = 1.

    >>> printed_i2(1.0, 1.0)
    0.0
    """
    arc, root = float(np.arcsin(overlap)), float(np.sqrt(1 - overlap**2))
    middle = (np.pi * overlap + 2 * overlap * root + 2 * arc) / (4 * np.pi)
    last = gamma * (np.pi * overlap + 2 * root + 2 * overlap * arc) / (2 * np.pi)
    return float(gamma**2 / 2 + middle - last)


def _integrals(setting: Setting) -> list[dict[str, Any]]:
    """I2 as printed, corrected, and drawn."""
    draws = setting.choose(smoke=20_000, small=4_000_000, paper=20_000_000)
    first, across = np.random.default_rng(SEED).standard_normal((2, draws))
    rows = []
    for gamma, overlap in ((0.5, -0.6), (0.7, 0.4), (0.9, 0.9), (1.0, 1.0)):
        student, teacher = gamma * first, overlap * first + np.sqrt(1 - overlap**2) * across
        squares = np.where(student > 0, (np.maximum(teacher, 0) - student) ** 2, 0.0)
        rows.append(
            {
                "γ": gamma,
                "R": overlap,
                "I2 as printed": printed_i2(gamma, overlap),
                "I2 corrected": float(order_parameter_integrals(gamma, overlap).i2),
                "I2 drawn": float(squares.mean()),
                "standard error": float(squares.std() / draws**0.5),
            }
        )
    return rows


def dynamics(setting: Setting) -> Outcome:
    """The equations of the order parameters against simulated online SGD, at one N and over N."""
    import pandas

    rows, figure = _deviations(setting)
    (sizes, powers), integrals = _rms_by_size(setting), _integrals(setting)
    jumps = printed_step(*setting.choose(smoke=(40, 2.0, 2), small=(500, 16.0, 8), paper=(4000, 16.0, 12))).tolist()
    return Outcome(
        numbers={
            "deviations": rows,
            "by_size": sizes,
            "powers_of_n": powers,
            "i2": integrals,
            "deviation_of_gain_with_printed_step": jumps,
        },
        tables={
            "Simulated students minus equations": pandas.DataFrame(rows),
            f"BN (zeta = {ZETA:g}), ReLU, over N": pandas.DataFrame(sizes),
            "I2 of ReLU students": pandas.DataFrame(integrals),
        },
        figures={"paths": figure},
        verdict=_words_of_dynamics(rows, powers, integrals, jumps),
        seeds=[SEED],
    )


def _words_of_dynamics(
    rows: list[dict[str, Any]], powers: list[float], integrals: list[dict[str, Any]], jumps: list[float]
) -> str:
    largest = max(value for row in rows for name, value in row.items() if name.endswith("largest of the mean"))
    wrong = max(integrals, key=lambda row: abs(row["I2 as printed"] - row["I2 drawn"]))
    corrected = max(abs(row["I2 corrected"] - row["I2 drawn"]) for row in integrals)
    return (
        f"The mean of the simulated students stays within {largest:.3f} of the equations in every order parameter, for "
        f"all {len(rows)} pairs of approach and activation; single students' deviation goes as N to the power "
        f"{in_words(powers, 2)} (expected: -0.5). The equations hold with two corrections of the print. The step of γ "
        f"is η/N: with η, as in eq. 5, the gain jumps about with a standard deviation of {in_words(jumps, 2)}. And I2 "
        f"(eq. 15) has π where πR is printed: at γ = {wrong['γ']:g}, R = {wrong['R']:g} the print gives "
        f"{wrong['I2 as printed']:.3f}, drawing {wrong['I2 drawn']:.3f} (corrected: within {corrected:.4f} everywhere)."
    )
