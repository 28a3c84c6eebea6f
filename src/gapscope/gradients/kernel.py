"""Empirical kernel, its log-determinant, and the samples with the most similar gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gapscope.base.budget import MAX_BYTES
from gapscope.base.errors import InvalidInput, NotMeasurable, check_choice, check_range
from gapscope.base.samples import slices, slices_of
from gapscope.gradients.broadcasts import add_densely
from gapscope.gradients.contributions import Contribution, Key, concatenate
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.gradients.verification import verify
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.execution import processes
from gapscope.inspection.outputs import prepare_inputs
from gapscope.inspection.substitution import (
    NOTHING_SUBSTITUTED,
    ParameterSubstitution,
    cast_network,
    of_precision,
)

Contributions = Mapping[Key, Contribution]
Chunk = tuple[slice, Contributions]

# Up to this many samples are run at once in the first pass, which measures memory; of more samples only one.
_SMALL = 32


@contextmanager
def with_dtype(network: nn.Module, dtype: torch.dtype | None) -> Iterator[ParameterSubstitution]:
    """Compute in another floating-point type, and yield the substituted parameters."""
    if dtype is None:
        yield NOTHING_SUBSTITUTED
        return
    tensors = (*network.parameters(), *network.buffers())
    if all(of_precision(tensor.dtype, dtype) == tensor.dtype for tensor in tensors):
        yield NOTHING_SUBSTITUTED
        return
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        raise InvalidInput(
            f"dtype must be None for a network that TorchScript has compiled in another type; got {dtype}. "
            "Use dtype=None, or pass the network from before torch.jit."
        )
    with cast_network(network, dtype) as substituted:
        yield substituted


def check_single_batch(mode: str, chunk_size: int | None) -> None:
    """Raise InvalidInput unless `mode` is known, and training mode is used without chunks."""
    check_choice("mode", mode, ("eval", "train"))
    if mode == "train" and chunk_size is not None:
        raise InvalidInput(
            f'With mode="train" the inputs must be one batch, run in one pass; got chunk_size={chunk_size}. '
            "Use chunk_size=None, and pass as many inputs as a mini-batch has."
        )


def pass_bytes(tape: Tape, outputs: Tensor) -> int:
    """Return the estimated bytes of a pass: inputs of layers, and derivatives once per output.

    Args:
        tape: The recorded pass.
        outputs: Its outputs [n, C].
    """
    rerouted = tape.whole_network | tape.per_sample
    # dense Jacobians [C, N, P] of parameters without a rule, inputs a once, and derivatives g for each of C outputs
    numbers = (
        outputs.shape[1]
        * tape.n
        * sum(p.numel() for p in tape.parameters.values() if id(p) in rerouted)
    )
    for layer in tape.chain:
        numbers += tape.n * (layer.in_features + outputs.shape[1] * layer.out_features)
    for call in tape.calls:
        tensors = [leaf for leaf, _ in call.versions]
        by_output = sum(out.shape.numel() for out in call.outputs)
        if call.rule is None:
            by_output += tape.n * sum(parameter.numel() for parameter in call.parameters.values())
        numbers += sum(tensor.numel() for tensor in tensors) + outputs.shape[1] * by_output
    return max(1, numbers) * outputs.element_size()


def _contributions(tape: Tape, outputs: Tensor) -> Contributions:
    verify(tape, outputs)
    return tape.contributions(outputs, one_hot_cotangents(outputs))


def _compact(contributions: Contributions) -> dict[Key, Contribution]:
    return {
        part.key: part for contribution in contributions.values() for part in contribution.compact()
    }


def _matched(first: Contributions, second: Contributions) -> tuple[Contributions, Contributions]:
    """Return two chunks, which may use parameters differently, with the same keys."""
    common = [key for key in first if key in second and first[key].has_form_of(second[key])]
    sides: list[dict[Key, Contribution]] = []
    for side in (first, second):
        rest = add_densely([part for key, part in side.items() if key not in common])
        sides.append({key: side[key] for key in common} | rest)
    return sides[0], sides[1]


@dataclass(frozen=True)
class _Division:
    """Samples per pass, and rows and columns whose contributions are in memory at a time.

    for each group of rows (`row_group`)             computed once
        for each group of columns (`column_group`)   computed once per group of rows
            add the block of both groups
    """

    chunk_size: int
    row_group: int
    column_group: int
    outputs: Tensor  # of a first pass
    full_pass: tuple[Tape, Tensor] | None = (
        None  # the pass of all rows, if one is enough and has been run
    )


def _divide(
    network: nn.Module, x: Tensor, longest: int, max_bytes: int, chunk_size: int | None,
    substituted: ParameterSubstitution,
) -> _Division:  # fmt: skip
    """Divide a kernel by the memory of a first pass."""
    tape, outputs = record_forward(network, x if len(x) <= _SMALL else x[:1], substituted)
    verify(tape, outputs)
    if chunk_size is None:
        # Rows and columns are in memory, and a backward pass temporarily needs twice as much: 2 + 4 times.
        chunk_size = max(1, max_bytes * tape.n // (6 * pass_bytes(tape, outputs)))
        if chunk_size < longest:
            chunk_size = max(1, chunk_size // 2)  # smaller passes leave memory for more rows
    if chunk_size >= longest:
        full_pass = (tape, outputs) if tape.n == len(x) else None
        return _Division(chunk_size, chunk_size, chunk_size, outputs.detach(), full_pass)
    if tape.n > 1:
        tape, outputs = record_forward(network, x[:1], substituted)
    stored = _compact(tape.contributions(outputs, one_hot_cotangents(outputs)))
    tensors = [getattr(part, name) for part in stored.values() for name in part.sample_dims]
    sample_bytes = max(1, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    # 5/12 of the memory for contributions, the rest for passes and the temporaries of products
    capacity = max_bytes * 5 // 12 // sample_bytes
    if capacity < len(x):
        # Columns are recomputed for every group of rows, so that rows get more memory. Columns still get a third,
        # because a product forms the Jacobian of both sides: the larger the groups, the fewer products.
        row_group = 2 * capacity // 3
        column_group = capacity // 3
    else:
        row_group = len(x)
        column_group = capacity - len(x)
    return _Division(
        chunk_size, max(chunk_size, row_group), max(chunk_size, column_group), outputs.detach()
    )


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a kernel, filled group by group."""

    network: nn.Module
    x: Tensor
    x2: Tensor  # the inputs of the columns
    substituted: ParameterSubstitution
    division: _Division
    kernel: Tensor  # [n, C, m, C], or [n, m] if traced
    symmetric: bool  # rows and columns are the same samples
    traced: bool
    floats: int  # that a temporary of one product may hold

    def fill(self, group: slice) -> None:
        """Compute a group of rows (if symmetric, mirrored blocks right of the diagonal)."""
        full_pass = self.division.full_pass
        if full_pass is None:
            rows = self._run(self.x, group)
        else:
            rows = [(group, _contributions(*full_pass))]
        if self.symmetric:
            for i, first in enumerate(rows):
                for second in rows[i:]:
                    self._add(first, second)
        rest = slice(group.stop if self.symmetric else 0, len(self.x2))
        for columns in slices_of(rest, self.division.column_group):
            for second in self._run(self.x2, columns):
                for first in rows:
                    self._add(first, second)

    def _run(self, inputs: Tensor, group: slice) -> list[Chunk]:
        """Run a group of samples, and join consecutive chunks with contributions of one form."""
        chunks = [
            (
                rows,
                _compact(
                    _contributions(*record_forward(self.network, inputs[rows], self.substituted))
                ),
            )
            for rows in slices_of(group, self.division.chunk_size)
        ]
        joined: list[Chunk] = []
        for _, compatible in groupby(
            chunks, key=lambda chunk: {key: part.form for key, part in chunk[1].items()}
        ):
            ranges, parts = zip(*compatible, strict=True)
            # each part is freed as soon as it is joined, so that memory holds all of them once
            contributions = {
                key: concatenate([part.pop(key) for part in parts]) for key in list(parts[0])
            }
            joined.append((slice(ranges[0].start, ranges[-1].stop), contributions))
        return joined

    def _add(self, first: Chunk, second: Chunk) -> None:
        (rows, left) = first
        (columns, right) = second
        if self.traced:
            block = self.kernel[rows, columns]
        else:
            block = self.kernel[rows, :, columns]
        if first is not second:
            left, right = _matched(left, right)
        # rows of J are concatenated over parameters, so that their inner products are added
        # up to 4 MiB, products are added to each other before they are added to the block: they
        # lie in another order than the block, which makes an addition eight times as slow.
        total = block if block.numel() > 2**20 else None
        for key, part in left.items():
            if key in right:
                product = part.kernel(right[key], self.floats, traced=self.traced)
                total = product if total is None else total.add_(product)
        if total is not None and total is not block:
            block += total
        if self.symmetric and rows != columns:
            if self.traced:
                mirrored = self.kernel[columns, rows]
            else:
                mirrored = self.kernel[columns, :, rows]
            mirrored.copy_(block.T if self.traced else block.permute(2, 3, 0, 1))  # K_mdnc = K_ncmd


