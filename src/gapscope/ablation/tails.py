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
from gapscope.ablation.split import Activations, Indices, Outputs, SplitNetwork, TracedSplit
from gapscope.base.samples import slices, slices_of
from gapscope.inspection.chunking import memory_budget, rows_per_pass
from gapscope.inspection.execution import compute_distributed

Ranking = Int[Tensor, " m"]


class States:
    r"""Distinct ablation states of S samples with M ranked units, and the state per step.

    A sample with k active units has k + 1 states "the first i active units of the ranking are removed" (i = 0..k) and
    k - 1 further ones "only the first j active units remain" (j = 1..k-1); no and all units removed are the same state
    in both orders. All states of a sample are adjacent, in this order. `active[s, m]` is True if the ranked unit m
    changes any output of sample s.

    >>> states = States(torch.tensor([[True, False, True]]))
    >>> states.total, states.steps[0].tolist(), states.steps[1].tolist()
    (4, [[0, 1, 1, 2]], [[0, 3, 3, 2]])
    """

    def __init__(self, active: Bool[Tensor, "s m"]) -> None:
        # removed[s, n]: active units among the first n ranked ones, for n = 0..M
        removed = torch.nn.functional.pad(active.long().cumsum(1), (1, 0))
        self.counts: Int[Tensor, " s"] = removed[:, -1]
        self.sizes: Int[Tensor, " s"] = (2 * self.counts).clamp(min=1)
        self.total = int(self.sizes.sum())
        self.position: Int[Tensor, "s m"] = removed[:, :-1]
        self.offsets: Int[Tensor, " s"] = self.sizes.cumsum(0) - self.sizes
        self.sample_of: Int[Tensor, " t"] = torch.repeat_interleave(self.sizes)
        # After n steps of the reverse order the first M - n ranked units remain, j = removed[M - n] of them active:
        # this is state 0 for j = k, state k for j = 0, and else state k + j.
        remaining = removed.flip(1)
        count = self.counts[:, None]
        reverse = torch.where(remaining == 0, count, count + remaining)
        reverse = torch.where(remaining == count, 0, reverse)
        self.steps: Int[Tensor, "2 s n"] = torch.stack([removed, reverse]) + self.offsets[:, None]

    def mask(self, states: Indices) -> Bool[Tensor, "r m"]:
        """Return the remaining ranked units in these states (arbitrary for inactive units)."""
        samples = self.sample_of[states]
        local = (states - self.offsets[samples])[:, None]
        count = self.counts[samples][:, None]
        position = self.position[samples]
        # `position` is the number of active units ranked before a unit. Without the first i active units those from
        # position i on remain; in state k + j those before position j.
        return torch.where(local <= count, position >= local, position < local - count)


# distinct states, the predicted class in each, and whether its outputs tie
Evaluation = tuple[States, Int[Tensor, " t"], Bool[Tensor, " t"]]
# Bytes of masked activations per pass: more exceed the caches of a CPU and are no faster.
PASS_BYTES = 2**28


def are_close(outputs: Outputs, tolerance: float) -> Bool[Tensor, " r"]:
    """Return whether the two largest outputs are within `tolerance` of the largest magnitude."""
    if outputs.shape[1] == 1:
        return torch.zeros(len(outputs), dtype=torch.bool, device=outputs.device)
    largest, second = outputs.topk(2, 1).values.unbind(1)
    return largest - second < tolerance * outputs.abs().amax(1)


def predict_with_ties(outputs: Outputs) -> Int[Tensor, "2 r"]:
    """Return predicted classes, and 1 for rows whose two largest outputs tie up to rounding."""
    # sums of thousands of terms in another order differ by less than 64 units in the last place
    ties = are_close(outputs, 64 * torch.finfo(outputs.dtype).eps)
    return torch.stack([outputs.argmax(1), ties.long()])


