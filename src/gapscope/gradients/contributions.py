"""Contributions of parameter uses to the Jacobian [C, N, P], mostly in factored form.

Notation of all classes: n and m index samples, c and d outputs, t and s positions (tokens, windows), o and k the rows
and columns of a weight. A class stores the smallest tensors from which its part of the Jacobian J follows, and computes

    dense            J, one tensor per parameter       weighted_sum      sum_n w_n sum_c J_cn
    square_norms     sum_c |J_cn|^2                    kernel            <J_cn, J'_dm>
    kernel_gradient  d/dJ sum W_ncmd <J_cn, J_dm>, chained back to the stored tensors
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from gapscope.base.samples import slices
from gapscope.gradients.contractions import (
    TEMPORARY,
    KernelSide,
    gram_matrix,
    kernel_block,
    kernel_block_gradient,
    traced_block,
)
from gapscope.gradients.layouts import Layout, PrecomputedColumns
from gapscope.gradients.products import multiply
from gapscope.gradients.square_norms import jacobian_square_norms

OptionalTensors = tuple[Tensor | None, ...]
Tensors = tuple[Tensor, ...]

# parameters, by identity
Key = tuple[int, ...]


class Contribution(ABC):
    """Derivatives of C outputs of N samples, in a form cheaper than the Jacobian."""

    parameters: Tensors  # in the order of their Jacobians in `dense`
    transposed: bool = False  # whether factors are those of the transposed weight
    # names of the stored tensors, and the dimension of each that holds the samples
    sample_dims: ClassVar[Mapping[str, int]]

    @property
    def key(self) -> Key:
        """Identity of the parameters. Contributions with the same key are added first."""
        return tuple(id(parameter) for parameter in self.parameters)

    def has_form_of(self, other: Contribution) -> bool:
        """Return whether `kernel` accepts the other."""
        return (
            type(self) is type(other)
            and self.key == other.key
            and self.transposed == other.transposed
        )

    @abstractmethod
    def dense(self) -> list[Float[Tensor, "c n *p"]]:
        """Return the Jacobian, one tensor per parameter."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> list[Float[Tensor, "*p"]]:
        """Return the sum over samples and outputs, weighted by sample, one tensor per parameter."""

    @abstractmethod
    def square_norms(self) -> Float[Tensor, " n"]:
        """Return each sample's squared Jacobian norm, summed over outputs (differentiable once)."""

    @abstractmethod
    def kernel(
        self, other: Contribution, floats: int = TEMPORARY, *, traced: bool = False
    ) -> Float[Tensor, "n ..."]:
        """Return the inner products [n, c, m, d] with the rows of `other`, without a graph.

        With `traced` they are summed over equal outputs c = d, [n, m]. `other` has the same key, and is the same object
        if the block is symmetric. A temporary has at most `floats` numbers.
        """

    @abstractmethod
    def sources(self) -> Tensors:
        """Return the stored tensors by which the kernel is differentiable."""

    @abstractmethod
    def kernel_gradient(self, weights: Float[Tensor, "n c n c"]) -> OptionalTensors:
        """Return derivatives of sum(weights * kernel(self)) by `sources` (or None)."""

    @abstractmethod
    def regroup(self, n: int) -> Contribution:
        """Return the contribution for n samples, each of which owns as many consecutive rows."""

    def compact(self) -> Sequence[Contribution]:
        """Return the smallest form without a graph, to be stored for several kernel blocks."""
        return [self._detached()]

    @property
    def form(self) -> Hashable:
        """Equal for contributions that differ in their samples alone (see `concatenate`)."""
        shapes = [(getattr(self, name).shape, dim) for name, dim in self.sample_dims.items()]
        per_sample = tuple((*shape[:dim], *shape[dim + 1 :]) for shape, dim in shapes)
        return type(self), self.key, self.transposed, per_sample

    def _detached(self) -> Contribution:
        return replace(self, **{name: getattr(self, name).detach() for name in self.sample_dims})  # type: ignore[type-var]


