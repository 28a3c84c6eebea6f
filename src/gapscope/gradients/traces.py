r"""Squared norms of per-sample Jacobians, $\lVert J_n^\top v_n \rVert^2$ summed over C weightings v of the outputs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.samples import slices_of
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.gradients.verification import verify
from gapscope.inspection.distributed import compute_distributed
from gapscope.inspection.outputs import MAX_SAMPLES_PER_PASS, samples_per_pass


def one_hot_cotangents(outputs: Float[Tensor, "n k"]) -> Float[Tensor, "k n k"]:
    """Return the weightings that pick each output once, for all samples alike."""
    n, k = outputs.shape
    return torch.eye(k, dtype=outputs.dtype, device=outputs.device)[:, None].expand(k, n, k)


def square_norms(
    tape: Tape, outputs: Float[Tensor, "n k"], cotangents: Float[Tensor, "c n k"], *, create_graph: bool = False
) -> Float[Tensor, " n"]:
    r"""Squared norm of the gradient of each sample's weighted outputs by all weights, summed over the C weightings.

    Args:
        tape: The recorded forward pass.
        outputs: What it returned.
        cotangents: Weightings of the outputs; `every_output` gives the trace of each sample's kernel block.
        create_graph: Whether the result is to be differentiated (once).

    Returns:
        One number per sample, in at least float32.
    """
    verify(tape, outputs, create_graph=create_graph)
    parts = tape.contributions(outputs, cotangents, create_graph=create_graph).values()
    with torch.set_grad_enabled(create_graph), torch.autocast(outputs.device.type, enabled=False):
        if not parts:
            return torch.zeros(tape.n, device=outputs.device)
        return torch.stack([part.square_norms() for part in parts]).sum(0)


def per_sample_traces(
    network: nn.Module,
    x: Shaped[Tensor, "n ..."],
    probes: Float[Tensor, "p n k"] | None,
    *,
    chunk_size: int | None,
    at_most: int = MAX_SAMPLES_PER_PASS,
) -> Float[Tensor, "p n"]:
    """Trace of every sample's kernel block, exactly or by probes, in float64.

    Args:
        network: The network, in the mode in which it is to be looked at.
        x: Inputs.
        probes: One row of results a probe; None for the exact traces, as one row.
        chunk_size: Samples per pass; None for as many as memory allows, `at_most` at the most.
        at_most: The most samples per pass where `chunk_size` is None.

    Returns:
        Unscaled squared norms.
    """

    def traces(x: Tensor, part: slice) -> Tensor:
        tape, outputs = record_forward(network, x)
        weightings = (
            [one_hot_cotangents(outputs)] if probes is None else [probe[None, part] for probe in probes.to(outputs)]
        )
        return torch.stack([square_norms(tape, outputs, weighting).double() for weighting in weightings])

    def one_pass(first: Tensor) -> list[Tensor]:
        # unverified: the verification holds copies of the weights, as many for one sample as for all
        tape, outputs = record_forward(network, first)
        weighting = one_hot_cotangents(outputs) if probes is None else probes[:1, : len(first)].to(outputs)
        return [part.square_norms() for part in tape.contributions(outputs, weighting).values()]

    chunk_size = samples_per_pass(network, x, chunk_size, one_pass=one_pass, at_most=at_most)

    def of(stretch: slice) -> Tensor:
        return torch.cat([traces(x[part], part) for part in slices_of(stretch, chunk_size)], dim=1)

    return compute_distributed(len(x), of, dim=1)
