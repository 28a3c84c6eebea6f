"""Ablation by running the rest of the network on masked activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gapscope.ablation.split import Activations, SplitNetwork
from gapscope.ablation.states import States
from gapscope.base.samples import slices, slices_of
from gapscope.inspection.chunking import rows_per_pass
from gapscope.inspection.distributed import compute_distributed

# Bytes of masked activations a pass: more of them leave the caches of a CPU and make nothing faster.
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

    Args:
        split: The network cut at the layer.
    """

    def __init__(self, split: SplitNetwork, chunk_size: int | None) -> None:
        self.split, self.chunk_size = split, chunk_size

    def rows_of(self, one_row: Callable[[], Any], device: torch.device) -> int:
        """Return the number of rows per pass if each row costs what `one_row` does."""
        return rows_per_pass(self.chunk_size, one_row, device, bytes_at_most=PASS_BYTES)

    def predictions(self, source: Activations, ranking: Int[Tensor, " m"]) -> Int[Tensor, "2 s n"]:
        """Return the predicted classes of each sample after removing n = 0..M units.

        Args:
            source: What the layer returned for the samples.
            ranking: The units in the order in which they are removed; the second order is its exact reverse.
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
        kept = torch.ones(len(order), dtype=torch.bool, device=order.device)
        kept[order[:n]] = False

        def predicted(samples: Tensor) -> Tensor:
            values = self.split.masked(source.values[samples], kept.expand(len(samples), -1))
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
