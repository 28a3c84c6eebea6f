r"""Shrinkage of a one-layer student's gain by batch statistics, exact and as gamma decay."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from gapscope.theory.order_parameters import Numbers, Student, activity, checked_array


def _batch_sizes(batch_size: ArrayLike, centred: bool) -> Numbers:
    return checked_array("batch_size", batch_size, 2 if centred else 1)


def batch_norm_gamma(batch_size: ArrayLike, *, centred: bool = False) -> Numbers:
    r"""Compute the gain at which batch norm converges if its direction is the teacher's.

    $$\gamma^* = E[\sigma_B] = \sqrt{\tfrac 2M}\,\frac{\Gamma(\frac{M + 1}2)}{\Gamma(\frac M2)}\
    \text{(root mean square)}, \qquad
    \sqrt{\tfrac 2M}\,\frac{\Gamma(\frac M2)}{\Gamma(\frac{M - 1}2)}\ \text{(about the batch mean)}$$

    Labels are free of noise. For t ~ N(0, 1) and squared loss, training minimizes $E[(g(t) - g(\gamma t/\sigma_B))^2]$
    with t in its own batch. The root mean square form is exact for linear and ReLU students, the centred one for linear
    students. To first order $1 - 1/4M$ and $1 - 3/4M$. At test time the population deviation 1 divides, so outputs are
    too small by $\gamma^*$; the paper's fixed point $\gamma_0 = 1 - 1/2M$ is $\gamma^* E[\sigma_B]$.

    Args:
        batch_size: M; 2 or larger where centred.
        centred: Whether the batch mean is subtracted. The paper's teacher-student experiments do not (sec. 4).

    >>> bool(np.isclose(batch_norm_gamma(1), np.sqrt(2 / np.pi), rtol=1e-14))
    True
    """
    sizes = _batch_sizes(batch_size, centred)
    freedom = sizes - 1 if centred else sizes
    return np.sqrt(2 / sizes) * np.exp(gammaln((freedom + 1) / 2) - gammaln(freedom / 2))


def batch_norm_zeta(batch_size: ArrayLike, *, student: Student = "linear", centred: bool = False) -> Numbers:
    r"""Compute the gamma decay that replaces batch norm with batches of M in the paper.

    $$\zeta = \frac{1}{2M}\ \text{(linear)}, \quad \frac{1}{4M}\ \text{(ReLU)}; \qquad
    \text{three times that where the batch mean is subtracted too}$$

    Section 4, appendix C.3. Convention: loss = full square + $\zeta\gamma^2$. First order in 1/M, Gaussian
    pre-activations. It matches real batch norm's output scale $\gamma^* E[\sigma_B]$ at the teacher's direction, where
    the exact linear root-mean-square value is $1/E[\sigma_B]^2 - 1$ (0.8 % above 1/2M at M = 32). It does not carry
    over to the direction on few noisy samples: batch norm decays the variance of its outputs on the training data, not
    the norm of the weights.

    Args:
        batch_size: M; 2 or larger where centred.
        centred: Whether the batch mean is subtracted.

    >>> float(batch_norm_zeta(32)) == 1 / 64, float(batch_norm_zeta(16, student="relu")) == 1 / 64
    (True, True)
    """
    sizes = _batch_sizes(batch_size, centred)
    return activity(student) * (3 if centred else 1) / (2 * sizes)
