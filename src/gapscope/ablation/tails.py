"""The part of a network after an ablated layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.ablation.layers import Subgraph, ancestors, descendants, extract_subgraph
from gapscope.ablation.split import Activations, SplitNetwork, TracedSplit
from gapscope.base.samples import slices, slices_of
from gapscope.inspection.chunking import memory_budget, rows_per_pass
from gapscope.inspection.execution import compute_distributed


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


@dataclass(frozen=True)
class LinearCut:
    """Rest of a network as a map of individual units, one linear layer, and anything behind.

    `uses` and `rest_uses` state which context values the pieces take. `rest` is None if the linear layer's output is
    the network's.
    """

    features: Subgraph
    uses: list[bool]
    linear: nn.Linear
    rest: Subgraph | None
    rest_uses: list[bool]

    def features_of(self, values: Tensor, source: Activations, samples: Int[Tensor, " r"]) -> Float[Tensor, "r ..."]:
        """Return the linear layer's inputs if the ablated layer returned `values`."""
        return self.features(values, *source.context_rows(samples, self.uses))[0]

    def outputs_of(self, hidden: Tensor, source: Activations, samples: Int[Tensor, " r"]) -> Float[Tensor, "r k"]:
        """Return the network's outputs if the linear layer returned `hidden`."""
        if self.rest is None:
            return hidden
        return self.rest(hidden, *source.context_rows(samples, self.rest_uses))[0]


def linear_cut(split: TracedSplit) -> LinearCut | None:
    """Return the rest, cut at the first linear layer through which all paths pass, if any.

    `separates_units` checks whether the map before the linear layer treats each unit separately.
    """
    traced, context = split.traced, split.crossing
    behind = descendants([split.site]) & ancestors([traced.output])
    ordered = [node for node in traced.graph.nodes if node in behind]
    for i, node in enumerate(ordered[1:], start=1):
        linear, before = traced.module(node), set(ordered[:i])
        if type(linear) is nn.Linear and not any(before & set(later.all_input_nodes) for later in ordered[i + 1 :]):
            break
    else:
        return None
    features, (_, *uses) = extract_subgraph(traced, [split.site, *context], node.all_input_nodes)
    if node is traced.output:
        return LinearCut(features, uses, linear, None, [False] * len(context))
    rest, (_, *rest_uses) = extract_subgraph(traced, [node, *context], [traced.output])
    return LinearCut(features, uses, linear, rest, rest_uses)


