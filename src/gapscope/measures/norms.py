r"""Norms and spectra of the weight matrices, and spectrally normalized margin bounds.

Matrices are all trainable weights of two or more dimensions, each once; a kernel [O, I, h, w] counts as the matrix [O,
I h w]. The scale of a batch norm is folded into the layer before it, for which one sample of x is run; biases do not
count. Computed in float64. All raise `NotMeasurable` if there is no such weight. For values that
are logarithms, Dziugaite et al. 2020 report (value - log n) / 2. Common parameters: see `gapscope.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Inexact
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gapscope.base.errors import NotMeasurable, check_range
from gapscope.gradients.rules import per_dimension
from gapscope.measures._forward import Inputs, Labels, Scalars, forward_pass, low_margin, margins_of
from gapscope.measures._weights import StateDict, layer_weights, squared_singular_values
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate
from gapscope.statistics.correlations import ROUNDING

_register = partial(register_measure, default=False)


def circular_operator_norm(
    kernel: Float[Tensor, "o i ..."],
    positions: Sequence[int],
    *,
    stride: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> float:
    r"""Compute the operator norm of a convolution with circular padding (exact).

    The largest singular value of the convolution as a linear map of inputs of size `positions` (enlarged to a multiple
    of the stride, and to the size of the kernel). The Fourier transform over positions makes the operator block
    diagonal: its singular values are those of the matrices $\hat K(\omega)$ [O, I] of all frequencies. A stride s folds
    $s^{dims}$ frequencies onto each other; their matrices are concatenated and divided by $s^{dims/2}$.

    >>> round(circular_operator_norm(torch.ones(1, 1, 3), [8]), 12)  # the constant input is tripled
    3.0
    """
    dims = kernel.ndim - 2
    strides = list(stride or [1] * dims)
    dilations = list(dilation or [1] * dims)
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel.shape[2:], strict=True)]
    sizes = [
        -(-max(size, span) // step) * step
        for size, span, step in zip(positions, spans, strides, strict=True)
    ]
    dilated = kernel.new_zeros(*kernel.shape[:2], *spans)
    dilated[(..., *(slice(None, None, d) for d in dilations))] = kernel
    transformed = torch.fft.fftn(dilated, s=sizes, dim=tuple(range(2, 2 + dims)))
    largest = 0.0
    for block in transformed.chunk(groups):
        matrices = _fold_frequencies(block, sizes, strides, half=not kernel.is_complex())
        largest = max(largest, _largest_singular_value(matrices))
    return largest


def _fold_frequencies(
    block: Tensor, sizes: Sequence[int], strides: Sequence[int], *, half: bool
) -> Inexact[Tensor, "f o i"]:
    """Return the matrices of all output frequencies (or half) from those of the input."""
    dims = len(sizes)
    # [O, I, sizes...] -> [O, I, alias, output frequency, alias, output frequency, ...]
    pairs = [
        length for size, step in zip(sizes, strides, strict=True) for length in (step, size // step)
    ]
    split = block.reshape(*block.shape[:2], *pairs)
    aliases = [2 + 2 * d for d in range(dims)]
    frequencies = [3 + 2 * d for d in range(dims)]
    if half:  # matrices of a real kernel are conjugate at opposite frequencies, up to the order of aliases
        split = split.narrow(frequencies[-1], 0, split.shape[frequencies[-1]] // 2 + 1)
    # -> [output frequencies, O, I * aliases]
    matrices = split.permute(*frequencies, 0, 1, *aliases).flatten(dims + 1).flatten(0, dims - 1)
    return matrices / math.prod(strides) ** 0.5


def _largest_singular_value(matrices: Inexact[Tensor, "f o i"]) -> float:
    if matrices.shape[1] > matrices.shape[2]:
        matrices = matrices.mT
    grams = (matrices[part] @ matrices[part].mH for part in torch.arange(len(matrices)).split(256))
    return max(float(torch.linalg.eigvalsh(gram)[:, -1].max()) for gram in grams) ** 0.5


@_register(
    title="spectral norms of the layers as linear operators",
    numbers={
        "log_product": ScalarInfo(
            "nats", "lower", "sum over layers of the log of the squared norm", "product"
        ),
        "log_sum": ScalarInfo(
            "nats", "lower", "log of L times the geometric mean of the squared norms", "sum"
        ),
    },
    cost_class="weights",
    reference="Sedghi, Gupta and Long 2019 (arXiv:1805.10408), Theorem 6",
)
def operator_norms(network: nn.Module, x: Inputs) -> Scalars:
    r"""Compute the log product and the balanced log sum of squared operator norms.

    For the squared norms $s_l$ of L layers "log_product" is $\sum_l \log s_l$, and "log_sum" $\log \big( L (\prod_l
    s_l)^{1/L} \big)$, the log of the smallest sum that rescaling layers against each other can reach.

    A convolution counts as the linear map of whole feature maps, at the positions that its input has for these data.
    With circular padding this norm is exact (strides, dilation and groups included); zero padding changes only the
    border.

    Raises:
        NotMeasurable: A weight matrix is zero, or there is none.
    """
    spectra = squared_singular_values(network, x)
    squares = []
    for layer in layer_weights(network, x):
        module = layer.module
        if isinstance(module, _ConvNd) and not layer.parameter.is_complex():
            norm = circular_operator_norm(
                layer.weight,
                layer.positions,
                stride=per_dimension(module.stride, layer.weight.ndim - 2),
                dilation=per_dimension(module.dilation, layer.weight.ndim - 2),
                groups=module.groups,
            )
            squares.append(norm**2)
        else:
            squares.append(spectra[layer.name][-1].item())
    if min(squares) <= 0:
        raise NotMeasurable(
            "The logarithm of a norm needs weights other than zero; one weight matrix is all zero."
        )
    total = torch.tensor(squares, dtype=torch.float64).log().sum().item()
    depth = len(squares)
    return Scalars({"log_product": total, "log_sum": math.log(depth) + total / depth})


def _log_spectral_bound(
    network: nn.Module, x: Tensor, y: Tensor, squares: list[Tensor], chunk_size: int | None
) -> Estimate:
    """Return the log spectral bound of one squared norm per layer (`spectral_complexity`)."""
    margin = abs(
        low_margin(margins_of(forward_pass(network, x, chunk_size=chunk_size).logits, y.cpu()))
    )
    spectral = torch.stack([values[-1] for values in squared_singular_values(network, x).values()])
    ratio = (torch.stack(squares).cpu() / spectral).sum().item()
    if margin == 0 or ratio == 0 or bool((spectral <= 0).any()):
        raise NotMeasurable(
            "The spectral bound needs a margin and weights other than zero; "
            f"the margin is {margin:.3g}, the sum of squared norms over spectral norms {ratio:.3g}."
        )
    return Estimate(spectral.log().sum().item() - 2 * math.log(margin) + math.log(ratio))


_register_bound = partial(
    _register,
    labels=True,
    numbers=ScalarInfo(
        "nats", "lower", "log of a product and a sum over layers, over the squared margin"
    ),
    sampling=Sampling("whole", 256, lambda k: 2),
)


@_register_bound(
    title="spectral norms of the layers relative to the margin",
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 30 (orig-main)",
)
def spectral_complexity(
    network: nn.Module, x: Inputs, y: Labels, *, chunk_size: int | None = None
) -> Estimate:
    r"""Compute the log spectrally normalized margin bound around the origin (exact).

    .. math:: \log \prod_l \sigma_1(W_l)^2 - 2 \log |\gamma| +
              \log \sum_l \frac{\lVert W_l \rVert_F^2}{\sigma_1(W_l)^2}

    $\gamma$ is the tenth percentile of the margins $f_y - \max_{j \ne y} f_j$ (the k-th smallest, k = n // 10, at
    least 1).
    """
    squares = [layer.weight.square().sum() for layer in layer_weights(network, x)]
    return _log_spectral_bound(network, x, y, squares, chunk_size)


@_register_bound(
    title="spectral norms and distance from the initial weights relative to the margin",
    reference="Bartlett, Foster and Telgarsky 2017 (arXiv:1706.08498), eq. 1.2; Jiang et al. 2020, eq. 29 (init-main)",
)
def spectral_distance_complexity(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    initial_state: StateDict,
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the log spectrally normalized margin bound around the initial weights (exact).

    As `spectral_complexity`, with $\lVert W_l - W_l^0 \rVert_F^2$ in place of $\lVert W_l \rVert_F^2$; both include the
    scale of batch norm.
    """
    squares = [
        layer.difference.square().sum() for layer in layer_weights(network, x, initial_state)
    ]
    return _log_spectral_bound(network, x, y, squares, chunk_size)


