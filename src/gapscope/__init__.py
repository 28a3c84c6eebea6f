"""Measure, watch, predict and improve how a neural network generalises, from its training data alone.

Public names are loaded when they are first used: importing gapscope alone loads nothing heavy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gapscope.assessment import measure as measure
    from gapscope.measures.accuracy import accuracy as accuracy
    from gapscope.measures.distance_from_initialization import (
        distance_from_initialization as distance_from_initialization,
    )
    from gapscope.measures.loss import loss as loss
    from gapscope.measures.parameter_count import parameter_count as parameter_count
    from gapscope.measures.parameter_norm import parameter_norm as parameter_norm
    from gapscope.penalties.weight import WeightPenalty as WeightPenalty
    from gapscope.pools.grid import Grid as Grid
    from gapscope.pools.pool import Pool as Pool
    from gapscope.records import Estimate as Estimate
    from gapscope.records import Reading as Reading
    from gapscope.records import Readings as Readings
    from gapscope.records import Record as Record
    from gapscope.samples import Samples as Samples
    from gapscope.specs import DataSpec as DataSpec
    from gapscope.specs import NetworkSpec as NetworkSpec
    from gapscope.specs import PenaltySpec as PenaltySpec
    from gapscope.specs import Spec as Spec
    from gapscope.specs import TrainingSpec as TrainingSpec
    from gapscope.training import train as train

__version__ = "0.1.0"

_PUBLIC = {
    "measure": "assessment",
    "accuracy": "measures.accuracy",
    "distance_from_initialization": "measures.distance_from_initialization",
    "loss": "measures.loss",
    "parameter_count": "measures.parameter_count",
    "parameter_norm": "measures.parameter_norm",
    "WeightPenalty": "penalties.weight",
    "Grid": "pools.grid",
    "Pool": "pools.pool",
    "Estimate": "records",
    "Reading": "records",
    "Readings": "records",
    "Record": "records",
    "Samples": "samples",
    "DataSpec": "specs",
    "NetworkSpec": "specs",
    "PenaltySpec": "specs",
    "Spec": "specs",
    "TrainingSpec": "specs",
    "train": "training",
}
_SUBPACKAGES = ("data", "estimation", "networks", "normalization", "registry", "report", "theory")


def __getattr__(name: str) -> Any:
    """Load a public name or a sub-package when it is first used.

    Args:
        name: The name.

    Returns:
        The object.

    Raises:
        AttributeError: There is no such public name; the nearest is named.
    """
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"gapscope.{_PUBLIC[name]}"), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"gapscope.{name}")
    else:
        from gapscope.errors import nearest

        raise AttributeError(f"gapscope has no public name {name!r}.{nearest(name, [*_PUBLIC, *_SUBPACKAGES])}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*_PUBLIC, *_SUBPACKAGES, "__version__"])
