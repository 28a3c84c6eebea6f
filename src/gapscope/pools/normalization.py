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
from gapscope.batch_norm import (
    initialize_from_data,
    refresh_population,
    replace_batch_norm,
    weight_normalize,
)
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.data import Problem
from gapscope.penalties.base import Penalty, make_penalty
from gapscope.penalties.gamma_decay import GammaDecayPenalty

# by judgment: the decay must not cost more than the training
DECAYS_PER_EPOCH, DECAY_DRAWS = 2, 2


def apply_normalization(network: nn.Module, spec: RunSpec, problem: Problem) -> nn.Module:
    """Return the freshly built network with the normalization of its spec.

    For equal seeds all kinds of normalization start from the same weights. The exception is weight normalization: it
    samples directions and sets the lengths from the first training samples, equally for all kinds.
    """
    # of 500 samples, the standard deviations are within about 3 %
    settings = spec.normalization
    inputs = problem.train.inputs[:500]
    if settings == NormalizationSpec():
        return network
    if settings.only_in:
        names = [name for name, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)]
        check_choice("normalization.only_in", settings.only_in, names)
        removed = [name for name in names if name != settings.only_in]
        network = replace_batch_norm(network, "none", layers=removed, inputs=inputs[:2])
    if settings.kind != "batch":
        options: dict[str, Any] = (
            {"ghost_size": settings.emulated_size} if settings.kind == "ghost" else {}
        )
        options["weight_norm"] = settings.weight_norm
        network = replace_batch_norm(network, settings.kind, inputs=inputs[:2], **options)
    if settings.weight_norm:
        directions = torch.Generator().manual_seed(derive_seed(spec.seed, "directions"))
        weight_normalize(network).eval()
        initialize_from_data(network, inputs, std=settings.directions_std, generator=directions)
    return network


def population_samples(spec: RunSpec, train: Samples) -> Samples:
    """Return the random training samples for population statistics and gamma decay."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    return train.subset(order[: spec.normalization.population_samples])


def make_penalties(spec: RunSpec, problem: Problem) -> list[Penalty]:
    """Return a spec's penalties, with gamma decay in place of batch statistics."""
    penalties = [make_penalty(item.name, item.options) for item in spec.training.penalties]
    settings = spec.normalization
    if settings.kind == "population" and settings.emulated_size:
        steps = max(1, len(problem.train) // spec.training.batch_size)
        decay = GammaDecayPenalty(
            batch_size=settings.emulated_size,
            every=max(1, steps // DECAYS_PER_EPOCH),
            data=population_samples(spec, problem.train),
            draws=DECAY_DRAWS,
            seed=spec.seed,
        )
        penalties.append(decay)
    return penalties


@contextmanager
def population_statistics(
    network: nn.Module, spec: RunSpec, problem: Problem
) -> Iterator[Callable[[], None]]:
    """Measure population statistics before every forward pass in training mode.

    Luo et al. 2019 do not state how often they are measured. With statistics that are eight steps old or more, a
    ResNet-18 diverges at the paper's learning rates, since their errors accumulate over the layers.

    Yields:
        A function that measures the statistics again (it does nothing for other kinds of normalization).
    """
    if spec.normalization.kind != "population":
        yield lambda: None
        return
    samples = population_samples(spec, problem.train)

    def refresh() -> None:
        with suppress(NotMeasurable):  # the network has diverged; its loss is not finite either
            refresh_population(network, samples, samples=len(samples))

    def before_step(network: nn.Module, inputs: Any) -> None:
        if network.training:
            refresh()

    hook = network.register_forward_pre_hook(before_step)
    try:
        yield refresh
    finally:
        hook.remove()