def power_law_fit(values: Float[Tensor, " r"]) -> tuple[float, float, float]:
    r"""Fit a power law: return alpha, x_min and the Kolmogorov-Smirnov distance.

    $p(x) \propto x^{-\alpha}$ for $x \ge x_{\min}$. For each value as $x_{\min}$ the maximum-likelihood exponent is $1
    + m / \sum \log(x_i / x_{\min})$ over the m values from it on; the start with the smallest Kolmogorov-Smirnov
    distance is selected (Clauset, Shalizi and Newman 2009, eq. 3.1 and 3.9).
    """
    x = values.double().sort().values
    n = len(x)
    logs = x.log()
    best = (math.nan, math.nan, math.inf)
    # sum of logarithms from each value on
    tails = logs.flip(0).cumsum(0).flip(0)
    for start in range(n - 1):
        m = n - start
        excess = float(tails[start]) - m * float(logs[start])
        if excess <= 0 or (start and x[start] == x[start - 1]):
            continue
        alpha = 1 + m / excess
        fitted = 1 - torch.exp((1 - alpha) * (logs[start:] - logs[start]))
        empirical = torch.arange(m, dtype=torch.float64) / m
        distance = float((fitted - empirical).abs().max())
        if distance < best[2]:
            best = (alpha, float(x[start]), distance)
    return best


