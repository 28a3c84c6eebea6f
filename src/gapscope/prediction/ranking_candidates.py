"""Candidates of `rank_networks`: names, specs, modules, functions and pairs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.samples import Samples
from gapscope.base.specs import NetworkSpec
from gapscope.base.type_guards import is_list_or_tuple, is_mapping
from gapscope.networks.factory import build_network
from gapscope.networks.initialization import initialize
from gapscope.prediction.loo_rows import with_new_head

Candidate = str | NetworkSpec | nn.Module | Callable[[], nn.Module] | tuple[Any, Any]


def name_candidates(candidates: Mapping[str, Candidate] | Sequence[Candidate]) -> dict[str, Any]:
    """Return name -> candidate, naming those of a list by registry name or class."""
    if is_mapping(candidates):
        named = {str(name): candidate for name, candidate in candidates.items()}
    elif is_list_or_tuple(candidates):
        named = {}
        for candidate in candidates:
            network = candidate[0] if isinstance(candidate, tuple) else candidate
            base = network if isinstance(network, str) else getattr(network, "name", None)
            base = base if isinstance(base, str) else getattr(network, "__name__", type(network).__name__)
            number = 2
            name = base
            while name in named:
                name, number = f"{base} {number}", number + 1
            named[name] = candidate
    else:
        raise InvalidInput(
            f"candidates must be a mapping from names to networks, or a list; got {type(candidates).__name__}. Pass "
            "{name: network}."
        )
    if not named:
        raise InvalidInput("candidates must hold one network or more; got none. Pass {name: network}.")
    return named


def instantiate(name: str, candidate: Any, samples: Samples, seed: int) -> NetworkSpec | nn.Module:
    """Return the spec or module of a candidate (a module is never changed)."""
    if isinstance(candidate, tuple):
        if len(candidate) != 2:
            raise InvalidInput(
                f"A candidate pair must be (network, head); {name!r} holds {len(candidate)} values. Pass two."
            )
        network = instantiate(name, candidate[0], samples, seed)
        if isinstance(network, NetworkSpec):
            raise InvalidInput(f"A head replaces the last layer of a module; {name!r} is a spec. Pass the spec alone.")
        n_classes = (
            int(samples.targets.max()) + 1 if samples.targets is not None and samples.is_classification else None
        )
        return with_new_head(network, samples, candidate[1], n_classes, seed)
    if isinstance(candidate, str):
        return NetworkSpec(name=candidate)
    network = candidate if isinstance(candidate, NetworkSpec | nn.Module) or not callable(candidate) else candidate()
    if not isinstance(network, NetworkSpec | nn.Module):
        raise InvalidInput(
            f"Candidates must be names, NetworkSpecs, modules, functions without arguments that return one, or pairs "
            f"(network, head); {name!r} is {type(network).__name__}. Pass a module."
        )
    return network


def count_outputs(samples: Samples, n_outputs: int | None) -> int:
    """Return the number of outputs that networks given by spec need."""
    if n_outputs is not None:
        check_range("n_outputs", n_outputs, 1)
        return n_outputs
    if samples.targets is None:
        raise InvalidInput("n_outputs must be given if the data have no targets; got inputs alone. Pass n_outputs.")
    return int(samples.targets.max()) + 1 if samples.is_classification else samples.targets.shape[1]


def build_untrained(
    candidate: NetworkSpec | nn.Module, samples: Samples, n_outputs: int | None, initialization: str, seed: int
) -> nn.Module:
    """Return a new network of a spec, or a reinitialized copy of a module."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(candidate, nn.Module):
        with torch.inference_mode(False):
            network = copy.deepcopy(candidate)
        initialize(network, initialization, generator)
        return network
    return build_network(
        candidate.name,
        input_shape=tuple(samples.inputs.shape[1:]),
        n_outputs=count_outputs(samples, n_outputs),
        initialization=initialization,
        generator=generator,
        **candidate.options,
    )
