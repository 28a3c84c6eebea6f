"""Contributions of tensors that are broadcast over samples, and merging of several uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from gapscope.gradients.contributions import Contribution, DenseJacobian, Key


def merge_contributions(
    contributions: Sequence[Contribution],
) -> dict[Key, Contribution]:
    """Add all uses of the same parameters, so that squares may be summed.

    Returns one contribution per key. No parameter is in two of them.
    """
    by_key: dict[Key, list[Contribution]] = {}
    for contribution in contributions:
        by_key.setdefault(contribution.key, []).append(contribution)
    # |J_1 + J_2|^2 is not |J_1|^2 + |J_2|^2, so that all uses of a parameter must be one contribution. Uses of one form
    # remain factors, at more positions. Otherwise, or if a weight is used both with and without its bias and so is in
    # two keys, the dense Jacobians are added.
    n_keys = Counter(parameter for key in by_key for parameter in key)
    result = {}
    dense_uses = []
    for key, uses in by_key.items():
        first = uses[0]
        if any(n_keys[parameter] > 1 for parameter in key):
            dense_uses += uses
        elif len(uses) == 1:
            result[key] = first
        elif not isinstance(first, DenseJacobian) and all(use.has_form_of(first) for use in uses):
            result[key] = type(first).merge_uses(uses)  # type: ignore[attr-defined]
        else:
            dense_uses += uses
    return result | add_densely(dense_uses)


def add_densely(contributions: Sequence[Contribution]) -> dict[Key, Contribution]:
    """Return the sum of the dense Jacobians, one contribution per parameter."""
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    for contribution in contributions:
        for parameter, values in zip(contribution.parameters, contribution.dense(), strict=True):
            # [C, N, P], also for a parameter without dimensions
            values = values.reshape(*values.shape[:2], -1)
            total = sums.get(id(parameter))
            sums[id(parameter)] = (parameter, values if total is None else total[1] + values)
    return {
        (key,): DenseJacobian((parameter,), values) for key, (parameter, values) in sums.items()
    }


# Derivative of an operation by its first or second operand, from the derivative g by its result: the entries of z =
# x + alpha y, x - alpha y and x y have dz/dx = 1, 1, y and dz/dy = alpha, -alpha, x. All other entries are 0.
_Derivative = Callable[[Any, Tensor], Tensor]
_JOINS: dict[tuple[str, int], _Derivative] = {
    ("AddBackward0", 0): lambda node, g: g,
    ("AddBackward0", 1): lambda node, g: g * node._saved_alpha,
    ("SubBackward0", 0): lambda node, g: g,
    ("SubBackward0", 1): lambda node, g: -g * node._saved_alpha,
    ("MulBackward0", 0): lambda node, g: g * node._saved_other,
    ("MulBackward0", 1): lambda node, g: g * node._saved_self,
    ("ExpandBackward0", 0): lambda node, g: g,
}
# Operations of one tensor: the search continues through them.
_UNARY = frozenset(
    f"{name}Backward0"
    for name in (
        "Alias",
        "Clone",
        "Exp",
        "Select",
        "Slice",
        "Squeeze",
        "T",
        "ToCopy",
        "Transpose",
        "Unsqueeze",
        "View",
    )
)


@dataclass(frozen=True)
class Join:
    """Operation that joins a tensor without a batch dimension with the samples."""

    edge: GradientEdge  # at which the derivative by the result is read
    # by the operand, before summation, from that by the result
    derivative: Callable[[Tensor], Tensor]
    operand: GradientEdge  # the tensor itself, or a function of it only
    shape: torch.Size  # of the operand
    dim: int  # of the result that holds the samples

    def rows(self, gradient: Float[Tensor, "c ..."]) -> Float[Tensor, "c n ..."]:
        """Return the derivatives by the operand, one per sample."""
        # An operand b with an entry for all samples n has df/db = sum_n df/dz_n dz_n/db: the terms of this sum are the
        # rows. Dimensions of size 1 in the operand, other than that of the samples, are summed.
        values = self.derivative(gradient).movedim(self.dim + 1, 1)  # [C, N, ...]
        padded = list((1,) * (gradient.ndim - 1 - len(self.shape)) + tuple(self.shape))
        del padded[self.dim]
        summed = [
            dim + 2 for dim, size in enumerate(padded) if size == 1 and values.shape[dim + 2] != 1
        ]
        values = values.sum(summed, keepdim=True) if summed else values
        return values.reshape(*values.shape[:2], *self.shape)


def _shape(edge: GradientEdge) -> torch.Size:
    # PyTorch states it as a plain list for some nodes
    return torch.Size(edge.node._input_metadata[edge.output_nr].shape)  # type: ignore[attr-defined]


def _samples(result: torch.Size, operand: torch.Size, n: int) -> int | None:
    """Return which of the first two dimensions holds the samples, absent in the operand."""
    padded = (1,) * (len(result) - len(operand)) + tuple(operand)
    return next(
        (dim for dim in range(min(2, len(result))) if result[dim] == n and padded[dim] == 1), None
    )


class Graph:
    """Autograd's graph of some outputs, from tensors to their users."""

    def __init__(self, root: Node) -> None:
        self.root = root
        # users of each node, with output and argument indices
        self.consumers: dict[Node, list[tuple[Node, int, int]]] = {root: []}
        self._leaves: dict[int, Node] = {}  # nodes of tensors, by the tensor's identity
        waiting: list[Any] = [root]
        while waiting:
            node = waiting.pop()
            following = node.next_functions
            if not following and hasattr(node, "variable"):
                self._leaves[id(node.variable)] = node
            for position, (before, output) in enumerate(following):
                if before is None:
                    continue
                if before not in self.consumers:
                    self.consumers[before] = []
                    waiting.append(before)
                self.consumers[before].append((node, output, position))

    def uses(self, parameter: Tensor) -> int:
        """Return how many operations use a parameter, those on its casts in place of the casts."""
        node = self._leaves.get(id(parameter))
        return 0 if node is None else self._uses(node)

    def _uses(self, node: Node) -> int:
        total = 0
        for user, _, _ in self.consumers[node]:
            if user.name() == "ToCopyBackward0":
                total += self._uses(user)
            # functions of gapscope are added to a layer's own operation
            elif not is_function_of_gapscope(user):
                total += 1
        return total


