"""Let torch functions see other tensors in place of a network's own, without touching the network.

The substitution is made where a torch function is called, by the identity of the tensor that it is given. So it holds
however the network's code came by the tensor: as an attribute of a module, under two names, in a list, in a closure
or in a hook that holds the module itself. Nothing is written to any module; there is nothing to put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_CASTS = frozenset({Tensor.half, Tensor.bfloat16, Tensor.float, Tensor.double})


def of_precision(given: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """Return `given` with the precision of `dtype`: complex stays complex, integers stay what they are."""
    if given.is_complex:
        return dtype.to_complex()
    return dtype if given.is_floating_point else given


def in_precision_of(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor with the precision of `dtype`; the tensor itself where nothing changes or `dtype` is None."""
    return tensor if dtype is None else tensor.to(of_precision(tensor.dtype, dtype))


def _writes_in_place(name: str) -> bool:
    special = name in ("__setitem__", "__set__") or (name.startswith("__i") and name.endswith("__"))
    return special or (name.endswith("_") and not name.endswith("__"))


class Substituted(TorchFunctionMode):
    """While entered, torch functions are given other tensors for some, and, if asked, all numbers in one precision.

    Attributes:
        dtype: The precision in which every floating-point or complex tensor is seen; None leaves them as they are.
    """

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]], dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._pairs = list(pairs)  # keeps the originals alive, so that no identity is given out anew
        self._by_identity = {id(original): other for original, other in self._pairs}
        self.dtype = dtype

    def __getitem__(self, tensor: Tensor) -> Tensor:
        """Return what is seen in place of a tensor of the network; the tensor itself where that is none."""
        return self._by_identity.get(id(tensor), tensor)

    def _seen(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            other = self._by_identity.get(id(leaf))
            return in_precision_of(leaf, self.dtype) if other is None else other
        if isinstance(leaf, torch.dtype) and self.dtype is not None:
            return of_precision(leaf, self.dtype)
        return leaf

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func` with what is to be seen in place of its arguments."""
        seen, named = tree_map(self._seen, (args, kwargs or {}))
        if self.dtype is None:
            return func(*seen, **named)
        if func in _CASTS:
            return seen[0]
        if _writes_in_place(getattr(func, "__name__", "")):
            # What is written to must be the tensor itself, not a copy in another precision.
            target = args[0] if id(args[0]) not in self._by_identity else seen[0]
            return func(target, *seen[1:], **named)
        result = func(*seen, **named)
        return in_precision_of(result, self.dtype) if isinstance(result, Tensor) else result


@contextmanager
def in_precision(
    network: nn.Module, dtype: torch.dtype | None, change: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[Substituted]:
    """Compute with all of a network's numbers in one precision in the body, leaving the network as it is.

    Args:
        network: The network.
        dtype: The precision; None for the network's own.
        change: Applied to each parameter's values in that precision.

    Yields:
        The substitution: indexed by a parameter, it gives the leaf that stands in for it.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for parameter in network.parameters():
            values = change(in_precision_of(parameter.detach(), dtype))
            if values.data_ptr() == parameter.data_ptr():
                values = values.clone()
            pairs.append((parameter, nn.Parameter(values, requires_grad=parameter.requires_grad)))
        pairs += [(buffer, in_precision_of(buffer, dtype).clone()) for buffer in network.buffers()]
    with Substituted(pairs, dtype) as substituted:
        yield substituted
