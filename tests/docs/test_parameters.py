"""Every public function, class and method documents each of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gapscope


def undocumented(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that have no entry in the docstring."""
    document = inspect.getdoc(function) or ""
    parameters = [
        name for name in inspect.signature(function).parameters if name not in ("self", "cls")
    ]
    return [
        name for name in parameters if not re.search(rf"^ +\*{{0,2}}{name}: ", document, flags=re.M)
    ]


def public_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and classes, and the public methods that the classes define."""
    owners = [(name, getattr(gapscope, name)) for name in dir(gapscope)]
    owners += [(f"functional.{name}", value) for name, value in vars(gapscope.functional).items()]
    for name, value in owners:
        if inspect.isfunction(value) or inspect.isclass(value):
            yield name, value
        if inspect.isclass(value):
            for method, kind in vars(value).items():
                call = getattr(kind, "__func__", kind)
                if inspect.isfunction(call) and not method.startswith("_"):
                    yield f"{name}.{method}", call


CALLS = dict(public_calls())


@pytest.mark.parametrize("name", CALLS)
def test_every_parameter_is_documented(name: str) -> None:
    assert undocumented(CALLS[name]) == []


def test_a_parameter_without_an_entry_is_seen() -> None:
    def example(first: int, second: int, **options: Any) -> None:
        """Summarize.

        Args:
            first: Documented, unlike second: it has no entry of its own.
        """

    assert undocumented(example) == ["second", "options"]
    assert len(CALLS) > 100 and "Pool.run" in CALLS and "functional.ntk_trace" in CALLS
