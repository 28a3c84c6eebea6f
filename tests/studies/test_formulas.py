"""What the papers' formulas say of each other, beside simulations and closed forms that share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gapscope.theory import learning_dynamics
from gapscope.theory.sensitivity import fully_connected_layers
from gapscope_studies.forouzesh2021 import equations
from gapscope_studies.kit.claims import HELD, NOT_HELD
from gapscope_studies.kit.study import RunSettings
from gapscope_studies.luo2019 import formulas


def test_the_variance_of_a_batch_std_is_that_of_sampled_batches() -> None:
    batches = 3.0 * np.random.default_rng(0).standard_normal((200_000, 32))
    assert formulas.variance_of_batch_std(32, 3.0) == pytest.approx(batches.std(1).var(), rel=0.02)
    assert formulas.variance_of_batch_mean([0.0, 1.0, 5.0], 3) == pytest.approx(
        np.var([0.0, 1.0, 5.0]) / 3
    )


def test_a_student_beyond_the_largest_stable_rate_leaves_its_teacher() -> None:
    """The differential equations, integrated, against the zero of their exact derivative."""
    highest = formulas.largest_stable_rate(0.0)
    assert highest == pytest.approx(2.0)
    for share, settles in ((0.97, True), (1.03, False)):
        path = learning_dynamics(
            [1.0, 200.0], learning_rate=share * highest, method="sgd", gamma=0.999, overlap=0.999
        )
        assert (path.overlap[-1] > 0.9995) == settles


def test_the_saddle_is_where_both_slopes_vanish() -> None:
    """The free energy as printed in eq. 21, written out again, and its derivatives by hand at fixed length."""
    gamma, product = formulas.numerical_saddle()
    load, beta, noise = formulas.LOAD / 2, 1 / formulas.TEMPERATURE, formulas.NOISE
    spread = formulas.LENGTH**2 - gamma**2
    wide = 1 + beta * spread
    error = 1 - 2 * product + gamma**2 + noise
    by_product = -product / spread + load * beta / wide
    by_gamma = (
        gamma / spread
        + gamma * (gamma**2 - product**2) / spread**2
        - gamma / spread
        + load * beta * gamma / wide
        - load * beta * (gamma / wide + error * beta * gamma / wide**2)
    )
    assert by_product == pytest.approx(0, abs=1e-6) and by_gamma == pytest.approx(0, abs=1e-6)


def test_eq_8_corrected_is_the_variance_of_sampled_networks_and_the_printed_one_is_not() -> None:
    """40,000 standard normal ReLU networks at the input 0."""
    random = torch.Generator().manual_seed(0)
    signal = torch.zeros(40_000, 1, 8)
    for place, (fan_in, fan_out) in enumerate(
        zip((8, *equations.HIDDEN), (*equations.HIDDEN, 3), strict=True)
    ):
        weights = torch.randn(40_000, fan_in, fan_out, generator=random)
        signal = (signal.relu() if place else signal) @ weights + torch.randn(
            40_000, 1, fan_out, generator=random
        )
    layers = fully_connected_layers(8, equations.HIDDEN)
    assert equations.output_second_moment(layers) == pytest.approx(
        float(signal.square().mean()), rel=0.03
    )
    assert (
        equations.printed_bias_contribution(layers, 3)
        < 0.5 * equations.output_second_moment(layers) / 3
    )


def test_s_falls_with_the_square_of_a_under_rescaling() -> None:
    """f(a x + e) / a - f(a x) / a = f(x + e / a) - f(x) for a homogeneous f, which is linear in a small e."""
    assert equations.rescaling_power(inputs=True) == pytest.approx(2, abs=1e-3)
    assert equations.rescaling_power(inputs=False) == pytest.approx(2, abs=1e-9)


def test_every_row_that_computation_decides_is_decided() -> None:
    setting = RunSettings(scale="smoke", work=None, say=lambda line: None)  # type: ignore[arg-type]
    rows = [*formulas.formulas(setting).claims, *equations.exact_checks(setting).claims]
    assert {claim.outcome for claim in rows} == {HELD, NOT_HELD}
    assert all(claim.exact and math.isfinite(claim.value) for claim in rows)
    corrected = [claim for claim in rows if "corrected" in claim.statement]
    assert len(corrected) == 3 and all(claim.outcome == HELD and claim.ours for claim in corrected)
