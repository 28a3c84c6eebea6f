"""Exact checks of formulas: priors, eq. 4, Props. 3 to 5, eqs. 21 to 25."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq, fsolve

from gapscope.theory import (
    dynamics_jacobian,
    equilibrium,
    fixed_point,
    free_energy,
    max_learning_rate,
    stability_eigenvalues,
)
from gapscope_studies.kit.claims import Claim, identity
from gapscope_studies.kit.study import Outcome, RunSettings

NOISE = 0.25
ZETAS = (0.0, 0.05, 0.25, 1.0)
SAME = 1e-6
LENGTH, TEMPERATURE, LOAD = 1.5, 0.1, 1.2  # of the saddle with a > 1


def variance_of_batch_mean(values: Sequence[float], batch_size: int) -> float:
    """Return the exact variance of the mean of a batch drawn from `values`."""
    return float(np.var([np.mean(batch) for batch in itertools.product(values, repeat=batch_size)]))


def variance_of_batch_std(batch_size: int, std: float) -> float:
    r"""Return the exact variance of the standard deviation of a Gaussian batch, divisor M.

    $\sqrt M s / \sigma$ has the chi distribution of M - 1 degrees of freedom.
    """
    variance: Any = stats.chi.var(batch_size - 1)
    return float(variance) * std**2 / batch_size


def _prior_claims(batch_size: int = 32) -> list[Claim]:
    """Return claims on the priors of mu_B and sigma_B."""
    population = [0.0, 1.0, 4.0, -3.0, 10.0]
    ratio = variance_of_batch_mean(population, 4) / (float(np.var(population)) / 4)
    quantity = "relative distance to that over all batches of 4"
    claims = [
        identity(
            "Sec. 2", "mu_B has the variance sigma_P^2 / M", quantity, abs(ratio - 1), below=1e-9
        )
    ]
    printed = 2 / (4 * batch_size)  # (rho + 2) / 4M with the excess kurtosis of a Gaussian, 0
    for std, value, says in (
        (1.0, printed, "sigma_B has the variance (rho + 2) / 4M where sigma_P is 1"),
        (3.0, printed, "sigma_B has the variance (rho + 2) / 4M where sigma_P is 3"),
        (
            3.0,
            9 * printed,
            "sigma_B has that variance times sigma_P^2 where sigma_P is 3 (corrected)",
        ),
    ):
        distance = abs(value / variance_of_batch_std(batch_size, std) - 1)
        quantity = "relative distance to the exact variance of a Gaussian batch of 32"
        claims.append(
            identity("Sec. 2", says, quantity, distance, below=0.05, ours=value != printed)
        )
    return claims


def population_and_weight_norm(scale: float = 0.3) -> float:
    """Return the largest difference of eq. (4) to population norm, for white inputs."""
    random = np.random.default_rng(0)
    x = random.standard_normal((50, 6))
    x -= x.mean(0)
    x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T * math.sqrt(
        scale
    ) + random.standard_normal(6)
    w, gamma, beta = random.standard_normal(6), 0.7, -0.2
    h = x @ w
    normalized = gamma * (h - h.mean()) / h.std() + beta
    length = float(np.linalg.norm(w))
    gain, shift = gamma / math.sqrt(scale), beta - gamma * h.mean() / (math.sqrt(scale) * length)
    return float(np.abs(normalized - (gain * h / length + shift)).max())


def largest_stable_rate(zeta: float) -> float:
    """Return the effective rate at which the overlap's flow has derivative 0, to order eta^2."""
    gamma = float(fixed_point(zeta=zeta).gamma)

    def derivative(rate: float) -> float:
        return float(dynamics_jacobian(gamma, 1.0, 1.0, learning_rate=rate, zeta=zeta)[1, 1])

    rate: Any = brentq(derivative, 0.1, 1e3, xtol=1e-12)
    return rate * gamma


