"""Mixup within a class: partners, mixed samples and their logits."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import slices
from gapscope.inspection.losses import class_logits
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import check_labels, checked_outputs, measurement_mode, samples_per_pass
from gapscope.measures._noisy_outputs import continuous_inputs
from gapscope.measures._types import Labels

# measures of this stream use the same pairs
STREAM = "mixup"


@memoize
def same_class_partners(y: Labels, generator: torch.Generator | None) -> Int[Tensor, " n"]:
    """Return a partner of the same class for each sample: a random cyclic order per class.

    A sample that is the only one of its class is its own partner.
    """
    source = resolve_generator(generator, STREAM)
    y = y.cpu()
    found = torch.arange(len(y))
    for label in y.unique():
        members = (y == label).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=source)]
        found[members] = members.roll(1)
    return found


def mixup(x: Tensor, pairs: Int[Tensor, " n"], part: slice) -> Tensor:
    """Return a part of the samples, each mixed half and half with its partner."""
    return (x[part] + x[pairs[part].to(x.device)]) / 2


@memoize
def mixed_logits(
    network: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None, chunk_size: int | None
) -> Float[Tensor, "n c"]:
    """Return the logits of all samples mixed with their partners, in float64 on the CPU."""
    pairs, outputs = same_class_partners(y, generator), []
    with measurement_mode(network) as network, torch.no_grad():
        x = continuous_inputs(network, x)
        for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
            inputs = mixup(x, pairs, part)
            outputs.append(checked_outputs(network(inputs), len(inputs)).double().cpu())
    logits = class_logits(torch.cat(outputs))
    check_labels(y, logits.shape[1])
    return logits
