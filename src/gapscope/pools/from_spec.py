"""Training data and untrained network of a spec."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gapscope.base.files import to_json
from gapscope.base.randomness import derive_seed
from gapscope.base.specs import DataSpec, RunSpec
from gapscope.data import Problem, prepare
from gapscope.networks import build_network
from gapscope.pools.normalization import apply_normalization


@lru_cache(maxsize=2)
def _prepare_cached(data: str, root: str | Path | None) -> tuple[Problem, dict[str, Any]]:
    """Prepare the data of a spec (cached, since a worker's next run often uses the same data)."""
    return prepare(DataSpec.from_dict(json.loads(data)), root=root)


def prepare_data(spec: RunSpec, root: str | Path | None) -> tuple[Problem, dict[str, Any]]:
    """Return the data of a spec and the metadata of their corruption (cached)."""
    return _prepare_cached(to_json(spec.data.to_dict()), root)


def network_from_spec(spec: RunSpec, problem: Problem) -> nn.Module:
    """Return the untrained network of a spec (equal specs have equal weights)."""
    network = build_network(
        spec.network.name,
        input_shape=problem.input_shape,
        n_outputs=problem.n_outputs,
        initialization=spec.network.initialization,
        generator=torch.Generator().manual_seed(derive_seed(spec.seed, "initial weights")),
        **spec.network.options,
    )
    return apply_normalization(network, spec, problem)
