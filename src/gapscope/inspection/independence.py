"""Whether a network treats every sample by itself: the shared check of all measures that assume it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gapscope.base.errors import GapscopeError, NeverSupported, ReplaceLayer
from gapscope.inspection.restoring import preserve_state
from gapscope.inspection.substitution import cast_like, cast_network

# Samples that are run in two different batches, and how far their outputs may be apart, relative to the largest.
_LOOKED_AT = 4
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 2e-2}


@dataclass
class _Seen:
    """How a network's samples have been seen to be alone: shapes and forms at perturbed weights, and the last look."""

    perturbed: set[Hashable] = field(default_factory=set)
    last: Hashable = None


_SEEN: weakref.WeakKeyDictionary[nn.Module, _Seen] = weakref.WeakKeyDictionary()


def _form(module: nn.Module) -> Hashable:
    """What a module does apart from its numbers: its identity, its plain settings (mode included) and its hooks."""
    settings = tuple(value for value in vars(module).values() if type(value) in (bool, int, float, str))
    hooks = *module._forward_hooks, *module._forward_pre_hooks
    return id(module), settings, hooks, id(vars(module).get("forward"))


def _look(network: nn.Module, x: Tensor) -> Hashable:
    """The weights and samples of one look: the same again, as by the next measure, would show the same."""
    weights = tuple(
        (id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in (*network.parameters(), *network.buffers())
    )
    return weights, x.dtype, hash(x.contiguous().view(torch.uint8).cpu().numpy().tobytes())


def check_no_batch_statistics(modules: Mapping[str, nn.Module]) -> None:
    """Raise ReplaceLayer where BatchNorm would mix the samples of a batch, so that individual samples have no gradient."""
    for name, module in modules.items():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ReplaceLayer(
                f"BatchNorm must not mix the samples of a batch where gradients of individual samples are needed; "
                f"'{name}' uses the statistics of the batch. Put it into evaluation mode with running statistics "
                "(module.eval()), or use GroupNorm."
            )


def highest_precision_dtype(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


class Perturbation:
    """Adds normal noise to a weight, of `size` times its own root mean square or its usual initial size."""

    def __init__(self, seed: int, size: float) -> None:
        self.generator, self.size = torch.Generator().manual_seed(seed), size

    def __call__(self, values: Tensor) -> Tensor:
        """Return the changed values."""
        if not (values.is_floating_point() or values.is_complex()) or values.numel() == 0:
            return values
        fan_in = values.numel() / len(values) if values.ndim > 1 else 1.0
        scale = max(float(values.abs().square().mean().sqrt()), fan_in**-0.5)
        noise = torch.randn(values.shape, generator=self.generator, dtype=torch.float64)
        return values + self.size * scale * noise.to(values.device, values.dtype)


def _outputs_agree(network: nn.Module, x: Tensor) -> bool | None:
    """Whether samples have the same outputs in two batches; None where these are not finite, so that none can say."""
    with torch.no_grad():
        whole = network(x)
        if not isinstance(whole, Tensor) or not bool(torch.isfinite(whole).all()):
            return None
        order = torch.arange(len(x) - 1, -1, -1, device=x.device)
        return all(_close(network, x[part], whole[part]) for part in order.chunk(2))


def _close(network: nn.Module, x: Tensor, together: Tensor) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as one about a batch of one
            alone = network(x)
    except (RuntimeError, ValueError):  # such as a variance over the batch, of a single sample
        return False
    if alone.shape != together.shape:
        return False
    difference, scale = (alone - together).abs().max(), together.abs().max()
    # Written so that NaN fails.
    return bool(difference <= _TOLERANCE.get(together.dtype, 1e-3) * scale)


def _agree_when_perturbed(network: nn.Module, x: Tensor) -> bool | None:
    precise = highest_precision_dtype(x.device)
    try:
        with cast_network(network, precise, Perturbation(0, 0.3)):
            return _outputs_agree(network, cast_like(x, precise))
    except GapscopeError:
        raise
    except Exception:  # code that insists on a precision, or on weights that the perturbation left
        return None


def is_sample_independent(network: nn.Module, x: Tensor) -> bool:
    """Whether samples have the same outputs in different batches, and again when they are computed again.

    A few samples are run together and in parts: at the network's weights, and in float64 at weights that are
    perturbed, where branches that are closed by a zero weight are open.

    Args:
        network: The network, in the mode in which it is to be looked at.
        x: Inputs, as the network takes them.

    Returns:
        False where samples act on each other, or random numbers are drawn.
    """
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_LOOKED_AT].to(x.device)].detach()
    seen = _SEEN.setdefault(network, _Seen())
    key = x.shape, tuple(map(_form, network.modules()))
    look = key, _look(network, x)
    if look == seen.last:
        return True
    with preserve_state(network), torch.autocast(x.device.type, enabled=False):
        # What other weights show does not depend on those of the day, and is remembered.
        if key not in seen.perturbed:
            if _agree_when_perturbed(network, x) is False:
                return False
            seen.perturbed.add(key)
        alone = _outputs_agree(network, x) is not False
    if alone:
        seen.last = look
    return alone


def check_sample_independence(network: nn.Module, x: Tensor) -> None:
    """Raise unless the network treats every sample by itself, always in the same way.

    A network that stays in training mode is meant to draw random masks; only its layers are looked at.

    Args:
        network: The network, in the mode in which it is to be looked at.
        x: Inputs, as the network takes them.

    Raises:
        ReplaceLayer: A BatchNorm uses the statistics of the batch.
        NeverSupported: Samples act on each other in another way, or random numbers are drawn.
    """
    check_no_batch_statistics(dict(network.named_modules()))
    if not network.training and not is_sample_independent(network, x):
        raise NeverSupported(
            "Every output must depend on its own sample alone and be repeatable; here the same samples have other "
            "outputs in another batch, or when they are computed again. Take out what mixes samples (statistics or "
            "a scale of the whole batch), and let random layers such as dropout follow the evaluation mode."
        )
