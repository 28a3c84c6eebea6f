"""Products of float32 matrices by oneDNN on processors of AMD.

Torch multiplies them by MKL, which does not use AVX-512 there: oneDNN is 2.2 times as fast. On processors of Intel MKL
is faster by 5 to 30 %. Torch's convolutions are oneDNN's already. Where oneDNN is missing, everything is multiplied by
torch.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# Multiplications below which a call costs more than it saves.
_MIN_MULTIPLICATIONS = 2**18
_NOTHING_FUSED = ("none", [], "")
_TYPES = (Tensor, nn.Parameter)


@cache
def _is_faster() -> bool:
    """Return whether oneDNN is faster: on processors that say that they are of AMD."""
    try:
        description = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        description = platform.processor()
    return "AuthenticAMD" in description


@cache
def _linear() -> Any:
    """Return oneDNN's x @ weight.T (None if this torch lacks it)."""
    try:
        linear = torch.ops.mkldnn._linear_pointwise.default
        is_equal = torch.equal(
            linear(torch.ones(2, 3), torch.ones(2, 3), None, *_NOTHING_FUSED), torch.full((2, 2), 3)
        )
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return None
    return linear if is_equal else None


def _is_large(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and type(a) in _TYPES
        and type(b) in _TYPES
        and a.numel() * b.shape[1] >= _MIN_MULTIPLICATIONS
        and torch.backends.mkldnn.enabled
        and _is_faster()
        and _linear() is not None
    )


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for matrices, without a graph."""
    a = a.detach()
    b = b.detach()
    if not _is_large(a, b):
        return a @ b
    return _linear()(a, b.T, None, *_NOTHING_FUSED)


class _FastProducts(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # else torch imports its compiler, and sympy, at the first product, which takes as long as several steps
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default and _is_large(*args):
            return _linear()(args[0], args[1].t(), None, *_NOTHING_FUSED)
        return func(*args, **(kwargs or {}))


def fast_products() -> AbstractContextManager[Any]:
    """Return a context in which autograd's products of matrices are those of `multiply`."""
    if _is_faster() and _linear() is not None:
        return _FastProducts()
    return nullcontext()
