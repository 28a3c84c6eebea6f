"""Networks before training, with a new last layer."""

from __future__ import annotations

import copy

import torch
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.inspection.threads import RANDOM_STREAMS
from gapscope.inspection.validation import ready
from gapscope.measures._forward import forward_pass


def with_new_head(
    network: nn.Module, samples: Samples, head: str | nn.Module, n_classes: int | None, seed: int
) -> nn.Module:
    """Return a copy of the network with another last layer, "new" or a given module."""
    if head != "new" and not isinstance(head, nn.Module):
        raise InvalidInput(f"head must be 'new', a module or None; got {head!r}.")
    with torch.inference_mode(False):
        network = copy.deepcopy(network)
    prepared = ready(network, Samples(samples.inputs[:8], form=samples.form))
    last = forward_pass(prepared.network, prepared.samples.inputs).head
    if not isinstance(last, nn.Linear):
        raise InvalidInput(
            f"head='new' replaces the last layer, which must be linear; got {type(last).__name__}. Pass a network "
            "whose last layer is nn.Linear, or replace the head yourself."
        )
    if isinstance(head, nn.Linear) and head.in_features != last.in_features:
        raise InvalidInput(
            f"head must take the {last.in_features} features of the last layer; got a layer that takes "
            f"{head.in_features}. Pass nn.Linear({last.in_features}, {head.out_features}), or 'new'."
        )
    name = next(name for name, module in network.named_modules() if module is last)
    new = copy.deepcopy(head) if isinstance(head, nn.Module) else _untrained_head(last, samples, n_classes, seed)
    if not name:
        return new
    network.set_submodule(name, new)
    return network


def _untrained_head(last: nn.Linear, samples: Samples, n_classes: int | None, seed: int) -> nn.Linear:
    assert samples.targets is not None
    k = n_classes or samples.targets.shape[1]
    with RANDOM_STREAMS, torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "new head"))
        new = nn.Linear(last.in_features, k, bias=last.bias is not None)
    return new.to(last.weight.device, last.weight.dtype)
