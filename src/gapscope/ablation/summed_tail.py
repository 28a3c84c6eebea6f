"""Ablation by sums over ranked units, for networks that continue with a linear layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.ablation.graph import Subgraph, ancestors, descendants, extract_subgraph
from gapscope.ablation.masked_tail import PASS_BYTES, MaskedTail, States, TailEvaluator, doubtful, predict_with_ties
from gapscope.ablation.split import Activations, SplitNetwork, TracedSplit
from gapscope.base.samples import slices, slices_of
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.distributed import compute_distributed


@dataclass(frozen=True)
class LinearCut:
    """Rest of a network as a map of individual units, one linear layer, and anything behind.

    Attributes:
        features: Piece from the ablated layer to the linear layer's input.
        uses: Which context values it takes.
        linear: The linear layer.
        rest: Piece from its output to the network's outputs; None where its output is the network's.
        rest_uses: Which context values that takes.
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
