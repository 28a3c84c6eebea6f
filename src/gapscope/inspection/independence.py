"""Checks that samples do not affect each other, as with batch norm in training mode."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gapscope.base.errors import GapscopeError, NeverSupported, first_line
from gapscope.inspection.known_layers import known_layers
from gapscope.inspection.memoization import tensor_version
from gapscope.inspection.mixing import mixing_layer
from gapscope.inspection.norms import check_no_batch_statistics
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import cast_like, cast_network

# relative tolerance of the outputs of samples that are run in two different batches
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 2e-2}


# earlier checks per network: forms whose samples were independent at perturbed weights, and the last passed check
_INDEPENDENT_FORMS: weakref.WeakKeyDictionary[nn.Module, set[Hashable]] = (
    weakref.WeakKeyDictionary()
)
_LAST_CHECK: weakref.WeakKeyDictionary[nn.Module, Hashable] = weakref.WeakKeyDictionary()


def _form(module: nn.Module) -> Hashable:
    """Return a module's identity, settings (mode included) and hooks, without its numbers."""
    settings = tuple(
        value for value in vars(module).values() if type(value) in (bool, int, float, str)
    )
    hooks = *module._forward_hooks, *module._forward_pre_hooks
    return id(module), settings, hooks, id(vars(module).get("forward"))


def _values_key(network: nn.Module, x: Tensor) -> Hashable:
    """Return the key of one check: equal weights and samples give an equal result."""
    weights = tuple(
        (id(tensor), tensor.data_ptr(), tensor_version(tensor))
        for tensor in (*network.parameters(), *network.buffers())
    )
    return weights, x.dtype, hash(x.contiguous().view(torch.uint8).cpu().numpy().tobytes())


def highest_precision_dtype(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


class Perturbation:
    """Normal noise on a weight, relative to its root mean square or its usual initial size."""

    def __init__(self, seed: int, size: float) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.size = size

    def __call__(self, values: Tensor) -> Tensor:
        """Return the changed values."""
        if not (values.is_floating_point() or values.is_complex()) or values.numel() == 0:
            return values
        fan_in = values.numel() / len(values) if values.ndim > 1 else 1.0
        scale = max(float(values.abs().square().mean().sqrt()), fan_in**-0.5)
        noise = torch.randn(values.shape, generator=self.generator)
        return values + self.size * scale * noise.to(values.device, values.dtype)


class _Precisions(TorchDispatchMode):
    """Context that records the floating-point types of all results of torch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation, and record the types of its results."""
        result = func(*args, **(kwargs or {}))
        self.found |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


def _coarsest_tolerance(network: nn.Module, x: Tensor) -> float:
    """Return the tolerance of the least precise type in which a pass computes."""
    with _Precisions() as precisions, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as one about a batch of one
        network(x)
    return max((_TOLERANCE[dtype] for dtype in precisions.found & _TOLERANCE.keys()), default=0.0)


class _FailsInOtherBatch(Exception):
    """A network raised on some of the samples that it ran on before."""


def _outputs_agree(network: nn.Module, x: Tensor) -> bool | None:
    """Return whether samples have equal outputs in two batches (None if these are not finite).

    Raises:
        _FailsInOtherBatch: The network runs on the samples, and not on a part of them.
    """
    with torch.no_grad():
        outputs = network(x)
        if not isinstance(outputs, Tensor) or not bool(torch.isfinite(outputs).all()):
            return None
        reversed_rows = torch.arange(len(x) - 1, -1, -1, device=x.device)
        # Every second row, so that no neighbours are passed together. Two samples are passed one by one.
        if len(x) > 2:
            parts = [reversed_rows[1::2]]
        else:
            parts = reversed_rows.split(1)
        return all(_has_outputs(network, x[part], outputs[part]) for part in parts)


def _has_outputs(network: nn.Module, x: Tensor, expected: Tensor) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as one about a batch of one
            outputs = network(x)
    except Exception as error:  # such as a variance over a batch of one
        raise _FailsInOtherBatch(f"{type(error).__name__}: {first_line(error)}") from error
    if outputs.shape != expected.shape:
        return False
    difference = float((outputs - expected).abs().max())
    scale = float(expected.abs().max())
    if difference <= _TOLERANCE.get(expected.dtype, 1e-3) * scale:  # False for NaN
        return True
    # hidden layers may be less precise than the outputs
    return difference <= _coarsest_tolerance(network, x) * scale


def _agree_when_perturbed(network: nn.Module, x: Tensor) -> bool | None:
    precise = highest_precision_dtype(x.device)
    try:
        with cast_network(network, precise, Perturbation(0, 0.3)):
            return _outputs_agree(network, cast_like(x, precise))
    except (GapscopeError, _FailsInOtherBatch):
        raise
    except Exception:  # code that requires a precision, or weights in some range
        return None


@cache
def _checked_rows(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:4].clone()


_OTHER_OUTPUTS = (
    "Got other outputs for the same samples in another batch or in a second pass; every output must depend on its own "
    "sample alone and be repeatable. Remove what mixes samples (statistics or a scale of the batch), and let random "
    "layers such as dropout follow the evaluation mode."
)


def _other_outputs(network: nn.Module, x: Tensor) -> str:
    layer = mixing_layer(network, x)
    return f"{_OTHER_OUTPUTS} Samples are mixed by {layer}." if layer else _OTHER_OUTPUTS


def find_dependence(network: nn.Module, x: Tensor, *, perturbed: bool = True) -> str:
    """Return the message that outputs depend on the batch or on the pass; empty if samples are independent.

    A few samples are run together, and some of them again: at the network's weights, and if `perturbed` in float64 at
    perturbed weights, which open branches after a zero weight.
    """
    if not network.training and known_layers(network):
        return ""
    x = x[_checked_rows(len(x)).to(x.device)].detach()
    forms = _INDEPENDENT_FORMS.setdefault(network, set())
    key = x.shape, tuple(map(_form, network.modules()))
    values = key, _values_key(network, x)
    if values == _LAST_CHECK.get(network):
        return ""
    try:
        with preserve_state(network), torch.autocast(x.device.type, enabled=False):
            # The result at perturbed weights does not depend on the current ones, and is cached.
            if perturbed and key not in forms:
                if _agree_when_perturbed(network, x) is False:
                    return _other_outputs(network, x)
                forms.add(key)
            if _outputs_agree(network, x) is False:
                return _other_outputs(network, x)
    except _FailsInOtherBatch as error:
        return (
            f"The network runs on {len(x)} samples together, and raises {error} on some of them alone; every sample "
            "must have its own outputs. Let forward accept batches of any size."
        )
    if key in forms:
        _LAST_CHECK[network] = values
    return ""


def check_sample_independence(network: nn.Module, x: Tensor) -> None:
    """Raise unless the network evaluates every sample independently and deterministically."""
    if known_layers(network):
        return
    # a network in training mode is expected to sample random masks: only its layers are checked
    check_no_batch_statistics(dict(network.named_modules()))
    if network.training:
        return
    dependence = find_dependence(network, x)
    if dependence:
        raise NeverSupported(dependence)