class TailEvaluator(ABC):
    """Evaluator of all ablations of one layer.

    The last bits of a network's outputs depend on the number of rows per batch. If the largest two outputs are equal up
    to 64 units of rounding, the prediction is therefore computed in a batch of all samples with the same number of
    removed units, as in a loop over these numbers.
    """

    def __init__(self, split: SplitNetwork, chunk_size: int | None) -> None:
        self.split = split
        self.chunk_size = chunk_size

    def rows_of(self, one_row: Callable[[], Any], device: torch.device) -> int:
        """Return the number of rows per pass if one row needs the memory of `one_row`."""
        return rows_per_pass(self.chunk_size, one_row, device, bytes_at_most=PASS_BYTES)

    def predictions(self, source: Activations, ranking: Ranking) -> Int[Tensor, "2 s n"]:
        """Return the predicted classes of each sample after removing n = 0..M units.

        Units are removed in the order of `ranking`, and in the reverse order.
        """
        states, predicted, tied = self._evaluate(source, ranking)
        # Consecutive steps may have the same state (an inactive unit is removed). A tied state is computed again in the
        # batch of the first of these steps only, on which the last bits of its prediction depend.
        entered = tied[states.steps]
        entered[..., 1:] &= states.steps[..., 1:] != states.steps[..., :-1]
        for order, n in entered.any(1).nonzero().tolist():
            rows = entered[order, :, n]
            step = self._loop_step(source, ranking.flip(0) if order else ranking, n)
            predicted[states.steps[order, rows, n]] = step[rows]
        return predicted[states.steps]

    @abstractmethod
    def _evaluate(self, source: Activations, ranking: Ranking) -> Evaluation:
        """Return the distinct states, the predicted class in each, and whether its outputs tie."""

    def _loop_step(self, source: Activations, order: Ranking, n: int) -> Int[Tensor, " s"]:
        """Return the predictions after removing the first n units, as one batch if it fits."""
        remaining = torch.ones(len(order), dtype=torch.bool, device=order.device)
        remaining[order[:n]] = False

        def predict(samples: Tensor) -> Tensor:
            values = self.split.masked(source.values[samples], remaining.expand(len(samples), -1))
            return self.split.outputs(values, source, samples).argmax(1)

        samples = torch.arange(len(source), device=order.device)
        rows = self.rows_of(lambda: predict(samples[:1]), samples.device)
        return torch.cat([predict(samples[part]) for part in slices(len(source), rows)])


class MaskedTail(TailEvaluator):
    """General evaluator: every distinct state is one row of a large batch."""

    def _evaluate(self, source: Activations, ranking: Ranking) -> Evaluation:
        active = (self.split.flatten_positions(source.values) != 0).any(2)
        states = States(active[:, ranking])
        rank = ranking.argsort()

        def predict(chunk: Tensor) -> Tensor:
            samples = states.sample_of[chunk]
            # the mask is in the order of the ranking: [:, rank] reorders it to that of the units
            values = self.split.masked(source.values[samples], states.mask(chunk)[:, rank])
            return predict_with_ties(self.split.outputs(values, source, samples))

        every = torch.arange(states.total, device=ranking.device)
        rows = self.rows_of(lambda: predict(every[:1]), every.device)

        def predict_range(stretch: slice) -> Tensor:
            return torch.cat([predict(every[part]) for part in slices_of(stretch, rows)], 1)

        predicted, tied = compute_distributed(states.total, predict_range, dim=1)
        return states, predicted, tied.bool()


@dataclass(frozen=True)
class LinearCut:
    """Rest of a network: a map of single units, one linear layer, and what follows it.

    `uses` and `rest_uses` are True for the context values that the pieces take. `rest` is None if the linear layer's
    output is the network's.
    """

    features: Subgraph
    uses: list[bool]
    linear: nn.Linear
    rest: Subgraph | None
    rest_uses: list[bool]

    def features_of(
        self, values: Tensor, source: Activations, samples: Indices
    ) -> Float[Tensor, "r ..."]:
        """Return the linear layer's inputs if the ablated layer returned `values`."""
        return self.features(values, *source.context_rows(samples, self.uses))[0]

    def outputs_of(self, hidden: Tensor, source: Activations, samples: Indices) -> Outputs:
        """Return the network's outputs if the linear layer returned `hidden`."""
        if self.rest is None:
            return hidden
        return self.rest(hidden, *source.context_rows(samples, self.rest_uses))[0]


