"""Outputs under Gaussian noise on the inputs: what the measures of output sensitivity share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import stream_seed
from gapscope.base.samples import as_samples
from gapscope.inspection.outputs import network_outputs, ready_inputs

Space = Literal["logits", "probabilities"]
SPACES = ("logits", "probabilities")


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


def random_source(generator: torch.Generator | None, device: torch.device) -> torch.Generator:
    """Return `generator`, or a fresh one with a fixed seed: the same noise for every network that is compared.

    The seed is none that inputs are likely to be drawn with: noise that repeats the inputs would only rescale them.
    """
    return torch.Generator(device).manual_seed(stream_seed(0, "input noise")) if generator is None else generator


def output_shifts(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    *,
    noise_std: float,
    draws: int,
    space: Space,
    generator: torch.Generator | None,
    chunk_size: int,
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
        chunk_size: Samples a forward pass.

    Yields:
        The shifts of one draw.
    """

    def outputs(inputs: Tensor) -> Tensor:
        return in_space(network_outputs(network, inputs, chunk_size=chunk_size).cpu().double(), space)

    source = random_source(generator, x.device)
    clean = outputs(x)
    for _ in range(draws):
        noise = torch.randn(x.shape, generator=source, device=source.device, dtype=x.dtype)
        yield outputs(noise.to(x.device).mul_(noise_std).add_(x)) - clean
