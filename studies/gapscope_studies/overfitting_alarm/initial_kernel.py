"""Disagreement of labels with the leave-one-out predictions of the initial kernel: a gate of alarms."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def disagreement_fraction(predictions: Float[Tensor, "n k"], labels: Int[Tensor, " n"], margin: float) -> float:
    """Return the fraction of samples whose leave-one-out prediction prefers another class by a margin.

    Args:
        predictions: Leave-one-out predictions of one-hot labels.
        labels: Labels as given.
        margin: Difference of the two predictions, of which those of all classes add up to 1.

    Returns:
        The fraction.
    """
    own = predictions.gather(1, labels[:, None]).squeeze(1)
    other = predictions.scatter(1, labels[:, None], -torch.inf).amax(1)
    return float((other - own > margin).double().mean())
