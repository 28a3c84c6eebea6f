"""Empirical neural tangent kernel (NTK)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import check_choice
from gapscope.gradients.kernel import check_single_batch, ntk_blocks, with_dtype
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.inspection.substitution import cast_like


def empirical_ntk(
    network: nn.Module,
    x: Float[Tensor, "n ..."] | Int[Tensor, "n ..."],
    x2: Float[Tensor, "m ..."] | Int[Tensor, "m ..."] | None = None,
    *,
    outputs: Literal["full", "traced"] = "full",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    dtype: torch.dtype | None = None,
    mode: Literal["eval", "train"] = "eval",
) -> Float[Tensor, "n c m c"] | Float[Tensor, "n m"]:
    r"""Compute the empirical neural tangent kernel, the inner products of model gradients.

    $$K_{nc,md} = \nabla_\theta f_c(x_n) \cdot \nabla_\theta f_d(x_m)$$

    over all trainable weights, for the raw outputs (logits), in evaluation mode unless `mode` says otherwise (Szolnoky
    et al. 2022, arXiv:2205.12642, Sec. 2.1). "traced" sums over equal outputs, $\sum_c K_{nc,mc}$, without computing
    the rest. neural-tangents divides its traced kernel by C; here nothing is divided.

    Exact up to rounding. The Jacobian of the whole network is never formed: only derivatives by the outputs of layers
    are propagated, and each layer's share is contracted in the cheapest exact order.

    Args:
        x2: Inputs of the columns; None for the rows' own.
        outputs: "full" or "traced".
        dtype: Floating-point type in which everything is computed; None for the network's own.
        mode: "eval", or "train": BatchNorm normalizes by the statistics of x (those of x2 for the columns), which are
            held fixed in the derivatives, and dropout draws one mask. Then x is one batch, as is x2, run in one pass.

    Returns:
        K [n, C, m, C], or [n, m] for "traced", in squared output / squared weight.

    Raises:
        InvalidInput: An option is unknown or out of range, or inputs and weights differ in dtype.
        UnsupportedLayer: The network mixes samples, for example by BatchNorm without running statistics.

    >>> network = nn.Linear(2, 3)
    >>> x = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    >>> empirical_ntk(network, x, outputs="traced")  # 3 (x_n . x_m + 1)
    tensor([[18.,  9.],
            [ 9.,  6.]])
    """
    check_choice("outputs", outputs, ("full", "traced"))
    check_single_batch(mode, chunk_size)
    with measurement_mode(network, mode=mode) as network, with_dtype(network, dtype) as substituted:
        x = prepare_inputs(network, cast_like(x, dtype))
        if mode == "eval":
            check_sample_independence(network, x)
        return ntk_blocks(
            network,
            x,
            x2 if x2 is None else cast_like(x2, dtype),
            traced=outputs == "traced",
            max_bytes=max_bytes,
            chunk_size=chunk_size,
            substituted=substituted,
            one_pass=mode == "train",
        )
