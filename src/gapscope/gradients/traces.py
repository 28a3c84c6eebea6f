r"""Squared norms of per-sample Jacobians, $\lVert J_n^\top v_n \rVert^2$, over cotangents."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.samples import slices_of
from gapscope.gradients.tape import Tape, record_forward
from gapscope.gradients.verification import verify
from gapscope.inspection.execution import compute_distributed
from gapscope.inspection.outputs import DEFAULT_CHUNK_SIZE, samples_per_pass


def one_hot_cotangents(outputs: Float[Tensor, "n k"]) -> Float[Tensor, "k n k"]:
    """Return the cotangents that select each output once, for all samples alike."""
    n, k = outputs.shape
    return torch.eye(k, dtype=outputs.dtype, device=outputs.device)[:, None].expand(k, n, k)


def square_norms(
    tape: Tape, outputs: Float[Tensor, "n k"], cotangents: Float[Tensor, "c n k"], *, create_graph: bool = False
) -> Float[Tensor, " n"]:
    r"""Return each sample's squared gradient norm, summed over cotangents.

    In at least float32; differentiable once with `create_graph`.
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
    at_most: int = DEFAULT_CHUNK_SIZE,
) -> Float[Tensor, "p n"]:
    """Return the trace of every sample's kernel block in float64, unscaled.

    Exactly (one row), or one row per probe. A pass has at most `at_most` samples if `chunk_size` is None.
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

    def traces_of_range(stretch: slice) -> Tensor:
        return torch.cat([traces(x[part], part) for part in slices_of(stretch, chunk_size)], dim=1)

    return compute_distributed(len(x), traces_of_range, dim=1)
