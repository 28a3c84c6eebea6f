"""What a spec names: its data as they are trained on, and its untrained network."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from gapscope.base.files import to_json
from gapscope.base.randomness import stream_seed
from gapscope.base.specs import DataSpec, Spec
from gapscope.data import Problem, prepare
from gapscope.networks import build
from gapscope.pools.normalization import normalized


@lru_cache(maxsize=2)
def _prepared(data: str, root: str | None) -> tuple[Problem, dict[str, Any]]:
    """Data of a spec; a worker's next run often uses the same."""
    return prepare(DataSpec.from_dict(json.loads(data)), root=root)


def prepared(spec: Spec, root: str | None) -> tuple[Problem, dict[str, Any]]:
    """Return the (corrupted) data of a spec and the facts about the corruption, cached for the last two."""
    return _prepared(to_json(spec.data.to_dict()), root)


def build_network(spec: Spec, problem: Problem) -> nn.Module:
    """Return the untrained network of a spec: always the same weights for the same spec."""
    network = build(
        spec.network.name,
        input_shape=problem.input_shape,
        n_outputs=problem.n_outputs,
        initialization=spec.network.initialization,
        generator=torch.Generator().manual_seed(stream_seed(spec.seed, "initial weights")),
        **spec.network.options,
    )
    return normalized(network, spec, problem)
