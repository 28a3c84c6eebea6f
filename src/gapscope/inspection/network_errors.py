"""Errors of the user's network and of torch, as messages of gapscope."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from gapscope.base.arguments import NO_EMBEDDING
from gapscope.base.errors import (
    GapscopeError,
    InvalidInput,
    NetworkFailed,
    ReplaceLayer,
    first_line,
)
from gapscope.inspection.checkpoints import REENTRANT
from gapscope.inspection.memory import is_out_of_memory

# Messages of torch about inputs and weights of different types.
_OTHER_TYPE = re.compile(
    r"must have the same dtype, but got (\w+) and (?P<a>\w+)|"
    r"Input type \(([\w .:]+)\) and \w+ type \((?P<b>[\w .:]+)\)|expected scalar type \w+ but found (\w+)|"
    r"expected .* to have type .* but got (\w+)|not implemented for '(Long|Int|Bool|Byte)'|"
    r"RNN input dtype \(([\w.]+)\) does not match weight dtype \((?P<c>[\w.]+)\)|mixed dtype|"
    "inputs must share same datatype"
)
# Methods of tensors that convert to floating-point types, by the names in messages of torch.
_METHODS = {
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "half": "half",
    "float16": "half",
    "bfloat16": "bfloat16",
}
_PACKAGE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
# of torch, where an operation can be differentiated once
_NO_DERIVATIVE = re.compile(r"the derivative for '(\w+)' is not implemented")


def _method(name: str) -> str:
    """Return the method that converts to a type, such as torch.cuda.HalfTensor or c10::BFloat16; empty if unknown."""
    short = re.split(r"[.:]", name.lower())[-1].removesuffix("tensor")
    return _METHODS.get(short, "")


def dtype_mismatch_message(error: BaseException) -> str:
    """Return the message for torch's errors about mismatched types (else empty)."""
    match = _OTHER_TYPE.search(str(error))
    if match is None:
        return ""
    dtype = next((part for part in match.groups() if part), "another")
    needed = _method(match["a"] or match["b"] or match["c"] or "")
    # torch.FloatTensor and torch.cuda.FloatTensor: the devices differ
    if match["b"] and dtype.endswith("Tensor") and needed in ("", _method(dtype)):
        return ""
    if needed and _method(dtype):
        other = ""
        if needed != "float":
            other = ", or network.float() and x.float()"
        return (
            f"inputs must have the type of the network's weights, {needed}; got {_method(dtype)}. Use x.{needed}()"
            f"{other}."
        )
    return (
        f"inputs must have a type that the network's layers accept; got {dtype}. Use x.float() (x.astype(float) of an "
        "array; for images divided by 255), or the type of the weights."
    )


def scripted_message(name: str) -> str:
    """Return the message for a module that TorchScript has compiled.

    Args:
        name: Name of its class.
    """
    return (
        f"Got a {name}, whose layers run no hooks; network must be an nn.Module, and so must its modules. Pass the "
        "module from which it was compiled."
    )


def _raising_module(error: BaseException) -> nn.Module | None:
    """Return the module that gapscope called and that raised an error; None if the error is not the network's own."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [frame.f_code.co_filename for frame in frames]
    ours = [i for i, file in enumerate(files) if file.startswith(_PACKAGE)]
    # below the last function of gapscope: hooks of gapscope run inside the modules
    for i in range(max(ours, default=-1) + 1, len(frames)):
        owner = frames[i].f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
        if not files[i].startswith(_TORCH):
            return None
    return None


@contextmanager
def explained_errors() -> Iterator[None]:
    """Convert errors of torch about types and derivatives, and those of the network's own code, into gapscope's.

    Raises:
        InvalidInput: The inputs have another type than the weights, or TorchScript has compiled a module.
        ReplaceLayer: A layer has no second derivatives.
        NetworkFailed: The network raised.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, GapscopeError):
            raise
        if message := dtype_mismatch_message(error):
            raise InvalidInput(message) from error
        if match := _NO_DERIVATIVE.search(str(error)):
            raise ReplaceLayer(
                f"Second derivatives are needed; torch has none of {match[1].removesuffix('_backward').strip('_')}. "
                "Replace the layer that calls it by one of other operations, freeze its weights, or leave out the "
                "measure or penalty."
            ) from error
        if "use_reentrant" in str(error):
            raise ReplaceLayer(REENTRANT) from error
        # ids without an embedding are explained where the user's call ends
        is_explained = str(error) == NO_EMBEDDING or is_out_of_memory(error)
        module = _raising_module(error)
        if module is not None and "not supported on ScriptModules" in str(error):
            raise InvalidInput(scripted_message(type(module).__name__)) from error
        if module is None or is_explained:
            raise
        if "more than 1 value per channel when training" in str(error):
            raise NetworkFailed(
                f"In training mode {type(module).__name__} needs two samples per batch or more; got one. Use "
                "larger batches, and DataLoader(..., drop_last=True) if the last one holds one sample."
            ) from error
        raise NetworkFailed(
            f"The network must run on all samples; {type(module).__name__} raised {type(error).__name__}: "
            f"{first_line(error)}. Find the samples that its forward refuses, and correct or drop them."
        ) from error
