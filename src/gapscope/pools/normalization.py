"""Normalization of a spec: inserted into the network and updated during training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, NotMeasurable, did_you_mean
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
        network = replace_batch_norm(network, "none", layers=_all_but(network, chosen.only_in), inputs=inputs[:2])
    if chosen.kind != "batch":
        options: dict[str, Any] = {"ghost_size": chosen.emulated_size} if chosen.kind == "ghost" else {}
        network = replace_batch_norm(network, chosen.kind, weight_norm=chosen.weight_norm, inputs=inputs[:2], **options)
    if chosen.weight_norm:
        directions = torch.Generator().manual_seed(derive_seed(spec.seed, "directions"))
        weight_normalize(network).eval()
        initialize_from_data(network, inputs, std=chosen.directions_std, generator=directions)
    return network


def _all_but(network: nn.Module, name: str) -> list[str]:
    names = [there for there, layer in network.named_modules() if isinstance(layer, BATCH_NORMS)]
    if name not in names:
        raise InvalidInput(
            f"normalization.only_in must name a batch-norm layer of the network, {', '.join(names)}; got {name!r}."
            f"{did_you_mean(name, names)}"
        )
    return [there for there in names if there != name]


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


class PopulationStatistics:
    """Keep population statistics up to date with the weights in the body.

    The paper (Luo et al. 2019) does not say how often they are measured. Once an epoch, or every eighth step, a
    ResNet-18 diverges at the paper's learning rates: statistics that are a few steps old no longer normalize, layer
    upon layer. So they are measured before every step.
    """

    def __init__(self, network: nn.Module, spec: RunSpec, problem: Problem) -> None:
        self.network = network
        self.samples = population(spec, problem.train) if spec.normalization.kind == "population" else None

    def refresh(self) -> None:
        """Measure the statistics of all layers again."""
        if self.samples is None:
            return
        try:
            refresh_population(self.network, self.samples, samples=len(self.samples))
        except NotMeasurable:  # the network has diverged, as its loss will say
            return

    def _before_step(self, network: nn.Module, inputs: Any) -> None:
        if network.training:
            self.refresh()

    @contextmanager
    def refresh_before_steps(self) -> Iterator[None]:
        """Within it, a forward pass in training mode measures the statistics first."""
        if self.samples is None:
            yield
            return
        hook = self.network.register_forward_pre_hook(self._before_step)
        try:
            yield
        finally:
            hook.remove()