def separates_units(split: SplitNetwork, cut: LinearCut, source: Activations) -> bool:
    """Return whether the linear layer's inputs h treat each unit separately.

    $h(m z)_u = m_u h(z)_u + (1 - m_u) h(0)_u$: every entry must belong to one unit, the units one after another, and
    masking units must leave the entries of the others as they are, bit by bit. Pooling, flattening, activations, batch
    normalization and residual sums do; layer normalization does not. Tested with random masks, on the activations of a
    few samples and on random ones.
    """
    generator = torch.Generator().manual_seed(0)
    samples = torch.arange(len(source), device=source.values.device)
    units = source.values.shape[split.unit_axis]
    noise = torch.randn(source.values.shape, generator=generator, dtype=source.values.dtype).to(source.values.device)
    for values in (source.values, noise):
        features = cut.features_of(values.clone(), source, samples)  # it may change them in place
        if features.ndim != 2 or features.shape[1] % units:
            return False
        resting = cut.features_of(torch.zeros_like(values), source, samples)
        active = (torch.rand(len(values), units, generator=generator) < 0.5).to(values.device)
        masked = cut.features_of(split.masked(values, active), source, samples)
        expected = torch.where(active.repeat_interleave(features.shape[1] // units, 1), features, resting)
        if not torch.equal(masked, expected):
            return False
    return True


class SeparableTail(TailEvaluator):
    r"""Fast evaluator: the linear layer's outputs are sums over the remaining units.

    With $\delta_u = h(z)_u - h(0)_u$ they are $W h(0) + b + \sum_{u\ \text{left}} W_u \delta_u$; in ranked order these
    are sums from the end for one order and sums from the start for the other, accumulated in float64. They round
    otherwise than a masked forward pass, so that nearly equal outputs might change places: wherever the largest two
    differ by less than $\sqrt\epsilon$ of the largest magnitude ($\epsilon$ of the network's floating-point type), the
    row is computed again by the masked forward pass. `separates_units` holds for `cut`.
    """

    def __init__(self, split: SplitNetwork, cut: LinearCut, chunk_size: int | None) -> None:
        super().__init__(split, chunk_size)
        self.cut = cut
        self.weights = cut.linear.weight.T.contiguous()  # (f, h)

    def _evaluated(
        self, source: Activations, ranking: Int[Tensor, " m"]
    ) -> tuple[States, Int[Tensor, " t"], Bool[Tensor, " t"]]:
        ablation = _Ablation(self, source, ranking)
        predicted, tied = ablation.evaluated()
        return ablation.states, predicted, tied.bool()


class _Ablation:
    """Ablation of one class: features of its samples, and their states under one ranking."""

    def __init__(self, tail: SeparableTail, source: Activations, ranking: Int[Tensor, " m"]) -> None:
        self.cut, self.source, self.tail, self.ranking = tail.cut, source, tail, ranking
        units, every = len(ranking), torch.arange(len(source), device=ranking.device)

        def features(samples: Tensor) -> tuple[Tensor, Tensor]:
            values = source.values[samples]
            both = (values, torch.zeros_like(values))
            there, resting = (self.cut.features_of(v, source, samples).unflatten(1, (units, -1)) for v in both)
            return there, resting

        rows = tail.rows_of(lambda: features(every[:1]), every.device)
        parts = [features(every[part]) for part in slices(len(every), rows)]
        self.features: Float[Tensor, "s m p"] = torch.cat([there for there, _ in parts])
        self.resting: Float[Tensor, "s m p"] = torch.cat([resting for _, resting in parts])
        # A unit whose features equal those for zero input changes nothing when it is removed: it has no state.
        self.active = (self.features != self.resting).any(2)[:, ranking]
        self.states = States(self.active)
        self.weights: Float[Tensor, "m p h"] = tail.weights.unflatten(0, (units, -1))
        self.tolerance = torch.finfo(self.features.dtype).eps ** 0.5
        self.rows = tail.rows_of(lambda: self._masked_forward(every[:1]), every.device)

    def evaluated(self) -> Int[Tensor, "2 t"]:
        """Return for every state the predicted class, and whether the largest two outputs tie."""
        active, hidden = int(self.states.counts.max()), self.weights.shape[2]
        # of each active unit: its weights, its term, a row of either running sum, and about as many rows chosen
        bytes_a_sample = 6 * self.features.element_size() * max(1, active) * hidden
        budget = memory_budget(self.features.device, PASS_BYTES)
        group = self.tail.chunk_size or max(1, budget // bytes_a_sample)

        def of(stretch: slice) -> Tensor:
            return torch.cat([self._group(part, active) for part in slices_of(stretch, group)], 1)

        states = (2 * self.states.counts).clamp(min=1)
        return compute_distributed(len(self.source), of, dim=1, length=lambda stretch: int(states[stretch].sum()))

    def _group(self, samples: slice, active: int) -> Int[Tensor, "2 r"]:
        """Return what `evaluated` does, for all states of a few samples."""
        last = samples.stop - 1
        # States of a sample are adjacent, k + 1 and k - 1 of them (one if k = 0); so are those of consecutive samples.
        stop = self.states.offsets[last] + (2 * self.states.counts[last]).clamp(min=1)
        states = torch.arange(int(self.states.offsets[samples.start]), int(stop), device=self.ranking.device)
        of = self.states.sample_of[states]
        local, count = states - self.states.offsets[of], self.states.counts[of]
        # Rows of `_sums`: i for "without the first i active units", active + j for "with the first j".
        row = torch.where(local <= count, local, active + local - count)
        hidden = self._sums(samples, active)[row, of - samples.start]

        def evaluated(part: slice) -> Tensor:
            outputs = self.cut.outputs_of(hidden[part], self.source, of[part])
            return self._settled(outputs, states[part])

        return torch.cat([evaluated(part) for part in slices(len(states), self.rows)], 1)

    def _sums(self, samples: slice, active: int) -> Float[Tensor, "n g h"]:
        """Return the linear layer's outputs without the first i active units, then with only j."""
        # Active units first, each group in the order of the ranking. A sample with fewer active units than `active` is
        # filled up with others, whose terms are zero and leave the running sums as they are.
        first = (~self.active[samples]).long().argsort(dim=1, stable=True)[:, :active]
        terms = self._terms(samples, self.ranking[first])
        nothing = self.cut.linear(self.resting[samples].flatten(1))
        table = nothing.expand(2 * active + 1, *nothing.shape).clone()
        # additions one by one: torch's cumsum along a strided axis takes several times as long on a CPU
        total = nothing.to(torch.float64, copy=True)
        for step in reversed(range(active)):
            table[step] = total.add_(terms[:, step])
        total.copy_(nothing)
        for step in range(active):
            table[active + 1 + step] = total.add_(terms[:, step])
        return table

    def _terms(self, samples: slice, units: Int[Tensor, "g a"]) -> Float[Tensor, "g a h"]:
        """Return what each of these units adds to the linear layer's outputs."""
        # W h(m z) = W h(0) + sum over the units left of W_u (h(z)_u - h(0)_u), with W_u the P columns of W that
        # belong to unit u: [m, g, p] @ [m, p, h].
        delta = self.features[samples] - self.resting[samples]
        if delta.shape[2] == 1:
            return self.weights[units, 0] * delta.squeeze(2).gather(1, units).unsqueeze(2)
        every = torch.bmm(delta.transpose(0, 1), self.weights)  # (m, g, h)
        return every.transpose(0, 1).gather(1, units.unsqueeze(2).expand(-1, -1, every.shape[2]))

    def _settled(self, outputs: Float[Tensor, "r k"], states: Int[Tensor, " r"]) -> Int[Tensor, "2 r"]:
        """Return predicted classes and ties, from the masked forward pass for close outputs."""
        close = doubtful(outputs, self.tolerance).nonzero()[:, 0]
        settled = torch.stack([outputs.argmax(1), torch.zeros_like(states)])
        for part in slices(len(close), self.rows):
            settled[:, close[part]] = self._masked_forward(states[close[part]])
        return settled

    def _masked_forward(self, states: Int[Tensor, " r"]) -> Int[Tensor, "2 r"]:
        samples = self.states.sample_of[states]
        active = self.states.mask(states)[:, self.ranking.argsort()].unsqueeze(2)
        features = torch.where(active, self.features[samples], self.resting[samples]).flatten(1)
        return predict_with_ties(self.cut.outputs_of(self.cut.linear(features), self.source, samples))


def choose_tail(split: SplitNetwork, x: Tensor, chunk_size: int | None) -> TailEvaluator:
    """Return the fastest exact evaluator: sums over ranked units if possible, else masks."""
    cut = linear_cut(split) if isinstance(split, TracedSplit) else None
    if cut is not None and separates_units(split, cut, split.activations(x[:2])):
        return SeparableTail(split, cut, chunk_size)
    return MaskedTail(split, chunk_size)