def is_function_of_gapscope(node: Any) -> bool:
    """Return whether a node is that of a Function which this package has written."""
    # torch keeps the class that the user wrote as `_forward_cls`
    return isinstance(node, BackwardCFunction) and node._forward_cls.__module__.startswith(  # type: ignore[attr-defined]
        "gapscope."
    )


def _joins_of(source: GradientEdge, graph: Graph, n: int) -> list[Join] | None:
    """Return all operations that join a tensor with the samples (None if one is unknown)."""
    joins: list[Join] = []
    for node, output, position in graph.consumers.get(source.node, ()):
        if output != source.output_nr:
            continue
        result = GradientEdge(node, 0)
        operand = _shape(source)
        dim = _samples(_shape(result), operand, n)
        derivative = _JOINS.get((node.name(), position))
        if derivative is not None and dim is not None:
            joins.append(
                Join(result, lambda g, f=derivative, at=node: f(at, g), source, operand, dim)
            )
        elif node.name() in _UNARY and len(node.next_functions) == 1:
            further = _joins_of(result, graph, n)
            if further is None:
                return None
            joins += further
        else:
            return None
    return joins


@dataclass(frozen=True)
class Broadcast:
    """Tensor without a batch dimension that the network broadcasts over samples."""

    source: GradientEdge
    # from the derivatives [C, N, ...] by the tensor
    make_contributions: Callable[[Tensor], list[Contribution]]
    parameters: frozenset[int]  # by identity
    joins: tuple[Join, ...] = ()

    def contributions(
        self, gradients: Sequence[Tensor | None], *, create_graph: bool
    ) -> list[Contribution]:
        """Return the tensor's contribution from the derivatives at each join (or None)."""
        pairs = zip(self.joins, gradients, strict=True)
        rows = [self._back(join, join.rows(g), create_graph) for join, g in pairs if g is not None]
        if rows:
            return self.make_contributions(torch.stack(rows).sum(0) if len(rows) > 1 else rows[0])
        return []

    def _back(self, join: Join, rows: Tensor, create_graph: bool) -> Tensor:
        """Propagate derivatives from a function of the tensor back to the tensor."""
        if join.operand == self.source:
            return rows
        # the operand b(p) is the same for all samples: df_n/dp = (df_n/db) (db/dp), one row of [C N, ...] at a time
        flat = torch.autograd.grad(
            [join.operand],
            [self.source],
            [rows.flatten(0, 1)],
            is_grads_batched=True,
            retain_graph=True,
            create_graph=create_graph,
        )[0]
        return flat.unflatten(0, rows.shape[:2])


def find_joins(graph: Graph, broadcasts: Sequence[Broadcast], n: int) -> list[Broadcast]:
    """Find the operations that join tensors with samples."""
    joined = [(broadcast, _joins_of(broadcast.source, graph, n)) for broadcast in broadcasts]
    unknown = frozenset().union(
        *(broadcast.parameters for broadcast, joins in joined if joins is None)
    )
    return [
        replace(broadcast, joins=tuple(joins))
        for broadcast, joins in joined
        if joins and not broadcast.parameters & unknown
    ]
