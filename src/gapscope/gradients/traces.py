r"""Squared norms of per-sample Jacobians, $\lVert J_n^\top v_n \rVert^2$, over cotangents."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.samples import slices_of
from gapscope.gradients.recording import record_forward
from gapscope.gradients.tape import Tape
from gapscope.gradients.verification import verify
from gapscope.inspection.counted_outputs import counted_of
from gapscope.inspection.execution import compute_distributed
from gapscope.inspection.outputs import samples_per_pass

# Up to so many samples, with so many entries in all (32 images of CIFAR-10 and a quarter more), are run at once in the
# first pass, which finds the number of outputs; of more only one.
_SMALL, _FEW_ENTRIES = 32, 2**17


def one_hot_cotangents(outputs: Float[Tensor, "n k"]) -> Float[Tensor, "k n k"]:
    """Return the cotangents that select each output once, for all samples alike."""
    n, k = outputs.shape
    return torch.eye(k, dtype=outputs.dtype, device=outputs.device)[:, None].expand(k, n, k)


def square_norms(
    tape: Tape,
    outputs: Float[Tensor, "n k"],
    cotangents: Float[Tensor, "c n k"],
    *,
    create_graph: bool = False,
) -> Float[Tensor, " n"]:
    r"""Return each sample's squared gradient norm, summed over cotangents.

    In at least float32; differentiable once with `create_graph`.
    """
    verify(tape, outputs, differentiated=len(cotangents) if create_graph else 0)
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
    max_gradients: int = 1024,  # of single outputs per pass; limits the memory
) -> Float[Tensor, "p n"]:
    """Return the trace of every sample's kernel block in float64, unscaled.

    Exactly (one row), or one row per probe. A pass has at most `max_gradients` gradients of single outputs (of probes)
    if `chunk_size` is None.
    """
    full_pass: tuple[Tape, Tensor] | None = None
    at_most = max_gradients
    if chunk_size is None and probes is None:
        is_small = len(x) <= _SMALL and x.numel() <= _FEW_ENTRIES
        first = record_forward(network, x if is_small else x[:1])
        at_most = max(1, max_gradients // first[1].shape[1])
        full_pass = first if first[0].n == len(x) <= at_most else None

    def traces(part: slice) -> Tensor:
        if full_pass is not None and part == slice(0, len(x)):
            tape, outputs = full_pass
        else:
            tape, outputs = record_forward(network, x[part])
        if probes is None:
            weightings = [one_hot_cotangents(outputs)]
        else:
            weightings = [probe[None, part] for probe in probes.to(outputs)]
        counted = counted_of(network, outputs.shape[1], outputs.device)
        if counted is not None:
            weightings = [weighting * counted[part] for weighting in weightings]
        return torch.stack(
            [square_norms(tape, outputs, weighting).double() for weighting in weightings]
        )

    def one_pass(first: Tensor) -> list[Tensor]:
        # unverified: the verification holds copies of the weights, as many for one sample as for all
        tape, outputs = record_forward(network, first)
        if probes is None:
            weighting = one_hot_cotangents(outputs)
        else:
            weighting = probes[:1, : len(first)].to(outputs)
        return [part.square_norms() for part in tape.contributions(outputs, weighting).values()]

    if full_pass is None:
        chunk_size = samples_per_pass(network, x, chunk_size, one_pass=one_pass, at_most=at_most)
    else:
        chunk_size = at_most

    def traces_of_range(stretch: slice) -> Tensor:
        return torch.cat([traces(part) for part in slices_of(stretch, chunk_size)], dim=1)

    return compute_distributed(len(x), traces_of_range, dim=1)
