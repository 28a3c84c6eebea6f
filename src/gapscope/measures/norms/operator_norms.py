"""Product and sum of the layers' spectral norms, convolutions as the operators that they are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Inexact, Shaped
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gapscope.inspection.memoization import memoize
from gapscope.measures._numbers import Scalars
from gapscope.measures._weights import LayerWeight, layer_weights, log_products, squared_singular_values
from gapscope.measures.registry import EVERYTHING, ScalarInfo, register_measure


def circular_operator_norm(
    kernel: Float[Tensor, "o i ..."],
    positions: Sequence[int],
    *,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> float:
    r"""Largest singular value of a convolution with circular padding, as a map of all positions; exact.

    The Fourier transform over positions makes the operator block diagonal: its singular values are those of the
    matrices $\hat K(\omega)$ [O, I] of every frequency. With a stride s the $s^{dims}$ frequencies that it folds onto
    one another stand side by side in one matrix, divided by $s^{dims/2}$ each.

    Args:
        kernel: The kernel, inputs counted within a group.
        positions: Size of the input in each dimension; made larger to a multiple of the stride, and to hold the kernel.
        stride: Stride in each dimension.
        dilation: Dilation in each dimension.
        groups: Number of groups.

    Returns:
        The spectral norm.

    >>> round(circular_operator_norm(torch.ones(1, 1, 3), [8]), 12)  # the constant input is tripled
    3.0
    """
    dims = kernel.ndim - 2
    strides, dilations = list(stride or [1] * dims), list(dilation or [1] * dims)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel.shape[2:], strict=True)]
    sizes = [-(-max(size, span) // step) * step for size, span, step in zip(positions, reach, strides, strict=True)]
    spread = kernel.new_zeros(*kernel.shape[:2], *reach)
    spread[(..., *(slice(None, None, d) for d in dilations))] = kernel
    transformed = torch.fft.fftn(spread, s=sizes, dim=tuple(range(2, 2 + dims)))
    largest = 0.0
    for block in transformed.chunk(groups):
        largest = max(largest, _largest(_folded(block, sizes, strides, half=not kernel.is_complex())))
    return largest


def _folded(block: Tensor, sizes: Sequence[int], strides: Sequence[int], *, half: bool) -> Inexact[Tensor, "f o i"]:
    """Matrices of all frequencies of the output, or of half of them, from those of the input [O, I, *sizes]."""
    dims = len(sizes)
    # each dimension of frequencies becomes (alias, frequency of the output)
    pairs = [length for size, step in zip(sizes, strides, strict=True) for length in (step, size // step)]
    split = block.reshape(*block.shape[:2], *pairs)
    aliases, kept = [2 + 2 * d for d in range(dims)], [3 + 2 * d for d in range(dims)]
    if half:  # those of a real kernel at opposite frequencies are conjugate, but for the order of the aliases
        split = split.narrow(kept[-1], 0, split.shape[kept[-1]] // 2 + 1)
    matrices = split.permute(*kept, 0, 1, *aliases).flatten(dims + 1).flatten(0, dims - 1)
    return matrices / math.prod(strides) ** 0.5


def _largest(matrices: Inexact[Tensor, "f o i"]) -> float:
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    grams = (matrices[part] @ matrices[part].mH for part in torch.arange(len(matrices)).split(256))
    return max(float(torch.linalg.eigvalsh(gram)[:, -1].max()) for gram in grams) ** 0.5


def _squared_norm(layer: LayerWeight, plain: Tensor) -> float:
    module = layer.module
    if not isinstance(module, _ConvNd) or layer.parameter.is_complex():
        return plain[-1].item()
    stride, dilation = module.stride, module.dilation
    return (
        circular_operator_norm(layer.weight, layer.positions, stride=stride, dilation=dilation, groups=module.groups)
        ** 2
    )


@memoize
def squared_operator_norms(network: nn.Module, x: Tensor) -> Float[Tensor, " l"]:
    """Return the squared norm of every layer's operator, in the order of `layer_weights`."""
    plain = squared_singular_values(network, x)
    norms = [_squared_norm(layer, plain[layer.name]) for layer in layer_weights(network, x)]
    return torch.tensor(norms, dtype=torch.float64)


@register_measure(
    "operator_norms",
    title="largest stretching by the layers as they act on whole inputs",
    needs=("inputs",),
    numbers={
        "log_product": ScalarInfo("nats", "lower", "sum over layers of the log of the squared norm", "product"),
        "log_sum": ScalarInfo("nats", "lower", "log of L times the geometric mean of the squared norms", "sum"),
    },
    cost="no pass; eigenvalues of every layer's Gram matrix at every frequency of its input",
    cost_class="weights",
    default=False,
    invariances=EVERYTHING,
    oracle="the operator as a dense matrix",
    cross_checks=("robust-generalization-measures",),
    reference="Sedghi, Gupta and Long 2019 (arXiv:1805.10408), Theorem 6",
)
def operator_norms(network: nn.Module, x: Shaped[Tensor, "n ..."]) -> Scalars:
    r"""Squared spectral norms of the layers as operators: $\sum_l \log \sigma_1^2$, and their balanced sum.

    A convolution counts as the linear map of whole feature maps, on the positions that its input has for these data,
    with circular padding, where its norm is exact (strides, dilation and groups included); zero padding changes it by
    the border only. Everything else counts as in `spectral_norms`, batch norm included. Computed in float64.

    Args:
        network: Any network.
        x: Inputs, of which the first is run to find batch norms and sizes.

    Returns:
        The numbers "log_product" and "log_sum".

    Raises:
        NotMeasurable: There is no weight matrix, or one is zero.

    >>> network = nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular")
    >>> _ = nn.init.ones_(network.weight)
    >>> round(operator_norms(network, torch.ones(1, 1, 8))["log_product"], 6)  # log 9
    2.197225
    """
    return Scalars(log_products(squared_operator_norms(network, x)))
