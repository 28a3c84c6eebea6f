"""Distinct ablation states of each sample: removing a unit that is zero changes nothing."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class States:
    r"""Distinct ablation states of S samples with M ranked units, and the state per step.

    A sample with k active units has k + 1 states "the first i active units of the ranking are removed" (i = 0..k) and
    k - 1 further ones "only the first j active units are left" (j = 1..k-1); nothing and everything removed are the
    same in both orders. All states of a sample are adjacent, in this order.

    Args:
        active: Whether a unit changes anything for a sample, units in the order of the ranking.

    >>> states = States(torch.tensor([[True, False, True]]))
    >>> states.total, states.steps[0].tolist(), states.steps[1].tolist()
    (4, [[0, 1, 1, 2]], [[0, 3, 3, 2]])
    """

    def __init__(self, active: Bool[Tensor, "s m"]) -> None:
        removed = torch.nn.functional.pad(active.long().cumsum(1), (1, 0))  # active units among the first n
        self.counts: Int[Tensor, " s"] = removed[:, -1]
        sizes = (2 * self.counts).clamp(min=1)
        self.total = int(sizes.sum())
        self.position: Int[Tensor, "s m"] = removed[:, :-1]
        self.offsets: Int[Tensor, " s"] = sizes.cumsum(0) - sizes
        self.sample_of: Int[Tensor, " t"] = torch.repeat_interleave(sizes)
        # After n steps of the reverse order the first M - n ranked units are left, removed[M - n] of them active. All
        # of these left is state 0, none is state k, j of them is state k + j.
        left, count = removed.flip(1), self.counts[:, None]
        reverse = torch.where(left == count, 0, torch.where(left == 0, count, count + left))
        self.steps: Int[Tensor, "2 s n"] = torch.stack([removed, reverse]) + self.offsets[:, None]

    def mask(self, states: Int[Tensor, " r"]) -> Bool[Tensor, "r m"]:
        """Return the remaining ranked units in these states (arbitrary for inactive units)."""
        samples = self.sample_of[states]
        local = (states - self.offsets[samples])[:, None]
        count, position = self.counts[samples][:, None], self.position[samples]
        # `position` counts the active units ranked before a unit: without the first i it is left from position i on, in
        # state k + j it is left below position j.
        return torch.where(local <= count, position >= local, position < local - count)