@_register(
    title="power-law exponent of the weight spectra",
    numbers={
        "alpha": ScalarInfo("exponent", "lower", "mean over layers"),
        "weighted": ScalarInfo(
            "exponent times decades",
            "lower",
            "mean over layers",
            "weighted by the largest eigenvalue",
        ),
    },
    cost_class="weights",
    reference="Martin, Peng and Mahoney 2021 (arXiv:2002.06716), eq. 5 and 6; Clauset, Shalizi and Newman 2009",
)
def power_law_alpha(network: nn.Module, x: Inputs, *, min_eigenvalues: int = 20) -> Scalars:
    r"""Compute the mean power-law exponents of the layer spectra, unweighted and weighted.

    "alpha" is the mean of the exponents $\alpha_l$ fitted to the eigenvalues of $W_l^\top W_l$ by `power_law_fit`,
    "weighted" that of $\alpha_l \log_{10} \lambda_{\max, l}$. A kernel [O, I, h, w] counts as the matrix [O, I h w]
    (WeightWatcher joins the spectra of its h w slices), with the scale of batch norm. Layers with fewer than
    `min_eigenvalues` positive eigenvalues are omitted.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        min_eigenvalues: Smallest number of eigenvalues of a layer that counts, at least 3; WeightWatcher uses 50.

    Raises:
        NotMeasurable: No layer has so many eigenvalues.
    """
    check_range("min_eigenvalues", min_eigenvalues, 3)
    alphas = []
    weighted = []
    for values in squared_singular_values(network, x).values():
        values = values[values > ROUNDING**2 * values[-1]]
        if len(values) < min_eigenvalues:
            continue
        alpha = power_law_fit(values)[0]
        if math.isfinite(alpha):
            alphas.append(alpha)
            weighted.append(alpha * math.log10(float(values[-1])))
    if not alphas:
        raise NotMeasurable(
            f"No layer has {min_eigenvalues} or more different eigenvalues, as the power-law fit needs. "
            "Pass a smaller min_eigenvalues."
        )
    return Scalars({"alpha": sum(alphas) / len(alphas), "weighted": sum(weighted) / len(weighted)})
