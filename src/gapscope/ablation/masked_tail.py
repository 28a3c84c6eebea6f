"""Ablation on masked activations, once per distinct state of each sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.ablation.split import Activations, SplitNetwork
from gapscope.base.samples import slices, slices_of
from gapscope.inspection.chunking import rows_per_pass
from gapscope.inspection.distributed import compute_distributed


class States:
    r"""Distinct ablation states of S samples with M ranked units, and the state per step.

    A sample with k active units has k + 1 states "the first i active units of the ranking are removed" (i = 0..k) and
    k - 1 further ones "only the first j active units are left" (j = 1..k-1); nothing and everything removed are the
    same in both orders. All states of a sample are adjacent, in this order. `active` states whether a ranked unit
    changes anything for a sample.

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


# Bytes of masked activations per pass: more do not fit the caches of a CPU and make nothing faster.
PASS_BYTES = 2**28
TIE_ULPS = 64


def doubtful(outputs: Float[Tensor, "r k"], tolerance: float) -> Bool[Tensor, " r"]:
    """Return whether the two largest outputs are within `tolerance` of the largest magnitude."""
    if outputs.shape[1] == 1:
        return torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    largest, second = outputs.topk(2, 1).values.unbind(1)
    return largest - second < tolerance * outputs.abs().amax(1)


def predict_with_ties(outputs: Float[Tensor, "r k"]) -> Int[Tensor, "2 r"]:
    """Return predicted classes, and 1 for rows whose two largest outputs tie up to rounding."""
    ties = doubtful(outputs, TIE_ULPS * torch.finfo(outputs.dtype).eps)
    return torch.stack([outputs.argmax(1), ties.long()])


class TailEvaluator(ABC):
    """Evaluator of all ablations of one layer.

    The last bits of a network's outputs depend on the number of rows per batch. Where the largest two outputs agree up
    to 64 units of rounding, the prediction is therefore computed in a batch of all samples with the same number of
    removed units, as a plain loop would have it.
    """

    def __init__(self, split: SplitNetwork, chunk_size: int | None) -> None:
        self.split, self.chunk_size = split, chunk_size

    def rows_of(self, one_row: Callable[[], Any], device: torch.device) -> int:
        """Return the number of rows per pass if each row costs what `one_row` does."""
        return rows_per_pass(self.chunk_size, one_row, device, bytes_at_most=PASS_BYTES)

    def predictions(self, source: Activations, ranking: Int[Tensor, " m"]) -> Int[Tensor, "2 s n"]:
        """Return the predicted classes of each sample after removing n = 0..M units.

        Units are removed in the order of `ranking`, and in the reverse order.
        """
        states, predicted, tied = self._evaluated(source, ranking)
        # A tied state is computed again in the batch of the step at which it is entered, and of no later one at which
        # it still holds: the last bits of a prediction depend on that batch.
        entered = tied[states.steps]
        entered[..., 1:] &= states.steps[..., 1:] != states.steps[..., :-1]
        for order, n in entered.any(1).nonzero().tolist():
            rows = entered[order, :, n]
            step = self._loop_step(source, ranking.flip(0) if order else ranking, n)
            predicted[states.steps[order, rows, n]] = step[rows]
        return predicted[states.steps]

    @abstractmethod
    def _evaluated(
        self, source: Activations, ranking: Int[Tensor, " m"]
    ) -> tuple[States, Int[Tensor, " t"], Bool[Tensor, " t"]]:
        """Return the distinct states, the predicted class in each, and whether outputs tie."""

    def _loop_step(self, source: Activations, order: Int[Tensor, " m"], n: int) -> Int[Tensor, " s"]:
        """Return the predictions after removing the first n units, as one batch if it fits."""
        remaining = torch.ones(len(order), dtype=torch.bool, device=order.device)
        remaining[order[:n]] = False

        def predicted(samples: Tensor) -> Tensor:
            values = self.split.masked(source.values[samples], remaining.expand(len(samples), -1))
            return self.split.outputs(values, source, samples).argmax(1)

        every = torch.arange(len(source), device=order.device)
        rows = self.rows_of(lambda: predicted(every[:1]), every.device)
        return torch.cat([predicted(every[part]) for part in slices(len(source), rows)])


class MaskedTail(TailEvaluator):
    """General evaluator: every distinct state is one row of a large batch."""

    def _evaluated(
        self, source: Activations, ranking: Int[Tensor, " m"]
    ) -> tuple[States, Int[Tensor, " t"], Bool[Tensor, " t"]]:
        active = (self.split.flatten_positions(source.values) != 0).any(2)
        states, rank = States(active[:, ranking]), ranking.argsort()

        def evaluated(chunk: Tensor) -> Tensor:
            samples = states.sample_of[chunk]
            values = self.split.masked(source.values[samples], states.mask(chunk)[:, rank])
            return predict_with_ties(self.split.outputs(values, source, samples))

        every = torch.arange(states.total, device=ranking.device)
        rows = self.rows_of(lambda: evaluated(every[:1]), every.device)

        def of(stretch: slice) -> Tensor:
            return torch.cat([evaluated(every[part]) for part in slices_of(stretch, rows)], 1)

        predicted, tied = compute_distributed(states.total, of, dim=1)
        return states, predicted, tied.bool()
