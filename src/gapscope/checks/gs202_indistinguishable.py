"""GS202: samples that the network cannot distinguish before training."""

import torch

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.measures.empirical_ntk import empirical_ntk

N, FROM = 64, 0.99


@register_check("GS202", title="samples indistinguishable to the network", seconds=0.5)
def indistinguishable(context: Context) -> Outcome:
    """Report a median NTK correlation above 0.99 between different samples."""
    network = context.initial_network
    if network is None:
        return NotChecked("pass initial_state=, a clone of the state dictionary before training")
    n = min(N, len(context.samples))
    rows = torch.arange(0, len(context.samples), max(1, len(context.samples) // n))[:n]
    kernel = empirical_ntk(network, context.samples.inputs[rows], outputs="traced").double().cpu()
    scale = kernel.diagonal().clamp_min(1e-300).sqrt()
    correlation = kernel / scale[:, None] / scale
    median = float(correlation[~torch.eye(n, dtype=torch.bool)].median())
    if median < FROM:
        return Fine(f"median NTK correlation {median:.2f}")
    return Finding(
        f"the gradients of different samples have a median correlation of {median:.4f}",
        "center the inputs and check their encoding, or use a shallower or normalized network",
        cost=0.15,
    )
