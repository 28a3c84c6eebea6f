"""Registry of penalties: a decorator and look-up by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.base.options import add_common_parameters, check_known

AnyClass = TypeVar("AnyClass", bound=type)

_PENALTIES: dict[str, type] = {}


def register_penalty(name: str) -> Callable[[AnyClass], AnyClass]:
    """Register the decorated class as a penalty, and complete its docstring.

    Common parameters that the docstring of the class does not list are added to it.
    """

    def register(cls: AnyClass) -> AnyClass:
        registered = _PENALTIES.get(name, cls)
        if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput(f"A penalty called {name!r} is registered already; choose another name.")
        add_common_parameters(cls, "gapscope.penalties")
        _PENALTIES[name] = cls
        return cls

    return register


def penalties() -> dict[str, type]:
    """Return all registered penalties by name, sorted (those of gapscope are imported first)."""
    import_all("gapscope.penalties")
    return dict(sorted(_PENALTIES.items()))


def make_penalty(name: str, options: Mapping[str, Any]) -> Any:
    """Build a penalty from its registered name and keyword settings.

    Raises:
        InvalidInput: The name or a setting is unknown (the nearest is named), or a setting without default is missing.
    """
    known = penalties()
    if name not in known:
        raise InvalidInput(f"There is no penalty {name!r}; known are {', '.join(known)}.{did_you_mean(name, known)}")
    settings = inspect.signature(known[name]).parameters
    check_known(f"Penalty {name!r}", options, settings, noun="setting")
    missing = [key for key, item in settings.items() if item.default is item.empty and key not in options]
    if missing:
        raise InvalidInput(
            f"Penalty {name!r} needs the setting {missing[0]!r}; got {', '.join(options) or 'no settings'}. Give it a "
            "value."
        )
    return known[name](**options)
