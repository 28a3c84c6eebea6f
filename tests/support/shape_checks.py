"""Type checker of `pytest --jaxtyping-packages=...,support.shape_checks.checked`: shapes and types of calls.

Each test checks its first calls, as many as `CALLS`, and no more: a check takes longer than a small function, and what
is wrong with the shapes of a function shows in its first calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from typing import Any

import jaxtyping

CALLS = 60
_left = CALLS


def check_anew() -> None:
    """Let the next calls be checked, as a new test begins."""
    global _left
    _left = CALLS
    jaxtyping.config.update("jaxtyping_disable", False)


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def counted(*args: Any, **options: Any) -> Any:
        global _left
        _left -= 1
        if _left <= 0:
            jaxtyping.config.update("jaxtyping_disable", True)
        state = random.getstate()  # beartype draws which item of a list it looks at
        try:
            return function(*args, **options)
        finally:
            random.setstate(state)

    return counted


try:
    from beartype import BeartypeConf, beartype
except ImportError:  # machines with a GPU may lack it; shapes are then not checked

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is."""
        return function
else:
    # an int is a float, as PEP 484 has it
    _typed = beartype(conf=BeartypeConf(is_pep484_tower=True))

    def checked(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its arguments and its result checked, while calls are left."""
        # an inner function is recreated at every call of the outer one, and its check with it, which takes 2 ms
        if _left <= 0 and "<locals>" in function.__qualname__:
            return function
        return _counted(_typed(function))
