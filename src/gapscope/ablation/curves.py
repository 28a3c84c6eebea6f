"""Turning points and areas of accuracy curves under cumulative ablation."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHANCE_SLACK = 1e-12


def below_chance(curves: Float[Tensor, "c n"], n_classes: int) -> Bool[Tensor, "c n"]:
    """Return whether each accuracy is at or below 1 / n_classes."""
    return curves <= 1 / n_classes + CHANCE_SLACK


def turning_points(curves: Float[Tensor, "c n"], n_classes: int) -> Int[Tensor, " c"]:
    r"""Return the smallest number of removed units at which accuracy is at chance.

    $n_0 = \min\{n : E(n) \le 1/C\}$ (Zhao et al. 2022, eq. 2), or the first minimum of a curve that stays above.

    Args:
        curves: Accuracies for n = 0..M.
        n_classes: C.

    >>> turning_points(torch.tensor([[1.0, 0.5, 0.1, 0.0], [1.0, 0.9, 0.8, 0.8]]), 10).tolist()
    [2, 2]
    """
    at_chance = below_chance(curves, n_classes)
    return torch.where(at_chance.any(1), at_chance.long().argmax(1), curves.argmin(1))


def reversed_turning_points(curves: Float[Tensor, "c n"], *, ties: str, include_all_ablated: bool) -> Int[Tensor, " c"]:
    r"""Return the number of removed units with the largest accuracy in reverse order, eq. 3.

    $\arg\max_n E_r(n)$.

    Args:
        curves: Accuracies for n = 0..M.
        ties: Which of several largest accuracies counts, "last" or "first".
        include_all_ablated: Whether n = M counts.

    >>> reversed_turning_points(torch.tensor([[0.9, 1.0, 1.0, 1.0]]), ties="last", include_all_ablated=False).tolist()
    [2]
    """
    # With every unit removed the network predicts one constant class, for which E(M) is 1: that is no turning point.
    candidates = curves if include_all_ablated else curves[:, :-1]
    if ties == "first":
        return candidates.argmax(1)
    return candidates.shape[1] - 1 - candidates.flip(1).argmax(1)


def areas(curves: Float[Tensor, "c n"], reversed_curves: Float[Tensor, "c n"], area: str) -> Float[Tensor, " c"]:
    r"""Return the area between the curves.

    "absolute": $\frac1M \sum_n |E_r - E|$ (eq. 5); "signed": $\frac1{M+1} \sum_n (E_r - E)$.

    Args:
        curves: E for n = 0..M.
        reversed_curves: E_r for n = 0..M.
        area: "absolute" or "signed".

    >>> areas(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]]), "absolute").tolist()
    [0.5]
    """
    difference = reversed_curves - curves
    return difference.mean(1) if area == "signed" else difference.abs().sum(1) / (curves.shape[1] - 1)
