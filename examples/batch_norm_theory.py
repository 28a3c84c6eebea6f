"""Generalization of one-layer students over P/N: theory curves and simulated students, as a figure of two panels.

Left: linear students (the paper's Fig. 1a). Right: ReLU students of a linear teacher (Fig. 1b). Batch norm is plotted
after a short and a long training: at N = 4096 60 epochs leave it near the curve of gamma decay, longer ones do not.
Runs in seconds by default; --full takes the paper's N, an hour or more and 1 GB.

    python examples/batch_norm_theory.py --output batch_norm_theory.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from gapscope.theory import (
    batch_norm_zeta,
    draw_teacher_task,
    least_squares_students,
    student_generalization,
    train_students,
)
from gapscope.theory.statistical_mechanics import Student

NOISE = 0.25
SHORT = 60
GRID = np.linspace(0.02, 3, 597)


def draw_theory(axes: Axes, student: Student, batch_size: int) -> None:
    """Draw the closed forms: SGD, gamma decay as strong as the batches, and the best decay or the noise-free bound."""
    zeta = float(batch_norm_zeta(batch_size, student=student))
    plain = student_generalization(GRID, student=student, noise_variance=NOISE)
    axes.plot(GRID, np.minimum(plain, 10), color="tab:blue", label="SGD, theory")
    if student == "linear":
        for decay, colour in ((zeta, "tab:green"), (NOISE, "tab:red")):
            errors = student_generalization(GRID, noise_variance=NOISE, zeta=decay)
            axes.plot(GRID, errors, color=colour, label=f"gamma decay {decay:.3g}, theory")
    else:
        bound = student_generalization(GRID, student=student, noise_variance=0.0)
        axes.plot(GRID, bound, color="tab:red", label="SGD without noise, theory")


def simulate(
    alpha: float, student: Student, batch_size: int, n_inputs: int, students: int, epochs: int
) -> dict[str, float]:
    """Train students on one load and return the mean generalization error of each kind."""
    generator = np.random.default_rng(round(1000 * alpha))
    task = draw_teacher_task(
        alpha, n_inputs=n_inputs, noise_variance=NOISE, students=students, generator=generator
    )
    zeta = float(batch_norm_zeta(batch_size, student=student))
    if student == "linear":
        plain = least_squares_students(task)
        decayed = least_squares_students(task, zeta=zeta)
    else:
        plain = train_students(task, method="sgd", student=student, epochs=2 * epochs, anneal=False)
        decayed = train_students(
            task, method="weight_norm", student=student, zeta=zeta, epochs=2 * epochs
        )
    short, long = train_students(
        task,
        method="batch_norm",
        student=student,
        batch_size=batch_size,
        epochs=epochs,
        anneal=False,
        checkpoints=[SHORT, epochs],
        generator=generator,
    ).generalization_error
    return {
        "SGD, simulated": plain.generalization_error.mean(),
        f"gamma decay {zeta:.3g}, simulated": decayed.generalization_error.mean(),
        f"batch norm, {SHORT} epochs": short.mean(),
        f"batch norm, {epochs} epochs": long.mean(),
    }


def draw_panel(
    axes: Axes, student: Student, batch_size: int, n_inputs: int, students: int, epochs: int
) -> None:
    """Draw theory and simulations of one kind of student."""
    draw_theory(axes, student, batch_size)
    loads = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
    points = [simulate(load, student, batch_size, n_inputs, students, epochs) for load in loads]
    styles = (("o", "tab:blue"), ("^", "tab:green"), ("s", "grey"), ("s", "black"))
    for name, (marker, colour) in zip(points[0], styles, strict=True):
        values = [point[name] for point in points]
        axes.plot(loads, values, marker, color=colour, markerfacecolor="none", label=name)
        print(f"{student:6s} {name:32s}", *(f"{value:6.3f}" for value in values))
    axes.set(xlabel="P / N", title=f"{student}, batches of {batch_size}, N = {n_inputs}")
    axes.set(ylim=(0, 2) if student == "linear" else (0.5, 1.6), ylabel="generalization error")
    axes.legend(fontsize=7)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("batch_norm_theory.svg"),
        help="PNG or SVG file to write",
    )
    parser.add_argument("--full", action="store_true", help="the paper's N = 4096")
    options = parser.parse_args()
    size, students, epochs = (4096, 1, 1000) if options.full else (128, 6, 400)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    draw_panel(left, "linear", 32, size, students, epochs)
    draw_panel(right, "relu", 16, size, students, epochs)
    figure.savefig(options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