def linear_cut(split: TracedSplit) -> LinearCut | None:
    """Return the rest, cut at the first linear layer through which all paths pass, if any.

    The map before the linear layer may still mix units, see `separates_units`.
    """
    traced = split.traced
    context = split.crossing
    behind = descendants([split.site]) & ancestors([traced.output])
    ordered = [node for node in traced.graph.nodes if node in behind]
    # All paths pass through node i if no later node uses an earlier one.
    for i, node in enumerate(ordered[1:], start=1):
        linear = traced.module(node)
        before = set(ordered[:i])
        is_bypassed = any(before & set(later.all_input_nodes) for later in ordered[i + 1 :])
        if type(linear) is nn.Linear and not is_bypassed:
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

    $h(m z)_u = m_u h(z)_u + (1 - m_u) h(0)_u$ for masks m: the entries of h are ordered by unit, and masking a unit
    changes no bit of the entries of other units. This holds for pooling, flattening, activations, batch normalization
    and residual sums, not for layer normalization. Tested with random masks, on the activations of a few samples and on
    random ones.
    """
    generator = torch.Generator().manual_seed(0)
    samples = torch.arange(len(source), device=source.values.device)
    units = source.values.shape[split.unit_axis]
    noise = torch.randn(source.values.shape, generator=generator, dtype=source.values.dtype)
    for values in (source.values, noise.to(source.values.device)):
        features = cut.features_of(values.clone(), source, samples)  # it may change them in place
        if features.ndim != 2 or features.shape[1] % units:
            return False
        baseline = cut.features_of(torch.zeros_like(values), source, samples)  # h(0)
        active = (torch.rand(len(values), units, generator=generator) < 0.5).to(values.device)
        masked = cut.features_of(split.masked(values, active), source, samples)
        is_active = active.repeat_interleave(features.shape[1] // units, 1)
        expected = torch.where(is_active, features, baseline)
        if not torch.equal(masked, expected):
            return False
    return True


class SeparableTail(TailEvaluator):
    r"""Fast evaluator: the linear layer's outputs are running sums over the remaining units.

    With $\delta_u = h(z)_u - h(0)_u$ they are $W h(0) + b + \sum_u m_u W_u \delta_u$. In ranked order these are sums
    from the end for one order of removal and from the start for the other, accumulated in float64. They round
    differently from a masked forward pass, so that nearly equal outputs might be interchanged: if the largest two
    differ by less than $\sqrt\epsilon$ of the largest magnitude ($\epsilon$ of the network's floating-point type), the
    row is computed again by the masked forward pass. `cut` must satisfy `separates_units`.
    """

    def __init__(self, split: SplitNetwork, cut: LinearCut, chunk_size: int | None) -> None:
        super().__init__(split, chunk_size)
        self.cut = cut
        self.weights = cut.linear.weight.T.contiguous()  # [features, H]

    def _evaluate(self, source: Activations, ranking: Ranking) -> Evaluation:
        ablation = _Ablation(self, source, ranking)
        predicted, tied = ablation.evaluate()
        return ablation.states, predicted, tied.bool()


class _Ablation:
    """Ablation of one class: features of its samples, and their states under one ranking."""

    def __init__(self, tail: SeparableTail, source: Activations, ranking: Ranking) -> None:
        self.cut = tail.cut
        self.source = source
        self.tail = tail
        self.ranking = ranking
        units = len(ranking)
        every = torch.arange(len(source), device=ranking.device)

        def features(samples: Tensor) -> tuple[Tensor, Tensor]:
            values = source.values[samples]
            of_values = self.cut.features_of(values, source, samples)
            of_zero = self.cut.features_of(torch.zeros_like(values), source, samples)
            return of_values.unflatten(1, (units, -1)), of_zero.unflatten(1, (units, -1))

        rows = tail.rows_of(lambda: features(every[:1]), every.device)
        parts = [features(every[part]) for part in slices(len(every), rows)]
        # h(z) and h(0), P entries per unit
        self.features: Float[Tensor, "s m p"] = torch.cat([of_values for of_values, _ in parts])
        self.baseline: Float[Tensor, "s m p"] = torch.cat([of_zero for _, of_zero in parts])
        # delta_u = h(z)_u - h(0)_u = 0 for a unit whose removal changes nothing: no state depends on it
        self.active = (self.features != self.baseline).any(2)[:, ranking]
        self.states = States(self.active)
        self.weights: Float[Tensor, "m p h"] = tail.weights.unflatten(0, (units, -1))
        self.tolerance = torch.finfo(self.features.dtype).eps ** 0.5
        self.rows = tail.rows_of(lambda: self._masked_forward(every[:1]), every.device)

    def evaluate(self) -> Int[Tensor, "2 t"]:
        """Return for every state the predicted class, and whether the largest two outputs tie."""
        active = int(self.states.counts.max())
        hidden = self.weights.shape[2]
        # per active unit: its weights, its term, a row of either running sum, and about as many indexed rows
        sample_bytes = 6 * self.features.element_size() * max(1, active) * hidden
        budget = memory_budget(self.features.device, PASS_BYTES)
        group = self.tail.chunk_size or max(1, budget // sample_bytes)

        def evaluate_range(stretch: slice) -> Tensor:
            parts = slices_of(stretch, group)
            return torch.cat([self._evaluate_group(part, active) for part in parts], 1)

        return compute_distributed(
            len(self.source),
            evaluate_range,
            dim=1,
            length=lambda stretch: int(self.states.sizes[stretch].sum()),
        )

    def _evaluate_group(self, samples: slice, active: int) -> Int[Tensor, "2 r"]:
        """Evaluate all states of a few samples."""
        last = samples.stop - 1
        # A sample has max(1, 2 k) adjacent states, so that those of consecutive samples are one range.
        stop = self.states.offsets[last] + self.states.sizes[last]
        states = torch.arange(
            int(self.states.offsets[samples.start]), int(stop), device=self.ranking.device
        )
        of = self.states.sample_of[states]
        local = states - self.states.offsets[of]
        count = self.states.counts[of]
        # Rows of `_sums`: i for "without the first i active units", active + j for "only the first j" (state k + j).
        row = torch.where(local <= count, local, active + local - count)
        hidden = self._sums(samples, active)[row, of - samples.start]

        parts = slices(len(states), self.rows)
        return torch.cat([self._predict(hidden[part], of[part], states[part]) for part in parts], 1)

    def _sums(self, samples: slice, active: int) -> Float[Tensor, "n g h"]:
        """Return the linear layer's outputs without the first i active units, then with only j."""
        # A stable sort puts the active units first, in the order of the ranking. A sample with fewer than `active` of
        # them also gets inactive units, whose terms are 0 and do not change the running sums.
        first = (~self.active[samples]).long().argsort(dim=1, stable=True)[:, :active]
        terms = self._terms(samples, self.ranking[first])
        baseline = self.cut.linear(self.baseline[samples].flatten(1))  # W h(0) + b
        table = baseline.expand(2 * active + 1, *baseline.shape).clone()
        # Row i is the sum of terms i, i + 1, ... and row active + j that of terms 0..j-1; row `active` has none. Added
        # one by one, because torch's cumsum along a strided axis takes several times as long on a CPU.
        total = baseline.to(torch.float64, copy=True)
        for step in reversed(range(active)):
            table[step] = total.add_(terms[:, step])
        total.copy_(baseline)
        for step in range(active):
            table[active + 1 + step] = total.add_(terms[:, step])
        return table

    def _terms(self, samples: slice, units: Int[Tensor, "g a"]) -> Float[Tensor, "g a h"]:
        """Return the terms W_u delta_u of these units in the linear layer's outputs."""
        # W h(m z) = W h(0) + sum_u m_u W_u (h(z)_u - h(0)_u), where W_u has the P columns of W for unit u: one product
        # per unit, [M, G, P] @ [M, P, H]. With P = 1 it is a multiplication by a number.
        delta = self.features[samples] - self.baseline[samples]
        if delta.shape[2] == 1:
            return self.weights[units, 0] * delta.squeeze(2).gather(1, units).unsqueeze(2)
        every = torch.bmm(delta.transpose(0, 1), self.weights)  # [M, G, H]
        return every.transpose(0, 1).gather(1, units.unsqueeze(2).expand(-1, -1, every.shape[2]))

    def _predict(self, hidden: Tensor, samples: Indices, states: Indices) -> Int[Tensor, "2 r"]:
        """Return predicted classes and ties, from the masked forward pass for close outputs."""
        outputs = self.cut.outputs_of(hidden, self.source, samples)
        result = torch.stack([outputs.argmax(1), torch.zeros_like(states)])
        close = are_close(outputs, self.tolerance).nonzero()[:, 0]
        for part in slices(len(close), self.rows):
            result[:, close[part]] = self._masked_forward(states[close[part]])
        return result

    def _masked_forward(self, states: Indices) -> Int[Tensor, "2 r"]:
        samples = self.states.sample_of[states]
        active = self.states.mask(states)[:, self.ranking.argsort()].unsqueeze(2)
        features = torch.where(active, self.features[samples], self.baseline[samples]).flatten(1)
        hidden = self.cut.linear(features)
        return predict_with_ties(self.cut.outputs_of(hidden, self.source, samples))


def choose_tail(split: SplitNetwork, x: Tensor, chunk_size: int | None) -> TailEvaluator:
    """Return the fastest exact evaluator: running sums over units if possible, else masks."""
    cut = None
    if isinstance(split, TracedSplit):
        cut = linear_cut(split)
    if cut is not None and separates_units(split, cut, split.activations(x[:2])):
        return SeparableTail(split, cut, chunk_size)
    return MaskedTail(split, chunk_size)
