"""Networks and estimators that a training function trains again and again, in place of new ones.

Such a network has learned the samples of earlier calls, on which a later one is scored. It is recognized by its
parameters: they were reachable from the function before the call, or an earlier call returned them, and the call
changed them. Frozen parameters, such as those of a pretrained backbone below a new head, may be shared. `fit` of
scikit-learn starts from nothing, so that one estimator may be fitted again, except with `warm_start` or `partial_fit`.
Not recognized is a copy of a network that is trained again and again.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gapscope.base.columns import library_of
from gapscope.base.errors import InvalidInput
from gapscope.inspection.network_checks import is_estimator

# of a tensor, compared before and after a call: a training step changes nearly all of them
MAX_COMPARED = 4096
# of containers and objects within each other, and of entries of a container, so that the search is short: by judgment
MAX_DEPTH, MAX_ENTRIES = 6, 200
# libraries whose functions and objects hold no network of the user
FOREIGN = frozenset({"torch", "numpy", "pandas", "scipy", "builtins", "gapscope", "matplotlib"})


def _content(tensor: Tensor) -> Tensor:
    """Return some entries of a tensor, copied."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // MAX_COMPARED)].clone().cpu()


def _parameters(networks: list[nn.Module]) -> list[Tensor]:
    """Return the parameters with values."""
    return [
        weight
        for network in networks
        for weight in network.parameters()
        if not is_lazy(weight) and not weight.is_meta and weight.layout == torch.strided
        if weight.numel()
    ]


@dataclass
class _Search:
    """Networks and estimators that are reachable from a value, and the names that its functions use."""

    networks: list[nn.Module] = field(default_factory=list[nn.Module])
    estimators: list[Any] = field(default_factory=list[Any])
    names: set[str] = field(default_factory=set[str])
    seen: dict[int, Any] = field(default_factory=dict[int, Any])

    def add(self, value: Any, depth: int = 0) -> None:
        """Search a value and what it holds.

        Args:
            value: Any value; objects are searched through their attributes.
            depth: Number of values around it.
        """
        if depth > MAX_DEPTH or id(value) in self.seen or isinstance(value, type | Tensor):
            return
        self.seen[id(value)] = value
        if isinstance(value, nn.Module):
            self.networks.append(value)
            return
        if isinstance(value, types.FunctionType):
            inner = self._used_by(value)
        elif isinstance(value, types.MethodType):
            inner = iter((value.__func__, value.__self__))
        elif isinstance(value, partial):
            part = cast("partial[Any]", value)
            inner = iter((part.func, *part.args, *part.keywords.values()))
        elif isinstance(value, Mapping):
            inner = iter(list(cast("Mapping[Any, Any]", value).values())[:MAX_ENTRIES])
        elif isinstance(value, list | tuple):
            inner = iter(cast("list[Any]", value)[:MAX_ENTRIES])
        elif library_of(value) in FOREIGN or isinstance(value, types.ModuleType):
            return
        else:
            if is_estimator(value):
                self.estimators.append(value)
            inner = iter(list(getattr(value, "__dict__", {}).values()))
        for each in inner:
            self.add(each, depth + 1)

    def _used_by(self, function: types.FunctionType) -> Iterator[Any]:
        """Yield the values that a function uses: enclosing, default and global ones."""
        if function.__module__.split(".")[0] in FOREIGN:
            return
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        yield from vars(function).values()
        codes = [function.__code__]
        for code in codes:  # grows by the functions that are defined in it
            codes += [item for item in code.co_consts if isinstance(item, types.CodeType)]
            self.names.update(code.co_names)
            for name in code.co_names:
                yield function.__globals__.get(name)


@dataclass(frozen=True)
class _Returned:
    """A parameter that a training function returned."""

    tensor: weakref.ref[Tensor]
    content: Tensor
    seed: int


# Parameters that calls returned, by identity. Weak references: networks are freed, and their numbers used again.
_RETURNED: dict[int, _Returned] = {}


def _returned_before() -> dict[int, _Returned]:
    """Return what earlier calls returned and still exists, by the address of its values."""
    for key, item in list(_RETURNED.items()):
        if item.tensor() is None:
            del _RETURNED[key]
    pairs = ((item.tensor(), item) for item in _RETURNED.values())
    return {tensor.data_ptr(): item for tensor, item in pairs if tensor is not None}


class SharedNetworks:
    """What a training function may share among its calls, as it is before one of them.

    Args:
        train_fn: The function.
    """

    def __init__(self, train_fn: Any) -> None:
        self.search = _Search()
        self.search.add(train_fn)
        self.before = [
            (weight, weight.data_ptr(), _content(weight))
            for weight in _parameters(self.search.networks)
        ]

    def check(self, trained: Any, seed: int) -> None:
        """Raise InvalidInput if the call trained a network or estimator that is not its own.

        Args:
            trained: What the function returned.
            seed: Seed of the call. A network that was returned for the same one has learned the same samples.

        Raises:
            InvalidInput: It did.
        """
        result = _Search()
        result.add(trained)
        weights = _parameters(result.networks)
        earlier = _returned_before()
        known: dict[int, Tensor] = {}
        for weight, address, content in self.before:
            known[id(weight)] = known[address] = content
        shared: list[bool] = []  # of each parameter that is not new, whether it was changed
        for weight in weights:
            item = _RETURNED.get(id(weight), earlier.get(weight.data_ptr()))
            if item is not None and item.seed == seed:
                continue
            content = known.get(id(weight), known.get(weight.data_ptr()))
            if content is None and item is not None:
                content = item.content
            if content is not None:
                shared.append(not torch.equal(content, _content(weight)))
        is_whole = isinstance(trained, nn.Module) and weights and len(shared) == len(weights)
        if any(shared) or is_whole:
            name = type(trained if isinstance(trained, nn.Module) else result.networks[0]).__name__
            raise InvalidInput(
                "train_fn must build a new network in every call; it returned the same network twice, or one from "
                f"outside of it ({name}), which has learned from samples that it is scored on. Build it inside "
                "train_fn."
            )
        self._check_estimators(result.estimators)
        for weight in weights:
            _RETURNED[id(weight)] = _Returned(weakref.ref(weight), _content(weight), seed)

    def _check_estimators(self, estimators: list[Any]) -> None:
        """Raise InvalidInput for an estimator from outside of the function that is not fitted from nothing."""
        outside = {id(estimator) for estimator in self.search.estimators}
        for estimator in estimators:
            if id(estimator) not in outside:
                continue
            settings = estimator.get_params(deep=True).items()
            warm = [name for name, value in settings if name.endswith("warm_start") and value]
            if "partial_fit" in self.search.names and hasattr(estimator, "partial_fit"):
                warm.append("partial_fit")
            if warm:
                raise InvalidInput(
                    f"train_fn must fit a new estimator in every call; it returned the same {type(estimator).__name__} "
                    f"twice, which goes on from earlier samples ({warm[0]}). Build it inside train_fn, or use "
                    "sklearn.base.clone."
                )
