"""Preconditions of every measurement, with their error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import has_finite_sum

# Messages of torch about inputs and weights of different types.
_OTHER_TYPE = re.compile(
    r"must have the same dtype, but got (\w+) and|Input type \(([\w ]+)\) and|expected scalar type \w+ but found (\w+)|"
    r"expected .* to have type .* but got (\w+)|not implemented for '(Long|Int|Bool|Byte)'|"
    "inputs must share same datatype"
)


def check_module(network: Any) -> None:
    """Raise InvalidInput unless this is a module (with advice for classes and functions)."""
    if isinstance(network, type) and issubclass(network, nn.Module):
        raise InvalidInput(
            f"network must be a module, not its class; got {network.__name__}. Pass {network.__name__}(...)."
        )
    if isinstance(network, str | os.PathLike):
        raise InvalidInput(
            f"network must be a torch.nn.Module; got the path {str(network)!r}. Build the network, and load its state: "
            "network.load_state_dict(torch.load(path, weights_only=True))."
        )
    if isinstance(network, Mapping):
        raise InvalidInput(
            f"network must be a torch.nn.Module; got a mapping of {len(network)} entries, as a state dictionary is. "
            "Build the network and pass it after network.load_state_dict(...)."
        )
    if type(network).__module__.startswith("sklearn."):
        raise InvalidInput(
            f"network must be a torch.nn.Module; got scikit-learn's {type(network).__name__}, which has no gradients. "
            "Pass None where a function takes it (forecast_accuracy, find_label_issues), or a network of torch."
        )
    if not isinstance(network, nn.Module):
        raise InvalidInput(
            f"network must be a torch.nn.Module; got {type(network).__name__}. Wrap it in a module whose forward calls "
            "it."
        )


def check_materialized(network: nn.Module) -> None:
    """Raise if a weight has no size yet (NotMeasurable) or no values (InvalidInput)."""
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            raise NotMeasurable(
                f"A network's parameters must have their sizes; '{name}' belongs to a lazy layer that has not run yet. "
                "Run the network once on a batch."
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise InvalidInput(
                f"Weights must be known to autograd; '{name}' was made in torch.inference_mode(). Build or load the "
                "network outside it."
            )
        if tensor.is_meta:
            raise InvalidInput(
                f"All weights must hold numbers; '{name}' is on the meta device, which has none. Load the weights "
                "first."
            )


def check_hookable(network: nn.Module) -> None:
    """Raise InvalidInput for networks whose layers do not run hooks."""
    if isinstance(network, torch.jit.ScriptModule):
        raise InvalidInput(
            f"Got a {type(network).__name__}, whose layers run no hooks; network must be an nn.Module. "
            "Pass the module from which it was compiled."
        )


def check_finite(network: nn.Module) -> None:
    """Raise InvalidInput if a weight is not finite (buffers may be infinite)."""
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if has_finite_sum(tensor):
            continue
        invalid = ~torch.isfinite(tensor) if isinstance(tensor, nn.Parameter) else tensor.isnan()
        if bool(invalid.any()):
            raise InvalidInput(
                f"All weights must be finite; '{name}' holds NaN or infinity: its training has diverged. Train it "
                "again with a smaller learning rate."
            )


def check_holds_numbers(x: Tensor) -> None:
    """Raise InvalidInput for inputs on the meta device."""
    if x.is_meta:
        raise InvalidInput("inputs must hold numbers; got tensors on the meta device, which have none. Load the data.")


def dtype_mismatch_message(error: BaseException) -> str:
    """Return the message for torch's errors about mismatched types (else empty)."""
    match = _OTHER_TYPE.search(str(error))
    if match is None:
        return ""
    dtype = next((part for part in match.groups() if part), "another")
    return (
        f"inputs must have a type that the network's layers take; got {dtype}. Use x.float() (images: "
        "x.float() / 255), or the type of the weights."
    )
