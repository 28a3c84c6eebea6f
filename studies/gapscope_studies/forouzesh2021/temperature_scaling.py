"""Temperature scaling: one number, fitted on held-out data, that calibrates a classifier."""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from scipy.optimize import brentq
from torch import Tensor


def fit_temperature(logits: Float[Tensor, "n k"], labels: Int[Tensor, " n"]) -> float:
    r"""Temperature T > 0 that minimizes the mean negative log-likelihood of `softmax(logits / T)`.

    Guo et al., On Calibration of Modern Neural Networks, 2017. The log-likelihood is concave in 1/T, so the minimum is
    the only zero of its derivative, which is bracketed and found to rounding, in float64. NaN where the likelihood has
    no maximum: all samples are predicted right, or right classes have no larger logits than the average class.
    """
    logits = logits.detach().double()
    logits = logits - logits.max(1, keepdim=True).values
    right = logits.gather(1, labels[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        """Return the derivative of the mean negative log-likelihood by the inverse temperature. It never decreases."""
        return ((logits * inverse).softmax(1) * logits).sum(1).sub(right).mean().item()

    if not bool((right < 0).any()) or slope(0.0) >= 0:
        return math.nan
    low = high = -1 / logits.mean().item()
    while slope(low) >= 0:
        low /= 2
    while slope(high) <= 0:
        high *= 2
    logarithm = brentq(lambda s: slope(math.exp(s)), math.log(low), math.log(high), xtol=1e-14)
    return math.exp(-float(logarithm))  # type: ignore[arg-type]
