"""Every public name documents its parameters and the fields of its results, in its own docstring.

Public are the names of `gapscope` and of its public packages, their methods, and the classes of the results that they
return, with the classes of the fields of these.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import gapscope
from gapscope.base.budget import MAX_BYTES

# what penalties and contributions exchange during a pass; results hold none of it
INTERNAL = "gapscope.gradients"


def names_of(call: Callable[..., Any]) -> list[str]:
    """Return the parameters of a call, and the public fields of a data class."""
    names = [name for name in inspect.signature(call).parameters if name not in ("self", "cls")]
    if inspect.isclass(call) and dataclasses.is_dataclass(call):
        names += [item.name for item in dataclasses.fields(call) if not item.name.startswith("_")]
    return list(dict.fromkeys(names))


def undocumented(call: Callable[..., Any]) -> list[str]:
    """Return the parameters and fields that have no entry in the docstring."""
    document = inspect.getdoc(call) or ""
    return [
        name
        for name in names_of(call)
        if not re.search(rf"^ +\*{{0,2}}{name}: \S", document, flags=re.MULTILINE)
    ]


def public_names(module: ModuleType) -> list[str]:
    """Return the names of `__all__`, else the functions and classes of gapscope that a package imports."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [name for name, value in vars(module).items() if is_own(value) and name[0] != "_"]


def is_own(value: Any) -> bool:
    """Return whether a value is a function or class of gapscope (not of its studies, which other tests import)."""
    is_call = inspect.isfunction(value) or inspect.isclass(value)
    return is_call and value.__module__.split(".")[0] == "gapscope"


def methods_of(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods of a class, also those that classes of gapscope hand down to it."""
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        call = getattr(member, "__func__", member)
        if name[0] != "_" and inspect.isfunction(call) and is_own(call):
            yield name, call


def annotated_classes(cls_or_call: Any) -> Iterator[type]:
    """Yield the classes of gapscope in the annotations of what a call returns, or of the fields of a class."""
    annotations = inspect.get_annotations(cls_or_call)
    if inspect.isfunction(cls_or_call):
        annotations = {"return": annotations.get("return", "")}
    for word in dict.fromkeys(re.findall(r"\w+", " ".join(map(str, annotations.values())))):
        cls = KNOWN.get(word)
        if cls is not None and not cls.__module__.startswith(INTERNAL):
            yield cls


def public_calls() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes, then the classes of results, each with its methods."""
    packages = [gapscope, *(value for value in PUBLIC.values() if inspect.ismodule(value))]
    waiting = [
        value
        for package in packages
        for name in public_names(package)
        if is_own(value := getattr(package, name))
    ]
    seen: set[Any] = set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        yield f"{value.__module__.removeprefix('gapscope.')}.{value.__qualname__}", value
        waiting += annotated_classes(value)
        if inspect.isclass(value):
            for name, call in methods_of(value):
                yield f"{value.__module__.removeprefix('gapscope.')}.{value.__name__}.{name}", call
                waiting += annotated_classes(call)


PUBLIC = {name: getattr(gapscope, name) for name in dir(gapscope)}
KNOWN = {
    name: value
    for module in list(sys.modules.values())
    if getattr(module, "__name__", "").startswith("gapscope")
    for name, value in list(vars(module).items())
    if inspect.isclass(value) and is_own(value) and not name.startswith("_")
}
CALLS = dict(public_calls())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_parameter_is_documented(name: str) -> None:
    assert undocumented(CALLS[name]) == []


def test_the_memory_of_temporaries_is_the_one_in_the_code() -> None:
    limited = [call for call in CALLS.values() if "max_bytes" in names_of(call)]
    stated = f"at most {MAX_BYTES / 2**30:.0f} GiB"
    assert limited and all(stated in (inspect.getdoc(call) or "") for call in limited)


def test_a_parameter_without_an_entry_is_seen() -> None:
    def example(first: int, second: int, **options: Any) -> None:
        """Summarize.

        Args:
            first: Documented, unlike second: it has no entry of its own.
        """

    assert undocumented(example) == ["second", "options"]


def test_a_field_without_an_entry_is_seen() -> None:
    @dataclasses.dataclass
    class Example:
        """Result.

        Attributes:
            first, second: Two on one line are none.
            third: Documented.
        """

        first: int
        second: int
        third: int = 0

    assert undocumented(Example) == ["first", "second"]


def test_all_public_names_are_covered() -> None:
    assert len(CALLS) > 400
    assert {
        "pools.pool.Pool.run",
        "measures.ntk.ntk_trace",
        "gap.cross_validation.cross_validate",
        "penalties.weight.L2Penalty.value",
        "accuracy.learning_curve_result.SubsetRun",
        "batch_norm.gamma_decay.layer_decay.LayerDecay",
    } <= set(CALLS)
