"""The empirical neural tangent kernel, block by block within a byte budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.samples import slices
from gapscope.gradients.contributions import Contribution, densely_combined
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.gradients.traces import one_hot_cotangents
from gapscope.gradients.verification import verify
from gapscope.inspection.chunking import memory_budget
from gapscope.inspection.distributed import Processes, processes
from gapscope.inspection.outputs import prepare_inputs
from gapscope.inspection.substitution import ParameterSubstitution, cast_network, of_precision

Contributions = Mapping[tuple[int, ...], Contribution]

# Up to this many samples run in one first pass; of more, one sample measures the memory per sample.
_SMALL = 32


@contextmanager
def with_dtype(network: nn.Module, dtype: torch.dtype | None) -> Iterator[ParameterSubstitution | None]:
    """Compute in a floating-point type in the body (yields the parameter substitution, None if unneeded).

    Raises:
        InvalidInput: The network is compiled by TorchScript in another type.
    """
    tensors = [*network.parameters(), *network.buffers()]
    if dtype is None or all(of_precision(tensor.dtype, dtype) == tensor.dtype for tensor in tensors):
        yield None
        return
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        raise InvalidInput(
            f"dtype must be None for a network that TorchScript has compiled in another type; got {dtype}. "
            "Use dtype=None, or give the network before torch.jit."
        )
    with cast_network(network, dtype) as substituted:
        yield substituted


def check_single_batch(mode: str, chunk_size: int | None) -> None:
    """Raise InvalidInput unless `mode` is known, and training mode is used without chunks."""
    check_choice("mode", mode, ("eval", "train"))
    if mode == "train" and chunk_size is not None:
        raise InvalidInput(
            f'With mode="train" the inputs must be one batch, run in one pass; got chunk_size={chunk_size}. '
            "Leave chunk_size out, and pass as many inputs as a mini-batch has."
        )


def _bytes(tape: Tape, outputs: Tensor) -> int:
    """Estimate the bytes of a pass: inputs of layers, and derivatives by their outputs once per output."""
    rerouted = tape.whole_network | tape.per_sample
    numbers = outputs.shape[1] * tape.n * sum(p.numel() for p in tape.parameters.values() if id(p) in rerouted)
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


def _matched(first: Contributions, second: Contributions) -> tuple[Contributions, Contributions]:
    """Bring two chunks, which may use parameters differently, to the same keys."""
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


def _is_own(row: int, rows: int, among: Processes, *, symmetric: bool) -> bool:
    """Return whether this process computes a row of blocks (dealt from both ends if rows grow shorter)."""
    place = min(row, rows - 1 - row) if symmetric else row
    return place % among.size == among.rank


def ntk_blocks(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    x2: Shaped[Tensor, "m ..."] | None,
    *,
    traced: bool,
    max_bytes: int | None,
    chunk_size: int | None,
    substituted: ParameterSubstitution | None = None,
    one_pass: bool = False,
) -> Tensor:
    """Compute inner products of the gradients of all outputs at all samples: [n, C, m, C], or [n, m] if traced.

    Common parameters: see `gapscope.measures`.

    Args:
        x: Inputs of the rows.
        x2: Inputs of the columns; None for those of the rows, and half of the blocks.
        traced: Whether to sum over equal outputs.
        max_bytes: Bytes for factors and temporaries; None for a quarter of the free memory, at most 1 GiB.
        substituted: Substitution of the parameters, inside `with_dtype`.
        one_pass: Whether rows and columns are each run as one batch, regardless of memory.
    """
    x = prepare_inputs(network, x)
    max_bytes = memory_budget(x.device, 2**30) if max_bytes is None else max_bytes
    check_range("max_bytes", max_bytes, 1)
    others = x if x2 is None else prepare_inputs(network, x2)
    symmetric = x2 is None
    first_pass = record_forward(network, x if one_pass or len(x) <= _SMALL else x[:1], substituted)
    verify(*first_pass)
    if one_pass:
        chunk_size = max(len(x), len(others))
    if chunk_size is None:
        # Two chunks are in memory at a time, and a backward pass temporarily needs two more.
        chunk_size = max(1, max_bytes * first_pass[0].n // (6 * _bytes(*first_pass)))
    among = None if one_pass else processes(len(x))
    if among is not None:
        # the same blocks in every process, and some for each
        chunk_size = among.all_min(min(chunk_size, -(-len(x) // (2 * among.size))))
    floats = max(1, max_bytes // 32)
    c, dtype = first_pass[1].shape[1], torch.promote_types(first_pass[1].dtype, torch.float32)
    shape = (len(x), len(others)) if traced else (len(x), c, len(others), c)
    result = torch.zeros(shape, dtype=dtype, device=x.device)
    whole = first_pass if chunk_size >= len(x) == first_pass[0].n else None
    del first_pass
    for number, rows in enumerate(slices(len(x), chunk_size)):
        if among is not None and not _is_own(number, -(-len(x) // chunk_size), among, symmetric=symmetric):
            continue
        first = _contributions(*(whole or record_forward(network, x[rows], substituted)))
        for columns in slices(len(others), chunk_size):
            if symmetric and columns.start < rows.start:
                continue
            same = symmetric and columns == rows
            second = first if same else _contributions(*record_forward(network, others[columns], substituted))
            block = result[rows, columns] if traced else result[rows, :, columns]
            _add_block(block, first, second, traced=traced, floats=floats)
            if symmetric and not same:
                mirrored = result[columns, rows] if traced else result[columns, :, rows]
                mirrored.copy_(block.T if traced else block.permute(2, 3, 0, 1))
    return result if among is None else among.sum(result)
