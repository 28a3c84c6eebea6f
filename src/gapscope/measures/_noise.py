"""Outputs at noisy inputs and at mixed samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import as_samples, slices, slices_of
from gapscope.base.targets import check_labels
from gapscope.base.task import check_no_invalid, class_logits, has_no_largest
from gapscope.inspection.execution import compute_distributed
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.measures._forward import FloatInputs, Labels

Space = Literal["logits", "probabilities"]
SPACES = ("logits", "probabilities")
# a stream of its own: noise that repeats the random numbers of generated inputs would only rescale them
NOISE = "input noise"
# number of samples that share noise magnitudes, if a sample has at least so many entries (see `InputNoise`)
_N_SHARING, _MIN_ENTRIES = 8, 256
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def continuous_inputs(network: nn.Module, x: Tensor) -> Tensor:
    """Return floating-point `x` on the network's device, or raise InvalidInput."""
    x = as_samples(x).inputs
    if not x.is_floating_point():
        raise InvalidInput(
            f"inputs must be floating point, to be shifted or differentiated; got {x.dtype}. "
            "For token ids, measure the part of the network after its embedding."
        )
    return prepare_inputs(network, x)


def in_space(outputs: Tensor, space: Space) -> Tensor:
    """Return raw outputs unchanged, or as probabilities."""
    if space == "probabilities":
        return outputs.softmax(1)
    return outputs


class InputNoise:
    r"""Standard normal noise in the shape of the inputs, cheap to sample.

    Sampling normal numbers can take longer than a forward pass; random signs cost almost nothing. Eight consecutive
    samples of 256 entries or more therefore share the magnitudes |z| of their noise, and each has its own signs. The
    noise of one sample is normal with independent entries. Between samples entries are uncorrelated, as are linear
    functions $w \cdot z$. Squares of these have the correlation $\sum_j w_j^4 / (\sum_j w_j^2)^2$ within the eight, the
    inverse of the effective number of entries; the variance of a mean of squares over samples grows by 7 times this
    correlation, 3 % for 256 equal weights.
    """

    def __init__(self, x: FloatInputs, source: torch.Generator) -> None:
        self._shape = x.shape
        entries = x[0].numel()
        device = source.device
        self._n_sharing = 1
        if entries >= _MIN_ENTRIES:
            self._n_sharing = _N_SHARING
        groups = -(-len(x) // self._n_sharing)
        self._magnitudes = torch.randn(
            groups, 1, entries, generator=source, device=device, dtype=x.dtype
        )
        if self._n_sharing > 1:
            # one integer of the width of x.dtype per entry: its highest eight bits are the signs of eight samples
            n_words = -(-entries * x.element_size() // 8)
            words = torch.empty(groups, 1, n_words, dtype=torch.int64, device=device).random_(
                -(2**63), None, generator=source
            )
            self._bits = words.view(_INTEGERS[x.element_size()])[..., :entries]

    def __getitem__(self, part: slice) -> Float[Tensor, "m ..."]:
        """Return the noise of consecutive samples."""
        first = part.start // self._n_sharing
        last = -(-part.stop // self._n_sharing)
        noise = self._magnitudes[first:last]
        if self._n_sharing > 1:
            # a shift by k makes bit k from the left the sign bit of a floating-point number
            shifts = torch.arange(self._n_sharing, dtype=self._bits.dtype, device=noise.device)[
                :, None
            ]
            # [groups, samples per group, entries]
            signs = (self._bits[first:last] << shifts).view(noise.dtype)
            noise = torch.copysign(noise, signs)
        rows = noise.flatten(0, 1)[part.start - first * self._n_sharing :][: part.stop - part.start]
        return rows.view(-1, *self._shape[1:])


def output_shifts(
    network: nn.Module,
    x: FloatInputs,
    noise_std: float,
    draws: int,
    space: Space,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> Iterator[Float[Tensor, "n k"]]:
    """Yield f(x + noise) - f(x) per noise sample, in float64 on the CPU.

    The noise does not depend on `chunk_size`; see `InputNoise`.
    """
    chunk_size = samples_per_pass(network, x, chunk_size, at_most=256)

    @torch.no_grad()
    def outputs(noise: InputNoise | None = None) -> Tensor:
        def outputs_of_process(stretch: slice) -> Tensor:
            results = []
            for part in slices_of(stretch, chunk_size):
                rows = x[part]
                if noise is not None:
                    rows = rows.add(noise[part].to(x.device), alpha=noise_std)
                results.append(checked_outputs(network(rows), len(rows)))
            return torch.cat(results)

        return in_space(compute_distributed(len(x), outputs_of_process).cpu().double(), space)

    source = resolve_generator(generator, NOISE, x.device)
    clean = outputs()
    for _ in range(draws):
        yield outputs(InputNoise(x, source)) - clean


# measures of this stream use the same pairs
STREAM = "mixup"


def same_class_partners(y: Labels, generator: torch.Generator | None) -> Int[Tensor, " n"]:
    """Return a partner of the same class for each sample, next in a random cyclic order.

    The only sample of a class is its own partner.
    """
    source = resolve_generator(generator, STREAM)
    y = y.cpu()
    result = torch.arange(len(y))
    for label in y.unique():
        members = (y == label).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=source)]
        result[members] = members.roll(1)
    return result


def random_groups(
    n: int, size: int, generator: torch.Generator | None, purpose: str
) -> list[Int[Tensor, " m"]]:
    """Return random groups of `size` out of n samples, without an incomplete one.

    Fewer than two groups overlap in place of it: eight, so that their spread shows how random they are.
    """
    if n <= size:
        return [torch.arange(n)]
    source = resolve_generator(generator, purpose)
    orders = [torch.randperm(n, generator=source) for _ in range(1 if n >= 2 * size else 8)]
    return [part for order in orders for part in order.split(size) if len(part) == size]


@memoize
def mixed_logits(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: torch.Generator | None,
    chunk_size: int | None,
) -> Float[Tensor, "n c"]:
    """Return the logits of all samples mixed with their partners, in float64 on the CPU."""
    pairs = same_class_partners(y, generator)
    outputs = []
    with measurement_mode(network) as network, torch.no_grad():
        x = continuous_inputs(network, x)
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            inputs = (x[part] + x[pairs[part].to(x.device)]) / 2
            outputs.append(checked_outputs(network(inputs), len(inputs)).double().cpu())
    logits = class_logits(torch.cat(outputs))
    check_labels(y, logits.shape[1])
    check_no_invalid(int(has_no_largest(logits).sum()), len(logits))
    return logits
