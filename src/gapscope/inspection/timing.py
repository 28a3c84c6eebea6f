"""CPU seconds of work, from few samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.inspection.outputs import measurement_mode, network_outputs

# Samples of a trial, and its repeats, the fastest of which counts.
TRIAL, TIMINGS = 8, 3


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def smallest_timing(work: Callable[[], Any]) -> float:
    """Return the smallest CPU seconds of three calls."""
    return min(seconds_of(work) for _ in range(TIMINGS))


def pass_seconds(network: nn.Module, x: Tensor) -> float:
    """Return the estimated CPU seconds of a forward pass of all samples, from three passes of few.

    Args:
        network: The network of a `Ready`.
        x: Its inputs [n, ...].
    """
    n = len(x)
    few = x[torch.linspace(0, n - 1, min(n, TRIAL)).long()]
    with measurement_mode(network) as network:
        return (
            smallest_timing(lambda: network_outputs(network, few, chunk_size=TRIAL)) * n / len(few)
        )
