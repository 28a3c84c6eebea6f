"""Steps of the students against differences of the loss and against the paper's update rule."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.theory.order_parameters import Student
from gapscope.theory.student_training import TrainingMethod, activate, pre_activations, root_mean_square, steps

SIZE, BATCH = 5, 7


def _loss(
    method: TrainingMethod, parameters: np.ndarray, inputs: np.ndarray, targets: np.ndarray, student: Student
) -> float:
    weights, gain = parameters[None, :-1], parameters[-1]
    hidden = pre_activations(inputs, weights)
    if method == "weight_norm":
        hidden = gain * np.sqrt(SIZE) * hidden / np.linalg.norm(weights)
    elif method == "batch_norm":
        hidden = gain * hidden / root_mean_square(hidden)
    return float(np.sum((targets - activate(hidden, student)) ** 2) / 2)


@pytest.mark.parametrize("method", ["sgd", "weight_norm", "batch_norm"])
@pytest.mark.parametrize("student", ["linear", "relu"])
def test_steps_are_the_downhill_gradient(method: TrainingMethod, student: Student) -> None:
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((1, BATCH, SIZE)), generator.standard_normal((1, BATCH))
    parameters = np.append(generator.standard_normal(SIZE), 0.8)
    differences = [
        _loss(method, parameters + step, inputs, targets, student)
        - _loss(method, parameters - step, inputs, targets, student)
        for step in 1e-6 * np.eye(SIZE + 1)
    ]
    turn, growth = steps(method, parameters[None, :-1], parameters[-1:], inputs, targets, student)
    found = np.append(turn[0], SIZE * growth[0])
    np.testing.assert_allclose(found, -np.array(differences) / 2e-6, atol=1e-7)


def test_weight_norm_step_equals_the_printed_rule() -> None:
    """Eq. 5: eta delta (gamma sqrt(N) / |w| x - (effective w^T x) / |w|^2 w)."""
    generator = np.random.default_rng(1)
    weights, x, target, gain = generator.standard_normal(SIZE), generator.standard_normal(SIZE), 0.7, 0.6
    length = np.linalg.norm(weights)
    effective = np.sqrt(SIZE) * gain * weights / length
    delta = target - effective @ x
    printed = delta * (gain * np.sqrt(SIZE) / length * x - effective @ x / length**2 * weights)
    turn, growth = steps("weight_norm", weights[None], np.array([gain]), x[None, None], np.array([[target]]), "linear")
    np.testing.assert_allclose(turn[0], printed)
    assert growth[0] == pytest.approx(delta * np.sqrt(SIZE) * weights @ x / length / SIZE)


@pytest.mark.parametrize("method", ["weight_norm", "batch_norm"])
def test_normalized_steps_leave_the_length_alone(method: TrainingMethod) -> None:
    generator = np.random.default_rng(2)
    weights = generator.standard_normal((3, SIZE))
    inputs, targets = generator.standard_normal((3, BATCH, SIZE)), generator.standard_normal((3, BATCH))
    turn, _ = steps(method, weights, np.ones(3), inputs, targets, "relu")
    np.testing.assert_allclose(np.sum(turn * weights, axis=1), 0, atol=1e-12)


def test_students_do_not_see_each_other() -> None:
    generator = np.random.default_rng(3)
    weights = generator.standard_normal((2, SIZE))
    inputs, targets = generator.standard_normal((2, BATCH, SIZE)), generator.standard_normal((2, BATCH))
    both, _ = steps("batch_norm", weights, np.ones(2), inputs, targets, "linear")
    alone, _ = steps("batch_norm", weights[1:], np.ones(1), inputs[1:], targets[1:], "linear")
    np.testing.assert_allclose(both[1:], alone, rtol=1e-13)
