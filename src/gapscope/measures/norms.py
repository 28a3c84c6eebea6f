r"""Norms of the weight matrices, and the spectrally normalized margin bound.

Matrices are all trainable weights of two or more dimensions, each once; a kernel [O, I, h, w] counts as the matrix [O,
I h w]. The scale of a batch norm is folded into the layer before it, for which one sample of x is run; biases do not
count. Products and sums over L layers are reported as "log_product", $\sum_l \log s_l$ of the squared norms s, and
"log_sum", $\log \big( L (\prod_l s_l)^{1/L} \big)$: the smallest sum of the $s_l$ that rescaling layers against each
other can reach. Computed in float64. Dziugaite et al. 2020 report half of (value - log n). All raise `NotMeasurable` if
there is no such weight or one is zero. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Inexact
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gapscope.base.errors import NotMeasurable
from gapscope.inspection.memoization import memoize
from gapscope.measures._forward import Inputs, Labels, Scalars, forward_pass, low_margin, margins_of
from gapscope.measures._weights import (
    layer_weights,
    log_products,
    squared_frobenius_norms,
    squared_singular_values,
)
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate

_register = partial(register_measure, default=False)
_LOG_NORMS = {
    "log_product": ScalarInfo("nats", "lower", "sum over layers of the log of the squared norm", "product"),
    "log_sum": ScalarInfo("nats", "lower", "log of L times the geometric mean of the squared norms", "sum"),
}


@_register(
    title="Frobenius norms of the layers",
    numbers=_LOG_NORMS,
    cost_class="weights",
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 37 and 39; Dziugaite et al. 2020 (arXiv:2010.11924)",
)
def frobenius_norms(network: nn.Module, x: Inputs) -> Scalars:
    """Compute the log product and the balanced log sum of squared Frobenius norms (exact)."""
    return Scalars(log_products(squared_frobenius_norms(layer_weights(network, x))))


@_register(
    title="spectral norms of the layers",
    numbers=_LOG_NORMS,
    cost_class="weights",
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 32 and 35; reshaped as in Yoshida and Miyato 2017, Sec. 3.2",
)
def spectral_norms(network: nn.Module, x: Inputs) -> Scalars:
    """Compute the log product and the balanced log sum of squared spectral norms (exact)."""
    spectra = squared_singular_values(network, x)
    return Scalars(log_products(torch.stack([values[-1] for values in spectra.values()])))


def circular_operator_norm(
    kernel: Float[Tensor, "o i ..."],
    positions: Sequence[int],
    *,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> float:
    r"""Compute the operator norm of a convolution with circular padding (exact).

    The largest singular value of the convolution as a map of all `positions`, the size of the input in each dimension
    (made larger to a multiple of the stride, and to hold the kernel). The Fourier transform over positions makes the
    operator block diagonal: its singular values are those of the matrices $\hat K(\omega)$ [O, I] of every frequency. A
    stride s folds $s^{dims}$ frequencies onto one another; their matrices are concatenated and divided by $s^{dims/2}$.

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
    """Return the matrices of all output frequencies (or half) from those of the input."""
    dims = len(sizes)
    # each dimension of frequencies becomes (alias, frequency of the output)
    pairs = [length for size, step in zip(sizes, strides, strict=True) for length in (step, size // step)]
    split = block.reshape(*block.shape[:2], *pairs)
    aliases, frequencies = [2 + 2 * d for d in range(dims)], [3 + 2 * d for d in range(dims)]
    if half:  # a real kernel has conjugate matrices at opposite frequencies, up to the order of the aliases
        split = split.narrow(frequencies[-1], 0, split.shape[frequencies[-1]] // 2 + 1)
    matrices = split.permute(*frequencies, 0, 1, *aliases).flatten(dims + 1).flatten(0, dims - 1)
    return matrices / math.prod(strides) ** 0.5


def _largest(matrices: Inexact[Tensor, "f o i"]) -> float:
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    grams = (matrices[part] @ matrices[part].mH for part in torch.arange(len(matrices)).split(256))
    return max(float(torch.linalg.eigvalsh(gram)[:, -1].max()) for gram in grams) ** 0.5


@memoize
def squared_operator_norms(network: nn.Module, x: Tensor) -> Float[Tensor, " l"]:
    """Return the squared norm of every layer's operator, in the order of `layer_weights`."""
    norms, spectra = [], squared_singular_values(network, x)
    for layer in layer_weights(network, x):
        module = layer.module
        if not isinstance(module, _ConvNd) or layer.parameter.is_complex():
            norms.append(spectra[layer.name][-1].item())
            continue
        norm = circular_operator_norm(
            layer.weight, layer.positions, stride=module.stride, dilation=module.dilation, groups=module.groups
        )
        norms.append(norm**2)
    return torch.tensor(norms, dtype=torch.float64)


@_register(
    title="spectral norms of the layers as operators on whole inputs",
    numbers=_LOG_NORMS,
    cost_class="weights",
    reference="Sedghi, Gupta and Long 2019 (arXiv:1805.10408), Theorem 6",
)
def operator_norms(network: nn.Module, x: Inputs) -> Scalars:
    """Compute the log product and the balanced log sum of squared operator norms.

    A convolution counts as the linear map of whole feature maps, at the positions that its input has for these data.
    With circular padding this norm is exact (strides, dilation and groups included); zero padding changes only the
    border.
    """
    return Scalars(log_products(squared_operator_norms(network, x)))


@_register(
    title="number of directions that the weights use",
    numbers={
        "sum": ScalarInfo("singular values", "lower", "sum over layers"),
        "mean": ScalarInfo("singular values", "lower", "mean over layers"),
    },
    cost_class="weights",
    reference="Jiang et al. 2020 (arXiv:1912.02178), eq. 33; Dziugaite et al. 2020, fro-over-spec",
)
def stable_rank(network: nn.Module, x: Inputs) -> Scalars:
    r"""Compute the stable ranks, their sum and their mean (exact).

    $\lVert W_l \rVert_F^2 / \sigma_1(W_l)^2$. Each is between 1 (one direction) and the rank of the matrix.

    Raises:
        NotMeasurable: There is no such weight, or one is zero.
    """
    spectra = squared_singular_values(network, x).values()
    if any(float(values[-1]) == 0 for values in spectra):
        raise NotMeasurable("One weight matrix is all zero; a stable rank needs weights other than zero.")
    ranks = torch.stack([values.sum() / values[-1] for values in spectra])
    return Scalars({"sum": ranks.sum().item(), "mean": ranks.mean().item()})


def log_spectral_bound(network: nn.Module, x: Tensor, y: Tensor, squares: Tensor, chunk_size: int | None) -> float:
    r"""Return the log spectral bound of squared norms s, as in `spectral_complexity`."""
    margin = abs(low_margin(margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu())))
    spectral = torch.stack([values[-1] for values in squared_singular_values(network, x).values()])
    ratio = (squares / spectral).sum().item()
    if margin == 0 or ratio == 0:
        raise NotMeasurable(
            "The spectral bound needs a margin and weights other than zero; "
            f"the margin is {margin:.3g}, the sum of squared norms over spectral norms {ratio:.3g}."
        )
    return log_products(spectral)["log_product"] - 2 * math.log(margin) + math.log(ratio)


@_register(
    title="spectral norms relative to the margin",
    labels=True,
    numbers=ScalarInfo("nats", "lower", "log of a product and a sum over layers, over the squared margin"),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 30 (orig-main)",
)
def spectral_complexity(network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None) -> Estimate:
    r"""Compute the log spectrally normalized margin bound around the origin (exact).

    .. math:: \log \prod_l \sigma_1(W_l)^2 - 2 \log |\gamma| +
              \log \sum_l \frac{\lVert W_l \rVert_F^2}{\sigma_1(W_l)^2}

    $\gamma$ is the tenth percentile of the margins $f_y - \max_{j \ne y} f_j$ (the k-th smallest, k = n // 10).
    """
    squares = squared_frobenius_norms(layer_weights(network, x))
    return Estimate(log_spectral_bound(network, x, y, squares, chunk_size))


@_register(
    title="spectral norms and distance from the initial weights relative to the margin",
    labels=True,
    numbers=ScalarInfo("nats", "lower", "log of a product and a sum over layers, over the squared margin"),
    sampling=Sampling("whole", 256, lambda k: 2),
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 29 (init-main)",
)
def spectral_distance_complexity(
    network: nn.Module, x: Inputs, y: Labels, *, initial_state: Mapping[str, Tensor], chunk_size: int | None = None
) -> Estimate:
    r"""Compute the log spectrally normalized margin bound around the initial weights (exact).

    As `spectral_complexity`, with $\lVert W_l - W_l^0 \rVert_F^2$ in place of $\lVert W_l \rVert_F^2$; batch norm is
    folded into both.
    """
    moved = [layer.difference.square().sum().cpu() for layer in layer_weights(network, x, initial_state)]
    return Estimate(log_spectral_bound(network, x, y, torch.stack(moved), chunk_size))
