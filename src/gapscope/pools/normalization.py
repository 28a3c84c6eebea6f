"""Normalization of a spec: inserted into the network and updated during training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn

from gapscope.base.errors import NotMeasurable, check_choice
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples
from gapscope.base.specs import NormalizationSpec, RunSpec
from gapscope.batch_norm import initialize_from_data, refresh_population, replace_batch_norm, weight_normalize
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.data import Problem
from gapscope.penalties.base import Penalty, make_penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty

INITIALIZED_ON = 500
DECAYS_AN_EPOCH, DECAY_DRAWS = 2, 2


def apply_normalization(network: nn.Module, spec: RunSpec, problem: Problem) -> nn.Module:
    """Return the freshly built network with the normalization of its spec.

    All kinds of a seed start from the same weights, except that weight normalization draws directions and sets lengths
    from data, in every layer and on the same samples for all its kinds.

    Args:
        problem: Its training samples show which layer feeds which, and set the lengths of weight normalization.
    """
    chosen, inputs = spec.normalization, problem.train.inputs[:INITIALIZED_ON]
    if chosen == NormalizationSpec():
        return network
    if chosen.only_in:
        names = [name for name, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)]
        check_choice("normalization.only_in", chosen.only_in, names)
        others = [name for name in names if name != chosen.only_in]
        network = replace_batch_norm(network, "none", layers=others, inputs=inputs[:2])
    if chosen.kind != "batch":
        options: dict[str, Any] = {"ghost_size": chosen.emulated_size} if chosen.kind == "ghost" else {}
        network = replace_batch_norm(network, chosen.kind, weight_norm=chosen.weight_norm, inputs=inputs[:2], **options)
    if chosen.weight_norm:
        directions = torch.Generator().manual_seed(derive_seed(spec.seed, "directions"))
        weight_normalize(network).eval()
        initialize_from_data(network, inputs, std=chosen.directions_std, generator=directions)
    return network


def population(spec: RunSpec, train: Samples) -> Samples:
    """Return the random training samples for population statistics and gamma decay."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return train.subset(order[: spec.normalization.population_samples])


def penalties_of(spec: RunSpec, problem: Problem) -> list[Penalty]:
    """Return a spec's penalties, with gamma decay in place of batch statistics."""
    penalties = [make_penalty(item.name, item.options) for item in spec.training.penalties]
    chosen = spec.normalization
    if chosen.kind == "population" and chosen.emulated_size:
        steps = max(1, len(problem.train) // spec.training.batch_size)
        decay = GammaDecayPenalty(
            batch_size=chosen.emulated_size, every=max(1, steps // DECAYS_AN_EPOCH),
            data=population(spec, problem.train), draws=DECAY_DRAWS, seed=spec.seed,
        )  # fmt: skip
        penalties.append(decay)
    return penalties


@contextmanager
def population_statistics(network: nn.Module, spec: RunSpec, problem: Problem) -> Iterator[Callable[[], None]]:
    """Measure population statistics before every forward pass in training mode.

    The paper (Luo et al. 2019) does not say how often they are measured. Once an epoch, or every eighth step, a
    ResNet-18 diverges at the paper's learning rates: statistics that are a few steps old no longer normalize, layer
    upon layer. So they are measured before every step.

    Yields:
        A function that measures the statistics of all layers again (nothing for other kinds of normalization).
    """
    if spec.normalization.kind != "population":
        yield lambda: None
        return
    samples = population(spec, problem.train)

    def refresh() -> None:
        with suppress(NotMeasurable):  # the network has diverged, as its loss will say
            refresh_population(network, samples, samples=len(samples))

    def before_step(network: nn.Module, inputs: Any) -> None:
        if network.training:
            refresh()

    hook = network.register_forward_pre_hook(before_step)
    try:
        yield refresh
    finally:
        hook.remove()
