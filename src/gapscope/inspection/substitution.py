"""Substitution of tensors that a network's code uses.

Arguments of torch functions are replaced by their identity when the function is called. So it applies to attributes,
tied names, lists, closures and hooks. Code that bypasses torch functions (`autograd.Function.apply`) needs the
substitutes in the modules themselves; `install` puts them there and restores each slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_CASTS = frozenset({Tensor.half, Tensor.bfloat16, Tensor.float, Tensor.double})
# Types of arguments without tensors, for speed: all arguments of all torch functions of a pass are inspected.
_WITHOUT_TENSORS = frozenset(
    {int, float, bool, str, complex, type(None), type(...), torch.Size, torch.device}
)


def of_precision(original: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """Return a dtype with the precision of `dtype` (complex stays complex)."""
    if original.is_complex:
        return dtype.to_complex()
    if original.is_floating_point:
        return dtype
    return original


def cast_like(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor with the precision of `dtype` (None leaves it unchanged)."""
    # without comparing dtypes first: inside a substitution the tensor reports the dtype of its substitute
    if dtype is None:
        return tensor
    return tensor.to(of_precision(tensor.dtype, dtype))


@cache
def _writes_in_place(name: str) -> bool:
    special = name in ("__setitem__", "__set__") or (name.startswith("__i") and name.endswith("__"))
    return special or (name.endswith("_") and not name.endswith("__"))


class ParameterSubstitution(TorchFunctionMode):
    """Context in which torch functions receive other tensors, optionally in one precision.

    `dtype` is the precision of every floating-point or complex tensor; None leaves them unchanged.
    """

    def __init__(
        self, pairs: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._pairs = list(pairs)  # keeps the originals alive, so that no identity is reused
        self._by_identity = {id(original): other for original, other in self._pairs}
        self._originals = {id(other): original for original, other in reversed(self._pairs)}
        self.dtype = dtype

    def original(self, tensor: Any) -> Any:
        """Return the network's tensor for its substitute (other tensors unchanged)."""
        return self._originals.get(id(tensor), tensor)

    @contextmanager
    def install(self, module: nn.Module) -> Iterator[None]:
        """Put the substitutes into the slots of a module and its children for the body."""
        entries: list[tuple[dict[str, Any], str, Tensor]] = [
            (slots, name, tensor)
            for child in module.modules()
            if not isinstance(child, torch.jit.ScriptModule)
            for slots in (child._parameters, child._buffers)
            for name, tensor in slots.items()
            if tensor is not None and id(tensor) in self._by_identity
        ]
        try:
            for slots, name, tensor in entries:
                slots[name] = self._by_identity[id(tensor)]
            yield
        finally:
            for slots, name, tensor in entries:
                slots[name] = tensor

    def __getitem__(self, tensor: Tensor) -> Tensor:
        """Return the substitute of a network's tensor (other tensors unchanged)."""
        return self._by_identity.get(id(tensor), tensor)

    def _cast(self, tensor: Tensor) -> Tensor:
        if tensor.dtype == self.dtype:  # most tensors; a call of `to` takes ten times as long
            return tensor
        return cast_like(tensor, self.dtype)

    def _substitute_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return self._cast(self._by_identity.get(id(leaf), leaf))
        if isinstance(leaf, torch.dtype) and self.dtype is not None:
            return of_precision(leaf, self.dtype)
        return leaf

    def _substitute(self, value: Any) -> Any:
        """Return `tree_map(self._substitute_leaf, value)` in a tenth of its time."""
        kind = type(value)
        if kind in _WITHOUT_TENSORS:
            return value
        if kind is tuple or kind is list:
            return kind([self._substitute(entry) for entry in value])
        if isinstance(value, Tensor):
            return self._substitute_leaf(value)
        return tree_map(self._substitute_leaf, value)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call `func` with substituted arguments."""
        arguments = self._substitute(args)
        keywords = {name: self._substitute(value) for name, value in (kwargs or {}).items()}
        if self.dtype is None:
            return func(*arguments, **keywords)
        if func in _CASTS:
            return arguments[0]
        if _writes_in_place(getattr(func, "__name__", "")):
            # the target must be the tensor itself, not a copy in another precision
            if id(args[0]) in self._by_identity:
                target = arguments[0]
            else:
                target = args[0]
            return func(target, *arguments[1:], **keywords)
        result = func(*arguments, **keywords)
        if isinstance(result, Tensor):
            return self._cast(result)
        return result


NOTHING_SUBSTITUTED = ParameterSubstitution(())


@contextmanager
def cast_network(
    network: nn.Module,
    dtype: torch.dtype | None,
    change: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    within: ParameterSubstitution = NOTHING_SUBSTITUTED,
) -> Iterator[ParameterSubstitution]:
    """Compute with all numbers of a network in one precision in the body.

    `change` is applied to each parameter's values in that precision. `within` is a substitution already entered.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for parameter in network.parameters():
            values = change(cast_like(parameter.detach(), dtype))
            if values.data_ptr() == parameter.data_ptr():
                values = values.clone()
            other = nn.Parameter(values, requires_grad=parameter.requires_grad)
            # `original` returns the first, the network's own
            pairs += [(within.original(parameter), other), (parameter, other)]
        pairs += [(buffer, cast_like(buffer, dtype).clone()) for buffer in network.buffers()]
    with ParameterSubstitution(pairs, dtype) as substituted, substituted.install(network):
        yield substituted
