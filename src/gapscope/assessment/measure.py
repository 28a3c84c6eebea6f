"""The front door: measure a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.randomness import stream_seed
from gapscope.base.records import Readings
from gapscope.base.samples import Samples, as_samples
from gapscope.measures.registry import Measure, get_measure, measures


def select_measures(names: Sequence[str] | None, samples: Samples, *, has_initial: bool) -> list[Measure]:
    """Return the named measures, or when `names` is None all that these data allow and whose cost is linear in n."""
    if names is None:
        known = measures().values()
        return [item for item in known if item.by_default and item.applies_to(samples, has_initial=has_initial)]
    if isinstance(names, str):
        names = [names]
    return [get_measure(name) for name in names]


def measure(
    network: nn.Module,
    data: Any,
    measures: Sequence[str] | None = None,
    *,
    initial: Mapping[str, Tensor] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> Readings:
    """Measure a network and return the readings: values with direction, units and standard error.

    The network is left exactly as it was: weights, buffers, modes, gradients and all random states.

    Args:
        network: A module that returns raw outputs [n, K].
        data: A pair (x, y), inputs alone, Samples, a Dataset or a DataLoader.
        measures: Names of measures; None takes every registered measure that the data allow, except those whose cost
            grows faster than the number of samples (such as ntk_logdet): name these.
        initial: The state dictionary before training, for measures that need it.
        options: Measure name -> keyword options of that measure.
        seed: Seed of the measures that draw noise or probes; each has a stream of its own.

    Returns:
        The readings, in the order of the measures.

    Raises:
        InvalidInput: Names, options, data and network do not fit together.
        GapscopeError: A measure has no value for this network; a note says which.

    >>> readings = measure(nn.Linear(3, 2), torch.ones(4, 3), ["parameter_count"])
    >>> readings["parameter_count"].value
    8.0
    """
    samples = as_samples(data)
    options = options or {}
    chosen = select_measures(measures, samples, has_initial=initial is not None)
    names = [item.name for item in chosen]
    for name in options:
        if name not in names:
            raise InvalidInput(f"options must be for measures that are taken, {', '.join(names)}; got {name!r}.")
    readings: list[Any] = []
    for item in chosen:
        given = dict(options.get(item.name, {}))
        if "generator" in item.options:
            given.setdefault("generator", torch.Generator().manual_seed(stream_seed(seed, item.name)))
        try:
            readings.extend(item(network, samples, initial=initial, **given))
        except GapscopeError as error:
            error.add_note(f"while measuring {item.name} of {type(network).__name__} on {list(samples.inputs.shape)}")
            raise
    return Readings(readings)
