"""Sequential networks of torch's linear and elementwise layers, of which the types say what a pass does.

Each sample is processed by itself, and a pass changes nothing but, with dropout in training mode, the random state. So
nothing has to be verified or restored. The layers are examined at every call: a hook, another forward function, or
a layer of another type makes the network an ordinary one.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

# Each of them is one node in autograd's graph, or none.
ELEMENTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.Mish, nn.ReLU,
    nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh,
)  # fmt: skip
_CALL = nn.Module.__call__
_FORWARDS: dict[type[nn.Module], Any] = {
    kind: kind.forward for kind in (nn.Sequential, nn.Flatten, nn.Linear, *ELEMENTWISE)
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _is_own_parameter(value: Any) -> bool:
    return type(value) is nn.Parameter and not (
        value._backward_hooks or value.is_inference() or value.is_meta
    )


def _is_known(module: nn.Module) -> bool:
    """Return whether a call of the module is what its type says."""
    kind: Any = type(module)
    if kind not in _FORWARDS or kind.forward is not _FORWARDS[kind] or kind.__call__ is not _CALL:
        return False
    own = vars(module)
    if (
        "forward" in own
        or own.get("_compiled_call_impl") is not None
        or any(own[name] for name in _HOOKS)
    ):
        return False
    if kind is nn.Linear:
        weight = own["_parameters"].get("weight")
        bias = own["_parameters"].get("bias")
        shadowed = own.keys() & {"weight", "bias"}
        is_standard = _is_own_parameter(weight) and (bias is None or _is_own_parameter(bias))
        return is_standard and len(own["_parameters"]) == 2 and not own["_modules"] and not shadowed
    if own["_parameters"] or (kind is nn.Flatten and (module.start_dim, module.end_dim) != (1, -1)):
        return False
    return kind is nn.Sequential or not own["_modules"]


def known_layers(network: nn.Module) -> list[nn.Module]:
    """Return the layers of a sequential network in the order of their calls (empty unless all are known)."""
    if torch_module._has_any_global_hook():
        return []
    layers: list[nn.Module] = []
    waiting = [network]
    while waiting:
        module = waiting.pop()
        if not _is_known(module):
            return []
        if type(module) is nn.Sequential:
            waiting += reversed(module._modules.values())  # type: ignore[arg-type]
        else:
            layers.append(module)
    return layers
