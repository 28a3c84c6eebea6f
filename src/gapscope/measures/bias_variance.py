"""Bias-variance decomposition of predictions over training runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from gapscope.base.arrays import tensor_of
from gapscope.base.errors import InvalidInput, check_same_length
from gapscope.base.targets import check_labels
from gapscope.base.task import check_regression_shape


@dataclass(frozen=True)
class BiasVariance:
    """Bias-variance decomposition: `mse = bias + variance` up to rounding.

    All three are means over samples and sums over outputs. The variance is the population variance over the runs.

    Attributes:
        bias: Squared distance of the mean prediction from the target (eq. 5).
        variance: Variance of the prediction over runs (eq. 6).
        mse: Squared distance of a single run's prediction from the target (eq. 4).
        runs: Number of runs.
    """

    bias: float
    variance: float
    mse: float
    runs: int


def bias_variance(
    predictions: Float[Tensor, "runs n k"] | Float[np.ndarray, "runs n k"],
    targets: Shaped[Tensor, "n ..."] | Shaped[np.ndarray, "n ..."],
) -> BiasVariance:
    r"""Decompose the squared error of several training runs into bias and variance (exact).

    .. math:: \underbrace{E_r \lVert F_r(x) - y \rVert^2}_{\mathrm{mse}} =
              \underbrace{\lVert E_r F_r(x) - y \rVert^2}_{\mathrm{bias}} +
              \underbrace{\textstyle\sum_k \mathrm{Var}_r F_r^k(x)}_{\mathrm{variance}}

    Each term is averaged over samples and summed over outputs (Forouzesh, Salehi and Thiran 2021, eq. 4-6). The runs
    differ in initialization and order of the samples, on one fixed training set. Exact for these R runs; a finite R
    moves variance / (R - 1) into the bias. For a classifier pass probabilities.

    Args:
        predictions: Predictions of every run.
        targets: Class labels [n] (compared as one-hot rows), or targets [n, K].

    Raises:
        InvalidInput: The shapes do not fit.

    >>> parts = bias_variance(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[3.0]]))
    >>> parts.bias, parts.variance, parts.mse
    (4.0, 1.0, 5.0)
    """
    runs = tensor_of(predictions).detach().double().cpu()
    if runs.ndim != 3 or 0 in runs.shape:
        raise InvalidInput(
            f"predictions must have shape [runs, n, K]; got {list(runs.shape)}. "
            "Stack the predictions of each run with torch.stack."
        )
    _, n, k = runs.shape
    y = tensor_of(targets).detach().cpu()
    check_same_length("predictions of a run", n, "targets", len(y))
    if not y.is_floating_point() and y.ndim == 1:
        check_labels(y, k)
        y = torch.nn.functional.one_hot(y.long(), k)
    else:
        check_regression_shape(y, (n, k))
    y = y.double()
    mean = runs.mean(0)
    bias = (mean - y).square().sum(1).mean().item()
    variance = (runs - mean).square().sum(2).mean().item()
    mse = (runs - y).square().sum(2).mean().item()
    return BiasVariance(bias, variance, mse, len(runs))
