"""Types of the arguments of public functions, checked at the call."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from gapscope.base.bunches import as_pair, is_bunch
from gapscope.base.errors import InvalidInput, describe_value
from gapscope.base.randomness import kept_host_states
from gapscope.base.type_guards import is_list_or_tuple

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_VALUE = 60
"""Characters of a value in a message; by judgment, half a line."""


@dataclass(frozen=True)
class Kind:
    """What a parameter accepts, in words, and the test of a value."""

    words: str
    accepts: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except (TypeError, RuntimeError):  # torch raises RuntimeError for a tensor of several elements
        return False
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | str | bytes):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    except OverflowError:  # an integer beyond all floating-point numbers
        return True
    return True


def _is_true_or_false(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_instance(wanted: type[Any], value: Any) -> bool:
    return isinstance(value, wanted)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_iterable(value: Any) -> bool:
    """Return whether a value can be iterated: a tensor without dimensions cannot, although it says so."""
    if isinstance(value, bytes):
        return False
    try:
        iter(value)
    except TypeError:
        return False
    return True


SCALARS = {
    "int": Kind("an integer", _is_integer),
    "float": Kind("a number", _is_number),
    "bool": Kind("True or False", _is_true_or_false),
    "str": Kind("a string", lambda value: isinstance(value, str)),
    "Path": Kind("a path", lambda value: isinstance(value, os.PathLike)),
}
MAPPINGS = ("Mapping", "dict", "MutableMapping")
SEQUENCES = ("Sequence", "Iterable", "tuple", "list", "Collection")
ANYTHING = ("Any", "object", "Module", "Tensor")
"""Annotations of what the functions convert or refuse themselves; networks may be estimators or checkpoints."""
PLURALS = {"str": "strings", "int": "integers", "float": "numbers"}


def _name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _sequence(node: ast.expr) -> Kind:
    """Return the kind of `Sequence[item]`; the items of lists and tuples are checked if they are scalars."""
    if isinstance(node, ast.Tuple):
        first, *others = node.elts
        if not all(isinstance(other, ast.Constant) for other in others):
            return Kind("a tuple", _is_iterable)  # of a fixed length, whose parts differ
        node = first
    item = SCALARS.get(_name(node))
    if item is None or _name(node) not in PLURALS:
        return Kind("a list", _is_iterable)

    def accepts(values: Any) -> bool:
        if is_list_or_tuple(values):
            return all(item.accepts(value) for value in values)
        return _is_iterable(values)

    return Kind(f"a list of {PLURALS[_name(node)]}", accepts)


def _of_class(name: str, found: Any) -> Kind | None:
    """Return the kind of a class, which need not be imported; None for what is not a class of objects to check."""
    if get_origin(found) is Callable or found is Callable:
        return Kind("a function", callable)
    words = f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
    if found is None:
        # imported for type checkers alone: the class has the same name
        return Kind(words, lambda value: name in (each.__name__ for each in type(value).__mro__))
    if not inspect.isclass(found) or getattr(found, "_is_protocol", False):
        return None
    if found.__module__.startswith("jaxtyping"):
        return None
    return Kind(words, partial(_is_instance, found))


def _as_expression(union: Any) -> ast.expr:
    """Return the syntax tree of a union of types, such as the value of an alias."""
    parts: list[str] = []
    for part in get_args(union):
        if part is type(None):
            parts.append("None")
        elif inspect.isclass(part) and get_origin(part) is None:
            parts.append(part.__name__)
        else:
            parts.append(repr(part))
    return ast.parse(" | ".join(parts), mode="eval").body


def _kinds(node: ast.expr, names: Mapping[str, Any]) -> list[Kind] | None:
    """Return what an annotation accepts; None if it accepts anything, or more than is checked here."""
    if isinstance(node, ast.BinOp):
        sides = [_kinds(side, names) for side in (node.left, node.right)]
        known = [side for side in sides if side is not None]
        if len(known) < len(sides):
            return None
        return [kind for side in known for kind in side]
    if isinstance(node, ast.Constant):
        return [Kind("None", lambda value: value is None)]
    name = _name(node.value if isinstance(node, ast.Subscript) else node)
    if name in SCALARS:
        return [SCALARS[name]]
    if name in MAPPINGS:
        words = "a mapping"
        if isinstance(node, ast.Subscript) and "Tensor" in ast.unparse(node.slice):
            words = "a state dictionary"
        if isinstance(node, ast.Subscript) and "Module" in ast.unparse(node.slice):
            words = "a mapping of names to networks, such as {'first': network, 'second': other}"
        return [Kind(words, _is_mapping)]
    if name == "Callable":
        return [Kind("a function", callable)]
    if isinstance(node, ast.Subscript):
        if name in SEQUENCES:
            return [_sequence(node.slice)]
        if name == "Literal":
            return [SCALARS["str"]]
        return None
    if name in ANYTHING:
        return None
    found = names.get(ast.unparse(node).partition(".")[0])
    if isinstance(node, ast.Attribute) and inspect.ismodule(found):
        found = getattr(found, name, None)
    if isinstance(found, UnionType) or get_origin(found) is Union:  # an alias
        return _kinds(_as_expression(found), names)
    kind = _of_class(name, found)
    return None if kind is None else [kind]


def _checks(function: Callable[..., Any]) -> dict[str, list[Kind]]:
    """Return what the parameters of a function accept, those that accept anything omitted."""
    names = vars(builtins) | vars(sys.modules[function.__module__])
    checks: dict[str, list[Kind]] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or not isinstance(parameter.annotation, str):
            continue
        kinds = _kinds(ast.parse(parameter.annotation, mode="eval").body, names)
        if kinds is not None:
            checks[parameter.name] = kinds
    return checks


def _check(name: str, value: Any, kinds: Sequence[Kind]) -> None:
    """Raise InvalidInput if there are kinds of values and none of them accepts this one."""
    if not kinds or any(kind.accepts(value) for kind in kinds):
        return
    words = " or ".join(dict.fromkeys(kind.words for kind in kinds))
    # an array or a frame by its shape; others on one line
    has_shape = bool(getattr(value, "shape", ()))
    if has_shape:
        shown = describe_value(value)
    else:
        shown = " ".join(repr(value).split())
    if len(shown) > LONGEST_VALUE:
        shown = shown[:LONGEST_VALUE] + "..."
    raise InvalidInput(f"{name} must be {words}; got {shown} ({type(value).__name__}).")


# Message of torch's embedding about an id that it has no row for.
NO_EMBEDDING = "index out of range in self"


def check_arguments(function: F) -> F:
    """Refuse arguments of another type than the annotations of a public function say.

    Data sets of scikit-learn are passed on as pairs (x, y), unless the column of their target is named.

    Numbers of NumPy and tensors of one number count as numbers. Networks, data and tensors are not checked: the
    functions convert them, and say more about those that they refuse.

    The global random states of Python and NumPy are restored after the call: packages that are imported by a first call
    draw from them.

    Raises:
        InvalidInput: An argument has another type; the message has the parameter, the type and the value.

    >>> @check_arguments
    ... def scale(factor: float) -> float:
    ...     return 2 * factor
    >>> scale("2")
    Traceback (most recent call last):
    gapscope.base.errors.InvalidInput: factor must be a number; got '2' (str).
    """
    signature = inspect.signature(function)
    # at the first call, when the module has all names
    checks = functools.cache(lambda: _checks(function))

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # whose message is the usual one
        arguments = bound.arguments
        for name, value in arguments.items():
            if is_bunch(value) and arguments.get("target") is None:
                arguments[name] = as_pair(value)
        for name, value in arguments.items():
            is_variadic = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            for item in value if is_variadic else (value,):
                _check(name, item, checks().get(name, ()))
        try:
            with kept_host_states():
                return function(*bound.args, **bound.kwargs)
        except IndexError as error:
            if str(error) != NO_EMBEDDING:
                raise
            raise InvalidInput(
                "An embedding of the network has no row for one of the numbers in the inputs: token ids must be below "
                "its num_embeddings. Compare the largest id with it; the tokenizer may be that of another network."
            ) from error

    return checked  # type: ignore[return-value]
