"""Power laws in the spectra of the weight matrices.

Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.measures._numbers import Scalars
from gapscope.measures._types import Inputs
from gapscope.measures._weights import squared_singular_values
from gapscope.measures.registry import ScalarInfo, register_measure

# eigenvalues below this part of the largest are rounding
_ZERO = 1e-12


def power_law_fit(values: Float[Tensor, " r"]) -> tuple[float, float, float]:
    r"""Fit a power law: return alpha, x_min and the distance.

    $p(x) \propto x^{-\alpha}$, $x \ge x_{\min}$. For each start among the values the exponent is the one of largest
    likelihood, $1 + m / \sum \log(x_i / x_{\min})$ over the m values from it on; the start is that of the smallest
    Kolmogorov-Smirnov distance (Clauset, Shalizi and Newman 2009, eq. 3.1 and 3.9).

    Args:
        values: Positive numbers, three or more.
    """
    x = values.double().sort().values
    n, logs = len(x), values.double().sort().values.log()
    best = (math.nan, math.nan, math.inf)
    # sum of logarithms from each value on
    tails = logs.flip(0).cumsum(0).flip(0)
    for start in range(n - 1):
        m = n - start
        excess = float(tails[start]) - m * float(logs[start])
        if excess <= 0 or (start and x[start] == x[start - 1]):
            continue
        alpha = 1 + m / excess
        fitted = 1 - torch.exp((1 - alpha) * (logs[start:] - logs[start]))
        empirical = torch.arange(m, dtype=torch.float64) / m
        distance = float((fitted - empirical).abs().max())
        if distance < best[2]:
            best = (alpha, float(x[start]), distance)
    return best


@register_measure(
    "power_law_alpha",
    title="power-law exponent of the weights' spectra",
    needs=("inputs",),
    numbers={
        "alpha": ScalarInfo("exponent", "lower", "mean over layers"),
        "weighted": ScalarInfo(
            "exponent times decades", "lower", "mean over layers", "weighted by the largest eigenvalue"
        ),
    },
    cost="no pass; eigenvalues of every layer's smaller Gram matrix",
    cost_class="weights",
    default=False,
    invariances=("unit permutation", "head shift"),
    oracle="exact quantiles of a power law",
    cross_checks=("WeightWatcher",),
    reference="Martin, Peng and Mahoney 2021 (arXiv:2002.06716), eq. 5 and 6; Clauset, Shalizi and Newman 2009",
)
def power_law_alpha(network: nn.Module, x: Inputs, *, min_eigenvalues: int = 20) -> Scalars:
    r"""Compute the mean power-law exponents of the layers' spectra, plain and weighted.

    "alpha" is the mean of the exponents $\alpha_l$ fitted to the eigenvalues of $W_l^\top W_l$ by `power_law_fit`,
    "weighted" that of $\alpha_l \log_{10} \lambda_{\max, l}$. A kernel [O, I, h, w] counts as the matrix [O, I h w]
    (WeightWatcher joins the spectra of its h w slices); batch norm is folded in. Layers with fewer than
    `min_eigenvalues` positive eigenvalues are omitted.

    Args:
        min_eigenvalues: Smallest number of eigenvalues of a layer that counts, at least 3; WeightWatcher uses 50.

    Raises:
        InvalidInput: `min_eigenvalues` is out of range.
        NotMeasurable: No layer has so many eigenvalues.
    """
    check_range("min_eigenvalues", min_eigenvalues, 3)
    alphas, weighted = [], []
    for values in squared_singular_values(network, x).values():
        values = values[values > _ZERO * values[-1]]
        if len(values) < min_eigenvalues:
            continue
        alpha = power_law_fit(values)[0]
        if math.isfinite(alpha):
            alphas.append(alpha)
            weighted.append(alpha * math.log10(float(values[-1])))
    if not alphas:
        raise NotMeasurable(
            f"No layer has {min_eigenvalues} or more different eigenvalues, as the power-law fit needs. "
            "Pass a smaller min_eigenvalues."
        )
    return Scalars({"alpha": sum(alphas) / len(alphas), "weighted": sum(weighted) / len(weighted)})