def concatenate(parts: Sequence[Contribution]) -> Contribution:
    """Return the contribution of the samples of several parts, all of the same `form`."""
    if len(parts) == 1:
        return parts[0]
    dims = parts[0].sample_dims.items()
    tensors = {name: torch.cat([getattr(part, name) for part in parts], dim) for name, dim in dims}
    return replace(parts[0], **tensors)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class OuterProductFactors(Contribution):
    """Derivatives by a weight (and bias) as sums of outer products over positions."""

    parameters: Tensors  # the weight, followed by the bias if the layout appends ones
    inputs: Tensor
    gradients: Float[Tensor, "c n o t"]  # of the outputs by the layer's output at each position
    layout: Layout
    transposed: bool = False  # whether the weight has the shape [K, ...O] instead of [O, ...K]
    sample_dims: ClassVar[Mapping[str, int]] = {"inputs": 0, "gradients": 1}

    def side(self, samples: slice = slice(None)) -> KernelSide:
        """Return the unfolded columns and the derivatives of samples, without a graph."""
        return KernelSide(
            self.layout.unfold(self.inputs[samples].detach()), self.gradients[:, samples].detach()
        )

    def _split(self, jacobian: Tensor) -> list[Tensor]:
        # The output W a + b = (W, b) (a, 1) makes b the last column of the weight, and of J.
        if self.layout.ones:
            parts = [jacobian[..., :-1], jacobian[..., -1]]
        else:
            parts = [jacobian]
        if self.transposed:
            parts[0] = parts[0].mT
        leading = jacobian.shape[:-2]
        return [
            part.reshape(*leading, *p.shape) for part, p in zip(parts, self.parameters, strict=True)
        ]

    @override
    def dense(self) -> list[Tensor]:
        columns = self.layout.columns(self.inputs)
        c, n, o, t = self.gradients.shape
        # J_cn = sum_t g_cnt a_nt^T. All outputs c share the a_nt, so that they become rows of one product per sample,
        # and no columns are copied: [N, C O, T] @ [N, T, K] -> [N, C O, K]
        jacobian = torch.bmm(self.gradients.transpose(0, 1).reshape(n, c * o, t), columns.mT)
        return self._split(jacobian.view(n, c, o, -1).transpose(0, 1))

    @override
    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        side = self.side()
        # sum_n w_n sum_ct g_cnt a_nt^T = sum_nt (w_n sum_c g_cnt) a_nt^T: all outputs c share the a_nt, so that the sum
        # over c comes first; then samples and positions are the inner dimension of one product, [O, N T] @ [N T, K].
        weighted = (side.gradients * weights[:, None, None]).sum(0).transpose(0, 1).flatten(1)
        return self._split(multiply(weighted, side.columns.transpose(0, 1).flatten(1).T))

    @override
    def square_norms(self) -> Tensor:
        return jacobian_square_norms(self.inputs, self.gradients, self.layout)

    @override
    def kernel(
        self, other: Contribution, floats: int = TEMPORARY, *, traced: bool = False
    ) -> Tensor:
        assert isinstance(other, OuterProductFactors)
        block = traced_block if traced else kernel_block
        if self is other:
            side = self.side()
            return block(side, side, floats)
        others = other._parts(floats)
        of_columns = 1 if traced else 2
        rows: list[Tensor] = []
        for part in self._parts(floats):
            side = self.side(part)
            blocks = [block(side, other.side(each), floats) for each in others]
            rows.append(torch.cat(blocks, of_columns))
        return torch.cat(rows)

    def _parts(self, floats: int) -> list[slice]:
        """Return slices of samples whose unfolded columns have at most `floats` numbers."""
        of_one = self.layout.unfold(self.inputs[:1].detach()).numel()
        return list(slices(len(self.inputs), max(1, floats // max(1, of_one))))

    @override
    def sources(self) -> Tensors:
        return self.inputs, self.gradients

    @override
    def kernel_gradient(self, weights: Tensor) -> OptionalTensors:
        by_columns, by_gradients = kernel_block_gradient(
            self.side(), weights, by_columns=self.inputs.requires_grad
        )
        if by_columns is None:
            return None, by_gradients
        return self.layout.fold(by_columns, self.inputs), by_gradients

    @override
    def regroup(self, n: int) -> OuterProductFactors:
        columns = self.layout.columns(self.inputs)
        (c, _, o, t) = self.gradients.shape
        # A sample that owns R rows has the Jacobian sum_rt g_crt a_rt^T: its rows are further positions, for a and g
        # alike, [N R, K, T] -> [N, K, R T].
        columns = columns.view(n, -1, *columns.shape[1:]).transpose(1, 2).flatten(2)
        gradients = self.gradients.reshape(c, n, -1, o, t).transpose(2, 3).flatten(3)
        layout = PrecomputedColumns(self.layout.ones)
        return OuterProductFactors(self.parameters, columns, gradients, layout, self.transposed)

    @override
    def compact(self) -> Sequence[Contribution]:
        n_outputs, n_samples = self.gradients.shape[:2]
        jacobian = n_outputs * n_samples * sum(parameter.numel() for parameter in self.parameters)
        if jacobian >= self.inputs.numel() + self.gradients.numel():
            return [self._detached()]
        # few weights used at many positions, such as those of a network's first convolutions
        parts = zip(self.parameters, self._detached().dense(), strict=True)
        return [DenseJacobian((parameter,), part.flatten(2)) for parameter, part in parts]

    @classmethod
    def merge_uses(cls, uses: Sequence[OuterProductFactors]) -> OuterProductFactors:
        """Merge several uses of one weight into one contribution with all their positions."""
        # J = sum_t g_ct a_t^T over the positions of all uses, so that several uses are one with T = T_1 + T_2 + ...
        columns = torch.cat([use.layout.columns(use.inputs) for use in uses], dim=2)
        gradients = torch.cat([use.gradients for use in uses], dim=3)
        return cls(
            uses[0].parameters,
            columns,
            gradients,
            PrecomputedColumns(uses[0].layout.ones),
            uses[0].transposed,
        )


@dataclass(frozen=True, eq=False)
class EmbeddingContribution(Contribution):
    """Derivatives by a table of which position t of sample n reads row `rows[n, t]`."""

    parameters: Tensors  # the table [V, E]
    rows: Int[Tensor, "n t"]
    gradients: Float[Tensor, "c n e t"]
    sample_dims: ClassVar[Mapping[str, int]] = {"rows": 0, "gradients": 1}

    def _scattered(self, rows: Tensor, size: int, channels: slice = slice(None)) -> Tensor:
        gradients = self.gradients[:, :, channels]
        # Row v of a sample's Jacobian is the sum of g_cnt over the positions t that read v:
        # [C, N, E, T] -> [C, N, E, size]
        index = rows[None, :, None, :].expand_as(gradients)
        return gradients.new_zeros(*gradients.shape[:3], size).scatter_add(3, index, gradients)

    def _matched(self, other: Contribution, floats: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield both Jacobians [N, C, E' U] over the U rows read, by slices of columns."""
        assert isinstance(other, EmbeddingContribution)
        # Rows that no sample reads have Jacobian 0: the inner products need only the U of V rows that are read.
        read, index = torch.unique(
            torch.cat([self.rows.flatten(), other.rows.flatten()]), return_inverse=True
        )
        indices = index.split([self.rows.numel(), other.rows.numel()])
        (c, n, e, _) = self.gradients.shape
        m = len(other.rows)
        for channels in slices(e, max(1, floats // (c * max(n, m) * len(read)))):
            first, second = (
                side._scattered(i.view_as(side.rows), len(read), channels)
                .transpose(0, 1)
                .flatten(2)
                for side, i in zip((self, other), indices, strict=True)
            )
            yield first, second

    @override
    def dense(self) -> list[Tensor]:
        return [self._scattered(self.rows, len(self.parameters[0])).transpose(2, 3)]

    @override
    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        # sum_n w_n sum_ct g_cnt, added to the row that position t of sample n reads: [C, N, E, T] -> [N T, E] -> [V, E]
        weighted = (self.gradients * weights[:, None, None]).sum(0).transpose(1, 2).flatten(0, 1)
        table = self.parameters[0]
        return [weighted.new_zeros(table.shape).index_add_(0, self.rows.flatten(), weighted)]

    @override
    def square_norms(self) -> Tensor:
        # Gradients at positions that read the same row are added before they are squared: they are collected at the
        # first of these positions, so that V does not matter.
        first = (self.rows[:, :, None] == self.rows[:, None, :]).byte().argmax(2)
        return self._scattered(first, self.rows.shape[1]).square().sum((0, 2, 3))

    @override
    def kernel(
        self, other: Contribution, floats: int = TEMPORARY, *, traced: bool = False
    ) -> Tensor:
        indices = "ncp,mcp->nm" if traced else "ncp,mdp->ncmd"
        blocks = [torch.einsum(indices, *pair) for pair in self._matched(other, floats)]
        return torch.stack(blocks).sum(0)

    @override
    def sources(self) -> Tensors:
        return (self.gradients,)

    @override
    def kernel_gradient(self, weights: Tensor) -> OptionalTensors:
        read, index = torch.unique(self.rows, return_inverse=True)
        jacobian = self._scattered(index, len(read))
        # S = sum W_ncmd <J_nc, J_md> has dS/dJ = 2 W J for symmetric W. Row u of J is the sum of g_cnt over the
        # positions that read it: each of them has the derivative of that row.
        by_jacobian = 2 * torch.einsum("ncmd,dmeu->cneu", weights, jacobian)
        return (by_jacobian.gather(3, index[None, :, None, :].expand_as(self.gradients)),)

    @override
    def regroup(self, n: int) -> EmbeddingContribution:
        c, _, e, t = self.gradients.shape
        gradients = self.gradients.reshape(c, n, -1, e, t).transpose(2, 3).flatten(3)
        return EmbeddingContribution(self.parameters, self.rows.reshape(n, -1), gradients)

    @classmethod
    def merge_uses(cls, uses: Sequence[EmbeddingContribution]) -> EmbeddingContribution:
        """Merge several uses of one table into one contribution with all their positions."""
        rows = torch.cat([use.rows for use in uses], dim=1)
        return cls(uses[0].parameters, rows, torch.cat([use.gradients for use in uses], dim=3))


@dataclass(frozen=True, eq=False)
class DenseJacobian(Contribution):
    """Flattened Jacobian of one small parameter (real and imaginary parts if complex)."""

    parameters: Tensors
    values: Float[Tensor, "c n p"]
    sample_dims: ClassVar[Mapping[str, int]] = {"values": 1}

    @property
    def _shape(self) -> Key:
        (parameter,) = self.parameters
        if parameter.is_complex():
            return (*parameter.shape, 2)
        return tuple(parameter.shape)

    def _rows(self) -> Tensor:
        return self.values.detach().transpose(0, 1)

    @override
    def dense(self) -> list[Tensor]:
        return [self.values.reshape(*self.values.shape[:2], *self._shape)]

    @override
    def weighted_sum(self, weights: Tensor) -> list[Tensor]:
        return [torch.einsum("cnp,n->p", self.values, weights).reshape(self._shape)]

    @override
    def square_norms(self) -> Tensor:
        return self.values.square().sum((0, 2))

    @override
    def kernel(
        self, other: Contribution, floats: int = TEMPORARY, *, traced: bool = False
    ) -> Tensor:
        assert isinstance(other, DenseJacobian)
        if traced:  # sum_c <J_nc, J_mc> has (c, p) as its inner dimension: [N, C P] @ [C P, M]
            return multiply(self._rows().flatten(1), other._rows().flatten(1).T)
        (c, n, _) = self.values.shape
        (d, m, _) = other.values.shape
        # <J_nc, J_md> for all pairs of rows: [N C, P] @ [P, M D]
        rows = self._rows().flatten(0, 1)
        if other is self:
            product = gram_matrix(rows)
        else:
            product = multiply(rows, other._rows().flatten(0, 1).T)
        return product.view(n, c, m, d)

    @override
    def sources(self) -> Tensors:
        return (self.values,)

    @override
    def kernel_gradient(self, weights: Tensor) -> OptionalTensors:
        # S = sum W_ncmd <J_nc, J_md> has dS/dJ_nc = 2 sum_md W_ncmd J_md for symmetric W.
        return (2 * torch.einsum("ncmd,dmp->cnp", weights, self.values.detach()),)

    @override
    def regroup(self, n: int) -> DenseJacobian:
        c, _, p = self.values.shape
        # the Jacobian of a sample is the sum of those of its R rows: [C, N R, P] -> [C, N, P]
        return DenseJacobian(self.parameters, self.values.reshape(c, n, -1, p).sum(2))
