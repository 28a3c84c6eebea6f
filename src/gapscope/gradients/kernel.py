"""The empirical neural tangent kernel, block by block within a byte budget."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.base.errors import check_range
from gapscope.base.samples import slices
from gapscope.gradients.contributions import Contribution, densely_combined
from gapscope.gradients.recording import recorded
from gapscope.gradients.self_check import verify
from gapscope.gradients.tape import Tape
from gapscope.gradients.traces import every_output
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.outputs import ready_inputs

Contributions = Mapping[tuple[int, ...], Contribution]

# Samples whose first forward pass is made whole; of more, one is looked at to see what the budget allows.
_SMALL = 32


def in_precision(network: nn.Module, x: Tensor, dtype: torch.dtype | None) -> tuple[nn.Module, Tensor]:
    """Return the network and inputs in a floating-point type, as copies; the very objects where `dtype` is None."""
    if dtype is None:
        return network, x
    with torch.inference_mode(False):
        return copy.deepcopy(network).to(dtype), x.to(dtype) if x.is_floating_point() else x


def _bytes(tape: Tape, outputs: Tensor) -> int:
    """Bytes of the factors of a pass: inputs of the layers, and derivatives by their outputs once an output."""
    numbers = 0
    for call in tape.calls:
        tensors = [leaf for leaf, _ in call.versions]
        by_output = sum(out.shape.numel() for out in call.outputs)
        if call.rule is None:
            by_output += tape.n * sum(parameter.numel() for parameter in call.parameters.values())
        numbers += sum(tensor.numel() for tensor in tensors) + outputs.shape[1] * by_output
    return numbers * outputs.element_size()


def _contributions(tape: Tape, outputs: Tensor) -> Contributions:
    verify(tape, outputs)
    return tape.contributions(outputs, every_output(outputs))


def _matched(first: Contributions, second: Contributions) -> tuple[Contributions, Contributions]:
    """Bring two chunks, for which a network may have used its parameters differently, to the same keys."""
    common = [key for key in first if key in second and first[key].has_form_of(second[key])]
    sides: list[dict[tuple[int, ...], Contribution]] = []
    for side in (first, second):
        rest = densely_combined([part for key, part in side.items() if key not in common])
        sides.append({key: side[key] for key in common} | rest)
    return sides[0], sides[1]


def _add_block(block: Tensor, first: Contributions, second: Contributions, *, traced: bool, floats: int) -> None:
    if second is not first:
        first, second = _matched(first, second)
    for key, rows in first.items():
        if key in second:
            columns = second[key]
            block += rows.traced_kernel(columns, floats) if traced else rows.kernel(columns, floats)


def kernel(
    network: nn.Module,
    x: Float[Tensor, "n ..."],
    x2: Float[Tensor, "m ..."] | None,
    *,
    traced: bool,
    max_bytes: int | None,
    chunk_size: int | None,
) -> Tensor:
    """Inner products of the gradients of all outputs at all samples, see `gapscope.measures.empirical_ntk`.

    Args:
        network: The network, in the mode in which it is to be looked at.
        x: Inputs of the rows.
        x2: Inputs of the columns; None for those of the rows, of which only half the blocks are computed.
        traced: Whether to sum over equal outputs.
        max_bytes: Bytes for factors and temporaries; None for a quarter of the free memory, at most 1 GiB.
        chunk_size: Samples a chunk; None for as many as `max_bytes` allows.

    Returns:
        [n, C, m, C], or [n, m] where traced.
    """
    x = ready_inputs(network, x)
    max_bytes = memory_budget(x.device, 2**30) if max_bytes is None else max_bytes
    check_range("max_bytes", max_bytes, 1)
    others = x if x2 is None else ready_inputs(network, x2)
    first_pass = recorded(network, x if len(x) <= _SMALL else x[:1])
    if chunk_size is None:
        # Two chunks are held at a time, and a backward pass needs two more for a while.
        chunk_size = max(1, max_bytes * first_pass[0].n // (6 * _bytes(*first_pass)))
    floats = max(1, max_bytes // 32)
    c, dtype = first_pass[1].shape[1], torch.promote_types(first_pass[1].dtype, torch.float32)
    shape = (len(x), len(others)) if traced else (len(x), c, len(others), c)
    result = torch.zeros(shape, dtype=dtype, device=x.device)
    whole = first_pass if chunk_size >= len(x) == first_pass[0].n else None
    del first_pass
    for rows in slices(len(x), chunk_size):
        first = _contributions(*(whole or recorded(network, x[rows])))
        for columns in slices(len(others), chunk_size):
            if x2 is None and columns.start < rows.start:
                continue
            second = first if x2 is None and columns == rows else _contributions(*recorded(network, others[columns]))
            block = result[rows, columns] if traced else result[rows, :, columns]
            _add_block(block, first, second, traced=traced, floats=floats)
            if x2 is None and columns != rows:
                mirrored = result[columns, rows] if traced else result[columns, :, rows]
                mirrored.copy_(block.T if traced else block.permute(2, 3, 0, 1))
    return result
