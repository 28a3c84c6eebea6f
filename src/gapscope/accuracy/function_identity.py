"""Identity of functions of the user: their code and the values that it uses, as one hash.

Compared are the code (not its comments, line numbers and docstring), default values, the values of the enclosing
function, the global values that it reads, arguments of `functools.partial`, and the attributes of an object that is
called. Numbers, texts, containers of these, arrays, tensors, frames, networks, estimators, data classes and functions
are compared by their content; functions and classes that it reads from other modules, and all other objects (data sets,
open files, locks), by their name or type alone. Names that the code itself assigns, such as counters, are not compared.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import types
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gapscope.base.columns import library_of, with_canonical_strides
from gapscope.base.specs import RunSpec
from gapscope.inspection.network_checks import is_estimator

# values with a representation that is the same in every process
PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum, PurePath, np.generic,
    torch.device, torch.dtype, RunSpec,
)  # fmt: skip
# whether two of these are one object may differ between processes
CONTAINERS = (list, tuple, set, frozenset, Mapping, np.ndarray, Tensor)


def name_of(value: Any) -> str:
    """Return module and name of a function or class (of its type for other objects)."""
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str):
        return name_of(type(value))
    return f"{getattr(value, '__module__', '')}:{name}"


def identity_of(value: Any) -> str:
    """Return a hash of a function and of the values that it uses.

    Args:
        value: A function, a partial one, an object that can be called, an estimator, or a tensor.
    """
    hasher = _Hasher(value)
    hasher.add_called(value)
    return hasher.digest.hexdigest()[:32]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code and that of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType, *operations: str) -> set[str]:
    """Return the names on which some operations of the code act."""
    return {
        str(step.argval)
        for part in _codes(code)
        for step in dis.get_instructions(part)
        if step.opname in operations
    }


def _methods(cls: type) -> list[types.FunctionType]:
    return [value for value in vars(cls).values() if isinstance(value, types.FunctionType)]


class _Hasher:
    """Hash of values, each function, class and network once."""

    def __init__(self, root: Any) -> None:
        while isinstance(root, partial):
            root = cast("partial[Any]", root).func
        self.module = getattr(root, "__module__", "")
        self.digest = hashlib.sha256()
        self.seen: dict[int, Any] = {}  # the objects are kept, so that no other gets their number

    def put(self, *texts: str) -> None:
        for text in texts:
            self.digest.update(text.encode("utf-8", "backslashreplace") + b"\0")

    def add_called(self, value: Any) -> None:
        """Add a function, or an object that is called, with its attributes."""
        if isinstance(value, types.MethodType):
            self.add(value.__func__)
            self.add_called(value.__self__)
            return
        has_attributes = hasattr(value, "__dict__") and not isinstance(
            value, type | nn.Module | Tensor
        )
        is_known = isinstance(value, types.FunctionType | partial) or is_estimator(value)
        if is_known or not has_attributes:
            self.add(value)
            return
        cls: type = type(value)
        methods = [method for base in cls.__mro__[:-1] for method in _methods(base)]
        changed = {
            name
            for method in methods
            if method.__name__ != "__init__"
            for name in _names(method.__code__, "STORE_ATTR")
        }
        self.add_class(cls)
        self.add({name: item for name, item in vars(value).items() if name not in changed})

    def add(self, value: Any) -> None:
        """Add a value of any type."""
        if isinstance(value, PLAIN):
            text = value.id if isinstance(value, RunSpec) else repr(value)
            self.put(type(value).__name__, text)
            return
        if id(value) in self.seen:
            self.put(name_of(value))
            return
        self.seen[id(value)] = value
        self.put(type(value).__name__)
        if isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        elif library_of(value) == "pandas" and hasattr(value, "to_numpy"):
            self.add([str(name) for name in getattr(value, "columns", ())])
            self.add(value.to_numpy())
        elif isinstance(value, Mapping):
            for name, item in cast("Mapping[Any, Any]", value).items():
                self.add(name)
                self.add(item)
        elif isinstance(value, list | tuple):
            self.put(str(len(cast("list[Any]", value))))
            for item in cast("list[Any]", value):
                self.add(item)
        elif isinstance(value, set | frozenset):
            self.put(*sorted(map(repr, cast("set[Any]", value))))
        elif isinstance(value, partial):
            part = cast("partial[Any]", value)
            self.add([part.func, part.args, part.keywords])
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.add([value.__func__, value.__self__])
        elif isinstance(value, nn.Module):
            self.put(name_of(type(value)), repr(value))
            self.add(dict(value.state_dict()))
        elif isinstance(value, type):
            self.add_class(value)
        elif is_estimator(value):
            self.put(name_of(type(value)))
            self.add(value.get_params(deep=False))
        elif is_dataclass(value):
            self.put(name_of(type(value)))
            self.add({field.name: getattr(value, field.name, None) for field in fields(value)})
        elif isinstance(value, Namespace | types.SimpleNamespace):
            self.add(dict(vars(value)))
        else:
            self.put(name_of(value))
        if isinstance(value, CONTAINERS):
            del self.seen[id(value)]

    def add_class(self, cls: type) -> None:
        """Add the name of a class, and its methods and values if it is defined in the module of the function."""
        self.put(name_of(cls))
        if cls.__module__ != self.module:
            return
        for base in cls.__mro__[1:-1]:
            self.add(base)
        for name, value in vars(cls).items():
            # of a static method, a class method, a property
            value = getattr(value, "__func__", getattr(value, "fget", value))
            is_setting = isinstance(value, (*PLAIN, *CONTAINERS)) and not name.startswith("__")
            if is_setting or isinstance(value, types.FunctionType):
                self.put(name)
                self.add(value)

    def _add_tensor(self, tensor: Tensor) -> None:
        self.put(str(tensor.dtype), str(tuple(tensor.shape)))
        if tensor.is_meta or tensor.layout != torch.strided:
            return
        values = with_canonical_strides(tensor.detach().cpu().contiguous()).reshape(-1)
        self.digest.update(values.view(torch.uint8).numpy().tobytes())

    def _add_array(self, array: np.ndarray) -> None:
        self.put(str(array.dtype), str(array.shape))
        if array.dtype.hasobject:
            self.add(array.tolist())
        else:
            self.digest.update(np.ascontiguousarray(array).tobytes())

    def _add_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.put(name_of(function))
        self._add_code(code, function.__doc__)
        self.add([function.__defaults__, function.__kwdefaults__])
        assigned = _names(code, "STORE_DEREF")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in assigned:
                self.put(name)
                self._add_cell(cell)
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.add(wrapped)
        if function.__module__ != self.module:
            return
        for name in sorted(_names(code, "LOAD_GLOBAL") - _names(code, "STORE_GLOBAL")):
            self.put(name)
            self._add_global(function.__globals__.get(name))

    def _add_cell(self, cell: types.CellType) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            return
        self.add(value)

    def _add_global(self, value: Any) -> None:
        is_definition = isinstance(value, types.FunctionType | type)
        if isinstance(value, types.ModuleType):
            self.put(value.__name__)
        elif is_definition and value.__module__ != self.module:
            self.put(name_of(value))
        else:
            self.add(value)

    def _add_code(self, code: types.CodeType, doc: str | None = None) -> None:
        self.digest.update(code.co_code)
        self.put(*code.co_names, *code.co_varnames, *code.co_freevars)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            elif doc is None or constant is not doc:
                self.add(constant)