def ntk_blocks(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    x2: Shaped[Tensor, "m ..."] | None,
    *,
    traced: bool,
    max_bytes: int | None,
    chunk_size: int | None,
    substituted: ParameterSubstitution = NOTHING_SUBSTITUTED,
    one_pass: bool = False,
) -> Tensor:
    """Compute inner products of gradients, [n, C, m, C], or [n, m] summed over outputs.

    `x2` are the inputs of the columns (None for those of the rows, and half of the blocks), `max_bytes` those for
    factors and temporaries (None for a quarter of the free memory, at most 2 GiB), `substituted` what `with_dtype`
    yields. With `one_pass`, rows and columns are each run as one batch, regardless of memory.
    """
    x = prepare_inputs(network, x)
    if max_bytes is None:
        max_bytes = memory_budget(x.device, MAX_BYTES)
    else:
        max_bytes = max_bytes
    check_range("max_bytes", max_bytes, 1)
    symmetric = x2 is None
    x2 = x if x2 is None else prepare_inputs(network, x2)
    if len(x2) < len(x):
        # the smaller side becomes the rows, which are computed once if they fit into memory
        kernel = ntk_blocks(
            network, x2, x, traced=traced, max_bytes=max_bytes, chunk_size=chunk_size, substituted=substituted,
            one_pass=one_pass,
        )  # fmt: skip
        return kernel.T if traced else kernel.permute(2, 3, 0, 1)
    longest = max(len(x), len(x2))
    if one_pass:
        full_pass = record_forward(network, x, substituted)
        division = _Division(longest, longest, longest, full_pass[1].detach(), full_pass)
    else:
        division = _divide(network, x, longest, max_bytes, chunk_size, substituted)
    among = None if one_pass else processes(len(x))
    if among is not None:
        # the same blocks in every process, and some for each
        largest = -(-len(x) // (2 * among.size))
        sizes = {
            name: getattr(division, name) for name in ("chunk_size", "row_group", "column_group")
        }
        sizes = {name: among.all_min(min(size, largest)) for name, size in sizes.items()}
        division = replace(division, full_pass=None, **sizes)
    c = division.outputs.shape[1]
    dtype = torch.promote_types(division.outputs.dtype, torch.float32)
    shape = (len(x), len(x2)) if traced else (len(x), c, len(x2), c)
    kernel = torch.zeros(shape, dtype=dtype, device=x.device)
    floats = max(1, max_bytes // 32)
    blocks = _Blocks(network, x, x2, substituted, division, kernel, symmetric, traced, floats)
    groups = list(slices(len(x), division.row_group))
    for index, rows in enumerate(groups):
        if symmetric:
            # The blocks right of the diagonal become fewer with the group: the first and the last make a pair of
            # average work for one process.
            index = min(index, len(groups) - 1 - index)
        if among is None or index % among.size == among.rank:
            blocks.fill(rows)
    return kernel if among is None else among.sum(kernel)


def _factorized(kernel: Tensor, noise: float | None, counted: Tensor | None) -> Tensor:
    """Return the Cholesky factor of K, or of I + K / noise, in float64; with rows of I for those that do not count."""
    precision = len(kernel) * torch.finfo(kernel.dtype).eps
    matrix = kernel.double()
    if noise is not None:
        matrix = matrix / noise
        matrix.diagonal().add_(1)
    elif counted is not None:
        matrix = matrix + torch.diag((~counted.flatten()).to(matrix))
    factor, failed = torch.linalg.cholesky_ex(matrix)
    rounding = precision * float(kernel.diagonal().max())
    if not math.isfinite(rounding):
        return torch.full_like(matrix, math.nan)  # the network has diverged
    if noise is None and (failed or factor.diagonal().min().square() <= rounding):
        raise NotMeasurable(
            f"log det K must be finite; the kernel of this batch ({len(kernel)} rows) is singular to working "
            "precision (duplicated samples, dead layers, or more rows than weights). "
            "Use log det(I + K / s) instead: noise=1.0."
        )
    if failed:
        raise NotMeasurable(
            f"noise must be larger than the rounding errors of K, about {rounding:.1g}; got {noise:g}. "
            "Raise it, or use a network in float64."
        )
    return factor


class _LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx,
        parts: Sequence[Contribution],
        noise: float | None,
        counted: Tensor | None,
        *sources: Tensor,
    ) -> Tensor:
        kernel = torch.stack([part.kernel(part) for part in parts]).sum(0)
        factor = _factorized(kernel.flatten(0, 1).flatten(1), noise, counted)
        # With A = K, or I + K/s: log det A = 2 sum_i log L_ii for A = L L^T, and d log det A = tr(A^-1 dA), so that the
        # derivative by K is M = A^-1, or A^-1 / s.
        inverse = torch.cholesky_inverse(factor) / (1 if noise is None else noise)
        ctx.parts = parts
        ctx.save_for_backward(inverse.view_as(kernel).to(kernel.dtype))
        return 2 * factor.diagonal().log().sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, weight: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        (inverse,) = ctx.saved_tensors
        # K = sum_l K_l over the contributions: d log det = sum_l <M, dK_l>, and each returns the derivative of its
        # <M, K_l> by its own stored tensors. M is symmetric, as `kernel_gradient` requires.
        inverse = inverse * weight.to(inverse.dtype)
        return (
            None,
            None,
            None,
            *(gradient for part in ctx.parts for gradient in part.kernel_gradient(inverse)),
        )


def log_determinant(
    parts: Sequence[Contribution], noise: float | None, counted: Bool[Tensor, "n c"] | None = None
) -> Float[Tensor, ""]:
    r"""Return $\log\det(I + K/s)$, or without noise $\log\det K$, in float64.

    Rows of K that do not count are omitted.
    """
    sources = [source for part in parts for source in part.sources()]
    value: Any = _LogDeterminant.apply(parts, noise, counted, *sources)
    return value


def most_similar(
    kernel: Float[Tensor, "n n"], k: int, groups: Int[Tensor, " n"] | None = None
) -> Int[Tensor, "n k"]:
    r"""Return indices of the k samples of largest $K_{ij} / \sqrt{K_{ii} K_{jj}}$.

    They are compared as lengths of chords, rounded to 6 decimals: close to 1, similarities of different samples differ
    by less than rounding does far from it.

    Args:
        kernel: Kernel of all pairs.
        k: Number of samples; fewer than those outside the largest group.
        groups: Group of each sample, whose samples are not similar to each other; None for single samples.

    Raises:
        InvalidInput: There are not enough samples.

    >>> most_similar(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]), 1).flatten().tolist()
    [1, 0, 1]
    """
    n = len(kernel)
    if k >= n:
        raise InvalidInput(
            f"neighbours must be fewer than the samples, here {n}; got {k}. Pass more samples."
        )
    kernel = kernel.double()
    # a sample with gradient 0 has the similarity 0 to all other samples, instead of 0/0
    norms = kernel.diagonal().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    similarity = kernel / norms[:, None] / norms
    chords = (2 - 2 * similarity).clamp_min(0).sqrt().round(decimals=6).fill_diagonal_(torch.inf)
    if groups is not None:
        chords[groups[:, None] == groups] = torch.inf
    return chords.topk(k, dim=1, largest=False).indices