def _stability_claims() -> list[Claim]:
    """Return claims on Prop. 3 and on the largest learning rates of weight and batch norm."""
    points = {zeta: float(fixed_point(zeta=zeta).gamma) for zeta in ZETAS}
    gains = [dynamics_jacobian(gamma, 1.0, 1.0, learning_rate=rate, zeta=zeta)[0, 0] / rate
             for zeta, gamma in points.items() for rate in (0.1, 1.0, 5.0)]  # fmt: skip
    excess = {
        zeta: largest_stable_rate(zeta) / float(max_learning_rate(zeta=zeta)) - 1
        for zeta in (0.0, 0.25)
    }
    agreement = []  # products of -lambda_R and eta_max - eta_eff: positive if their signs always agree
    for zeta, gamma in points.items():
        highest = float(max_learning_rate(zeta=zeta))
        for share in (0.1, 0.5, 0.9, 1.1, 2.0, 5.0):
            # at length 1 eta_eff is rate * gamma
            rates = stability_eigenvalues(share * highest / gamma, zeta=zeta)
            agreement.append(float(rates.overlap) * (share - 1) * highest)
    return [
        identity("Prop. 3", "the gain returns to its fixed point: lambda_Q < 0",
                 "largest lambda_Q over the learning rate", max(gains), below=0.0),
        identity("Prop. 3", "the printed lambda_R is negative if and only if eta_max exceeds eta_eff",
                 "smallest product of -lambda_R and eta_max - eta_eff", min(agreement), above=0.0),
        identity("Table 1", "weight norm's largest learning rate is that printed", "relative excess of the exact one",
                 abs(excess[0.0]), below=SAME),
        identity("Table 1", "batch norm's largest learning rate is that printed, at zeta = 0.25",
                 "relative excess of the exact one, terms of order eta^2 included", abs(excess[0.25]), below=SAME),
        identity("Prop. 4", "batch norm's exact largest rate exceeds weight norm's by 2 zeta or more",
                 "excess less 2 zeta, terms of order eta^2 included",
                 largest_stable_rate(0.25) - largest_stable_rate(0.0) - 0.5, above=0.0, ours=True),
    ]  # fmt: skip


def numerical_saddle() -> tuple[float, float]:
    """Return gain and gamma R that make the free energy stationary at fixed length."""

    def slopes(point: np.ndarray) -> list[float]:
        def energy(gamma: float, product: float) -> float:
            return free_energy(gamma, product / gamma, LENGTH, alpha=LOAD, temperature=TEMPERATURE,
                               noise_variance=NOISE)  # fmt: skip

        gamma, product, step = float(point[0]), float(point[1]), 1e-5
        return [
            (energy(gamma + step, product) - energy(gamma - step, product)) / (2 * step),
            (energy(gamma, product + step) - energy(gamma, product - step)) / (2 * step),
        ]

    result: Any = fsolve(slopes, [0.9, 0.5], xtol=1e-12)
    return float(result[0]), float(result[1])


def _saddle_claims() -> list[Claim]:
    """Return claims on eqs. (22) to (24) at a > 1, and on eq. (25) at a = 1."""
    gamma, product = numerical_saddle()
    a = 1 + TEMPERATURE / (LENGTH**2 - gamma**2)
    printed_gamma = LOAD / (2 * a) + LOAD * NOISE / (2 * a - LOAD)
    printed_error = 1 - LOAD / (4 * a) + LOAD * NOISE / (2 * a * (2 * a - LOAD))
    error = 1 + gamma**2 / 2 - product
    point = equilibrium(LOAD, temperature=TEMPERATURE, length=LENGTH, noise_variance=NOISE)
    errors = [
        abs(equilibrium(load, noise_variance=noise).generalization_error
            - (1 - load / 4 + load * noise / (2 * (2 - load))))
        for load in (0.3, 1.2, 1.9) for noise in (0.0, 0.25, 1.0)
    ]  # fmt: skip
    at = f"relative distance to the saddle of eq. 21, a = {a:.3f}"
    return [
        identity("Eq. 23", "gamma R is alpha / 2a", at, abs(LOAD / (2 * a) / product - 1), below=SAME),
        identity("Eq. 22", "gamma^2 is as printed", at, abs(printed_gamma / gamma**2 - 1), below=SAME),
        identity("Eq. 22", "gamma^2 is as corrected", at, abs(point.gamma**2 / gamma**2 - 1), below=SAME, ours=True),
        identity("Eq. 24", "the error is as printed", at, abs(printed_error / error - 1), below=SAME),
        identity("Eq. 25", "the error at zero temperature follows from the saddle",
                 "largest difference over loads below 2", max(errors), below=1e-9),
    ]  # fmt: skip


def formulas(setting: RunSettings) -> Outcome:
    """Check what formulas alone decide."""
    claims = [
        *_prior_claims(),
        identity("Eq. 4", "population normalization of white inputs is weight normalization", "largest difference",
                 population_and_weight_norm(), below=1e-9),
        *_stability_claims(),
        *_saddle_claims(),
    ]  # fmt: skip
    return Outcome(
        numbers={"largest_stable_rates": {f"{zeta:g}": largest_stable_rate(zeta) for zeta in ZETAS}}, claims=claims,
        verdict="Eqs. 22 and 24 hold at zero temperature only, where a is 1; the prior of sigma_B lacks sigma_P^2.",
        seeds=[0],
    )  # fmt: skip
