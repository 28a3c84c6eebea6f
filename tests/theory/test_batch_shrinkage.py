"""Shrinkage by batch statistics against drawn batches and against the first order in 1/M."""

from __future__ import annotations

import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.theory.fixed_points import batch_norm_gamma, batch_norm_zeta, fixed_point
from gapscope.theory.order_parameters import Student

STUDENTS: tuple[Student, Student] = ("linear", "relu")


def test_gamma_gold() -> None:
    np.testing.assert_allclose(batch_norm_gamma([16, 32]), [0.984506, 0.992219], atol=1e-6)
    np.testing.assert_allclose(batch_norm_gamma([16, 32], centred=True), [0.95225383, 0.97634676], atol=1e-8)


@pytest.mark.parametrize("student", ["linear", "relu"])
@pytest.mark.parametrize("batch_size", [16, 32])
def test_gamma_minimizes_the_loss_of_drawn_batches(student: Student, batch_size: int) -> None:
    """Least squares of g(t) on g(t / sigma_B) over batches; its standard error is 4e-4 (M = 16) and 2e-4 (M = 32)."""
    teacher = np.random.default_rng(0).standard_normal((200_000, batch_size))
    normed = teacher / np.sqrt(np.mean(teacher**2, axis=1, keepdims=True))
    if student == "relu":
        teacher, normed = np.maximum(teacher, 0), np.maximum(normed, 0)
    best = np.sum(teacher * normed) / np.sum(normed**2)
    assert best == pytest.approx(float(batch_norm_gamma(batch_size)), abs=1e-3)


def test_centred_gamma_minimizes_the_loss_of_drawn_batches() -> None:
    teacher = np.random.default_rng(1).standard_normal((200_000, 16))
    normed = (teacher - teacher.mean(axis=1, keepdims=True)) / teacher.std(axis=1, keepdims=True)
    best = np.sum(teacher * normed) / np.sum(normed**2)
    assert best == pytest.approx(float(batch_norm_gamma(16, centred=True)), abs=1e-3)


@pytest.mark.parametrize(("centred", "second_order"), [(False, 0.3), (True, 2.2)])
def test_paper_zeta_is_the_shrinkage_to_first_order(centred: bool, second_order: float) -> None:
    """The output scale gamma* E[sigma_B] and the fixed point of gamma decay agree up to O(1 / M^2)."""
    sizes = np.array([16.0, 32.0, 1024.0])
    decayed = fixed_point(student="linear", zeta=batch_norm_zeta(sizes, centred=centred)).gamma
    gaps = np.abs(decayed - batch_norm_gamma(sizes, centred=centred) ** 2)
    assert np.all(gaps * sizes**2 < second_order)
    exact = 1 / batch_norm_gamma(32) ** 2 - 1
    assert exact / batch_norm_zeta(32) == pytest.approx(1.008, abs=5e-4)


def test_relu_gains_half_the_decay_so_that_both_shrink_alike() -> None:
    linear, relu = (fixed_point(student=student, zeta=batch_norm_zeta(16, student=student)) for student in STUDENTS)
    assert linear.gamma == pytest.approx(float(relu.gamma))


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match=r"batch_size must lie in \[2, inf\); got 1\.0"):
        batch_norm_gamma(1, centred=True)
    with pytest.raises(InvalidInput, match=r"batch_size must lie in \[1, inf\); got 0\.0"):
        batch_norm_zeta(0)
