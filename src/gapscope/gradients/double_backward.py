"""Kernels of torch that can be differentiated twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gapscope.inspection.threads import SharedContext


@contextmanager
def _without_fused_recurrence() -> Iterator[None]:
    backends: list[Any] = [torch.backends.cudnn, torch.backends.mkldnn]
    before = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, enabled in zip(backends, before, strict=True):
            backend.enabled = enabled


_PLAIN_ATTENTION = SharedContext(lambda: sdpa_kernel(SDPBackend.MATH))
_PLAIN_RECURRENCE = SharedContext(_without_fused_recurrence)


@contextmanager
def differentiable_kernels(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Use only twice differentiable kernels in the body (attention, recurrent layers)."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in modules)
    with _PLAIN_ATTENTION.entered(), _PLAIN_RECURRENCE.entered() if recurrent else nullcontext():
        yield
