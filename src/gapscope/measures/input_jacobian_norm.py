"""Norm of the input Jacobian."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import check_choice
from gapscope.base.samples import slices
from gapscope.gradients.backward import input_gradient
from gapscope.inspection.counted_outputs import counted_of
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    samples_per_pass,
)
from gapscope.measures._forward import FloatInputs, number_of_outputs
from gapscope.measures._noise import SPACES, Space, continuous_inputs, in_space
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.estimate import Estimate


def squared_products(
    network: nn.Module,
    x: FloatInputs,
    cotangents: Float[Tensor, "m _ k"],
    space: Space,
    chunk_size: int | None,
) -> Float[Tensor, "m n"]:
    r"""Return the squared vector-Jacobian products of every cotangent and sample.

    $\lVert J_i^\top v_{ji} \rVert^2$ for cotangent j and $J_i = \partial f / \partial x$ at sample i, in float64 on the
    CPU. One forward and m backward passes per chunk: samples are independent in evaluation mode, so the gradient of the
    sum over a chunk contains the product of every sample.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        cotangents: One per sample, [m, n, k], or the same for all samples, [m, 1, k].
        space: "logits" or "probabilities": what is differentiated.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    """
    m, _, k = cotangents.shape
    cotangents = cotangents.expand(m, len(x), k)
    counted = counted_of(network, k, cotangents.device)
    if counted is not None and len(counted) == len(x):
        cotangents = cotangents * counted
    products = torch.zeros(m, len(x), dtype=torch.float64)

    def one_pass(first: Tensor) -> Any:
        return squared_products(network, first, cotangents[:1, : len(first)], space, len(first))

    chunk_size = samples_per_pass(network, x, chunk_size, one_pass=one_pass, at_most=128)
    for part in slices(len(x), chunk_size):
        inputs = x[part].clone().requires_grad_()
        outputs = in_space(checked_outputs(network(inputs), len(inputs)).double(), space)
        for j in range(m):
            weights = cotangents[j, part].to(outputs)
            gradient = input_gradient(
                network, outputs, inputs, weights, create_graph=False, retain_graph=j < m - 1
            )
            products[j, part] = gradient.flatten(1).double().square().sum(1).cpu()
    return products


def squared_jacobian_norms(
    network: nn.Module, x: FloatInputs, space: Space, chunk_size: int | None
) -> Float[Tensor, " n"]:
    """Return the squared Frobenius norm of every Jacobian, by one backward pass per output."""
    k = number_of_outputs(network, x)
    one_hot = torch.eye(k, dtype=torch.float64)[:, None, :]
    return squared_products(network, x, one_hot, space, chunk_size).sum(0)


@register_measure(
    title="response of the outputs to small input changes (input Jacobian)",
    numbers=ScalarInfo(
        "output units / input unit",
        "lower",
        "mean over samples of the Frobenius norm over outputs and input entries",
    ),
    cost_class="many",
    sampling=Sampling("mean", 64, lambda k: 1 + 2 * k),
    reference="Novak et al., Sensitivity and Generalization in Neural Networks, 2018, section 3.1",
)
def input_jacobian_norm(
    network: nn.Module,
    x: FloatInputs,
    *,
    space: Space = "logits",
    chunk_size: int | None = None,
) -> Estimate:
    r"""Compute the mean norm of the input Jacobian.

    $J = \frac1n \sum_i \lVert \partial f(x_i) / \partial x \rVert_F$, exact, by one backward pass per output.

    Args:
        network: Network that returns raw outputs [n, K]; logits if labels are needed.
        x: Inputs [n, ...], usually the training data.
        space: "logits" before the softmax, "probabilities" after it (as in the reference).
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    >>> layer = nn.Linear(4, 1, bias=False)
    >>> _ = nn.init.constant_(layer.weight, 1.5)
    >>> input_jacobian_norm(layer, torch.zeros(5, 4))  # |w| = sqrt(4) * 1.5
    3
    """
    check_choice("space", space, SPACES)
    with measurement_mode(network) as network:
        x = continuous_inputs(network, x)
        check_sample_independence(network, x)
        squares = squared_jacobian_norms(network, x, space, chunk_size)
    return Estimate(squares.sqrt().mean().item())
