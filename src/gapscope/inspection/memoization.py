"""Memoization of work that several measures need.

A function decorated by `memoize` computes as usual. In the body of `memo_scope()` its results are cached and returned
for equal arguments: the same network with the same weights, the same tensors, equal values, a generator in the same
state, which then goes on as if it had been drawn from. So each measure calls the functions that it needs, and all of
them together make one forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Function = TypeVar("Function", bound=Callable[..., Any])
_CACHE: ContextVar[dict[Hashable, tuple[Any, Any, list[Tensor]]] | None] = ContextVar(
    "shared work", default=None
)


@contextmanager
def memo_scope() -> Iterator[None]:
    """Cache the results of memoized functions in the body (nested bodies use the outer cache)."""
    if _CACHE.get() is not None:
        yield
        return
    token = _CACHE.set({})
    try:
        yield
    finally:
        _CACHE.reset(token)


def memoize(function: Function) -> Function:
    """Cache a function's results within `memo_scope` (it must not change its arguments)."""
    signature = inspect.signature(function)

    @wraps(function)
    def memoized(*args: Any, **kwargs: Any) -> Any:
        cache = _CACHE.get()
        if cache is None:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key = (function, *(_key(value) for value in bound.arguments.values()))
        drawn = [each for each in bound.arguments.values() if isinstance(each, torch.Generator)]
        if key not in cache:
            result = function(*args, **kwargs)
            # the arguments stay alive with the result, so that no identity is reused
            cache[key] = (dict(bound.arguments), result, [each.get_state() for each in drawn])
        _, result, states = cache[key]
        for generator, state in zip(drawn, states, strict=True):
            generator.set_state(state)
        return result

    return memoized  # type: ignore[return-value]


def tensor_version(tensor: Tensor) -> int:
    """Return the version counter of a tensor (0 for those of inference mode, which have none)."""
    if tensor.is_inference():
        return 0
    return tensor._version


def _key(value: Any) -> Hashable:
    """Return an argument's cache key: identity and version, random state, or the value."""
    if isinstance(value, Tensor):
        return (id(value), tensor_version(value))
    if isinstance(value, nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return (id(value), tuple((id(tensor), tensor_version(tensor)) for tensor in tensors))
    if isinstance(value, torch.Generator):
        return (value.device, value.get_state().numpy().tobytes())
    if isinstance(value, Mapping):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_key, value))
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(_key(getattr(value, item.name)) for item in fields(value))
    return (type(value), value)
