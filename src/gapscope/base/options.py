"""Options of registered objects, and documentation of common parameters."""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.base.type_guards import is_list_or_tuple, is_mapping

Value = TypeVar("Value")


def add_common_parameters(registered: Any, package: str) -> None:
    """Add the common parameters of a package, and of its own file, to a docstring.

    These are the entries under "Common parameters:" in the docstrings of both modules, for parameters of the function
    or class that its own docstring does not document.
    """
    common: dict[str, str] = {}
    for module in (package, registered.__module__):
        table = (sys.modules[module].__doc__ or "" if module in sys.modules else "").partition(
            "ommon parameters:\n"
        )[2]
        common |= dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", table, flags=re.M))
    document = inspect.getdoc(registered) or ""
    missing = [
        f"    {name}: {common[name]}\n"
        for name in inspect.signature(registered).parameters
        if name in common and f"\n    {name}: " not in document
    ]
    if not missing or "Args:\n" in document:
        registered.__doc__ = document.replace("Args:\n", "Args:\n" + "".join(missing))
        return
    # before the first section or example, else at the end
    end = re.search(r"^(Returns:|Raises:|Attributes:|>>> )", document, flags=re.M)
    if end:
        at = end.start()
    else:
        at = len(document)
    text = document[:at].rstrip() + "\n\nArgs:\n" + "".join(missing) + "\n" + document[at:]
    registered.__doc__ = text.rstrip() + "\n"


def as_codes(codes: Iterable[str]) -> list[str]:
    """Return codes of checks as a list; text is one code, or several with commas or spaces between them.

    >>> as_codes("GS203, GS302")
    ['GS203', 'GS302']
    """
    if isinstance(codes, str):
        return codes.replace(",", " ").split()
    return list(codes)


def with_prefix(values: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the entries whose names begin with a prefix, by the rest of the name."""
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def check_known(
    owner: str, names: Iterable[str], known: Iterable[str], *, noun: str = "option"
) -> None:
    """Raise InvalidInput with the nearest name for an unknown name (of type `noun`)."""
    known = list(known)
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InvalidInput(
                f"{owner} has no {noun} {name!r}; {noun}s: {listed}.{did_you_mean(str(name), known)}"
            )


def check_settings(owner: str, settings: Mapping[str, Any], cls: type) -> None:
    """Raise InvalidInput for settings that a class does not have, or that it needs and are missing.

    Args:
        owner: What has the settings, for the message, such as "Penalty 'weight'".
        settings: Name -> value.
        cls: Class that is called with them.

    Raises:
        InvalidInput: A setting is unknown or missing.
    """
    parameters = inspect.signature(cls).parameters
    check_known(owner, settings, parameters, noun="setting")
    for name, item in parameters.items():
        if item.default is item.empty and name not in settings:
            raise InvalidInput(
                f"{owner} needs the setting {name!r}; got {', '.join(settings) or 'no settings'}. Add it: "
                f"{cls.__name__}({name}=...)."
            )


def coerce(name: str, value: Any, annotation: Any) -> Any:
    """Convert a value to its declared type (0 and 0.0 are one setting).

    Args:
        name: Name of the setting, for the message.
        value: Value from JSON or TOML, or a scalar or array of numpy or torch.
        annotation: bool, int, float, str, a data class, a mapping, `tuple[T, ...]`, or one of these or None.

    Raises:
        InvalidInput: The value has another type.

    >>> coerce("rate", 1, float), coerce("rate", None, float | None), coerce("sizes", [1, 2], tuple[int, ...])
    (1.0, None, (1, 2))
    """
    value = as_python(value)
    origin = typing.get_origin(annotation)
    if origin is typing.Union or isinstance(annotation, types.UnionType):
        if value is None:
            return None
        annotation = next(part for part in typing.get_args(annotation) if part is not type(None))
        origin = typing.get_origin(annotation)
    expected = getattr(annotation, "__name__", str(annotation))
    if isinstance(annotation, type) and is_dataclass(annotation):
        if isinstance(value, annotation):
            return value
        return from_mapping(annotation, value, name)
    if origin is tuple:
        item_type = typing.get_args(annotation)[0]
        if not is_list_or_tuple(value):
            raise InvalidInput(
                f"{name} must be a list; got {value!r}. Write it in square brackets."
            )
        return tuple(coerce(f"{name}[{i}]", item, item_type) for i, item in enumerate(value))
    if annotation is float and isinstance(value, int | float) and not isinstance(value, bool):
        if (
            not abs(value) <= sys.float_info.max
        ):  # NaN, infinite, or an integer beyond all floating-point numbers
            raise InvalidInput(f"{name} must be a finite number; got {str(value)[:40]}.")
        return float(value)
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if origin is not None and is_mapping(value):
        return as_jsonable(name, value)
    if annotation in (bool, str) and isinstance(value, annotation):
        return value
    raise InvalidInput(
        f"{name} must be of type {expected}; got {value!r} ({type(value).__name__})."
    )


def as_python(value: Any) -> Any:
    """Return numbers and lists of Python for scalars and arrays of numpy and torch; other values as they are."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def as_jsonable(name: str, value: Any) -> Any:
    """Return a setting as JSON can represent it, because settings enter the id of a run.

    Args:
        name: Name of the setting, for the message.
        value: Number, text, truth value, None, scalar or array of numpy or torch, or a list or mapping of these.

    Raises:
        InvalidInput: The value is another one, or not finite.
    """
    value = as_python(value)
    if is_mapping(value):
        return {key: as_jsonable(f"{name}.{key}", item) for key, item in value.items()}
    if is_list_or_tuple(value):
        items = [as_jsonable(f"{name}.{i}", item) for i, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{name} must be a finite number; got {value}.")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise InvalidInput(
            f"{name} must be a number, a string, true or false, or a list of these; got {value!r}."
        )
    return value


def from_mapping(cls: Any, content: Any, where: str) -> Any:
    """Return the data class described by a table of settings.

    Raises:
        InvalidInput: The content is no table, or has a setting that the class lacks.
    """
    if not is_mapping(content):
        raise InvalidInput(f"{where} must be a table of settings; got {content!r}.")
    check_known(where, content, [item.name for item in fields(cls)], noun="setting")
    return cls(**content)
