"""Outputs under Gaussian noise on the inputs: what the measures of output sensitivity share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import given_or_repeatable
from gapscope.base.samples import as_samples
from gapscope.inspection.outputs import network_outputs, ready_inputs, samples_per_pass

Space = Literal["logits", "probabilities"]
SPACES = ("logits", "probabilities")
# Purpose of the draws. Inputs are hardly ever drawn from this stream: noise that repeats them would only rescale them.
NOISE = "input noise"


def continuous_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """Return `x`, checked and on the network's device, or say that it can be neither shifted nor differentiated.

    Args:
        network: The network that will see `x`.
        x: Inputs [n, ...].

    Returns:
        The inputs.

    Raises:
        InvalidInput: The inputs are integers, not finite, or of another type than the weights.
    """
    x = as_samples(x).inputs
    if not x.is_floating_point():
        raise InvalidInput(
            f"inputs must be floating point, to be shifted or differentiated; got {x.dtype}. "
            "For token ids, measure the part of the network behind its embedding."
        )
    return ready_inputs(network, x)


def in_space(outputs: Tensor, space: Space) -> Tensor:
    """Return raw outputs as they are, or as probabilities."""
    return outputs.softmax(1) if space == "probabilities" else outputs


def output_shifts(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    *,
    noise_std: float,
    draws: int,
    space: Space,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> Iterator[Float[Tensor, "n k"]]:
    """Yield f(x + noise) - f(x) for one draw of noise after the other, in float64 on the CPU.

    The noise of a draw is made at once for all samples, so that it does not depend on `chunk_size`.

    Args:
        network: The network, in evaluation mode.
        x: Inputs that went through `continuous_inputs`.
        noise_std: Standard deviation of the noise in units of the inputs.
        draws: Number of draws.
        space: What f is: raw outputs or probabilities.
        generator: Source of the noise.
        chunk_size: Samples a pass; None for as many as memory allows.

    Yields:
        The shifts of one draw.
    """
    chunk_size = samples_per_pass(network, x, chunk_size, at_most=256)

    def outputs(inputs: Tensor) -> Tensor:
        return in_space(network_outputs(network, inputs, chunk_size=chunk_size).cpu().double(), space)

    source = given_or_repeatable(generator, NOISE, x.device)
    clean = outputs(x)
    for _ in range(draws):
        noise = torch.randn(x.shape, generator=source, device=source.device, dtype=x.dtype)
        yield outputs(noise.to(x.device).mul_(noise_std).add_(x)) - clean
