r"""Robust leave-one-out residuals of regression targets, and a bound of their noise rate.

A gross error would pull the predictions of its neighbours towards it. So the kernel machine is fitted to targets whose
leave-one-out residuals are clipped, $\tilde y = f + \mathrm{clip}(y - f, \pm 2 s)$ with s their robust spread, a few
times over (pseudo-values of Huber's estimate; Huber and Ronchetti 2009, section 7.8). Its residuals $y - f$ are those
of the targets as given.

Canaries get the target of another sample. A target is wrong if it differs from the right one as much as that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gapscope.labels.noise_rate import CanaryMargins, corrupt_in_rounds
from gapscope.statistics.baselines import RIDGES
from gapscope.statistics.kernel_ridge import LooResult, Spectrum, loo_predictions, select_ridge

ROUNDS = 4
CLIP, FIRST_CLIP = 2.0, 3.0


def robust_spread(values: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    """Return the scaled median absolute deviation per column (the standard deviation if 0)."""
    deviation = 1.4826 * (values - values.median(0).values).abs().median(0).values
    return torch.where(deviation > 0, deviation, values.std(0, correction=0)).clamp_min(1e-12)


@dataclass(frozen=True)
class RobustFit:
    """Kernel machine robust to gross errors: clipped targets [n, k], ridge and predictions.

    The ridge is in units of the mean eigenvalue.
    """

    targets: Float[Tensor, "n k"]
    ridge: float
    loo: LooResult


def _clip_residuals(targets: Tensor, predictions: Tensor) -> Tensor:
    residuals = targets - predictions
    limit = CLIP * robust_spread(residuals)
    return predictions + residuals.clamp(-limit, limit)


def fit_robustly(spectrum: Spectrum, targets: Float[Tensor, "n k"]) -> RobustFit:
    """Fit the targets, clip their leave-one-out residuals, and repeat."""
    median, spread = targets.median(0).values, robust_spread(targets)
    clipped = median + (targets - median).clamp(-FIRST_CLIP * spread, FIRST_CLIP * spread)
    for _ in range(ROUNDS):
        _, loo = select_ridge(spectrum, clipped, RIDGES)
        clipped = _clip_residuals(targets, loo.predictions)
    ridge, loo = select_ridge(spectrum, clipped, RIDGES)
    return RobustFit(clipped, ridge, loo)


def residual_margins(residuals: Float[Tensor, "n k"], spread: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    r"""Return $-\lVert r_i / s \rVert$: small for targets far from their predictions."""
    return -(residuals / spread).norm(dim=1)


def regression_canaries(
    spectrum: Spectrum, fit: RobustFit, targets: Float[Tensor, "n k"], generator: torch.Generator
) -> CanaryMargins:
    """Return margins under 20 rounds in which some samples get the targets of others."""
    n, spread = len(targets), robust_spread(targets - fit.loo.predictions)

    def margins(chosen: Tensor) -> Tensor:
        corrupted, fitted = targets.clone(), fit.targets.clone()
        corrupted[chosen] = targets[torch.randint(n, (len(chosen),), generator=generator).to(targets.device)]
        predictions = fit.loo.predictions[chosen]
        fitted[chosen] = predictions + (corrupted[chosen] - predictions).clamp(-CLIP * spread, CLIP * spread)
        loo = loo_predictions(spectrum, fitted, fit.ridge * (spectrum.mean or 1.0))
        return residual_margins(corrupted - loo.predictions, spread)

    return corrupt_in_rounds(n, targets.device, margins, generator)
