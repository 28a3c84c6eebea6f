"""Registry of checks, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from gapscope.checks.context import Context


@dataclass(frozen=True)
class Finding:
    """Limit of the network, with its evidence.

    Attributes:
        evidence: Measured numbers.
        action: What to do, in the imperative.
        cost: Expected cost in accuracy, between 0 and 1; findings are ordered by it.
        indices: Samples of the finding, if any.
        code, title: Those of the check, added when it runs.
    """

    evidence: str
    action: str
    cost: float
    indices: Tensor | tuple[int, ...] = ()
    code: str = ""
    title: str = ""


@dataclass(frozen=True)
class Fine:
    """Outcome of a check without a finding, with its evidence."""

    evidence: str = ""
    code: str = ""
    title: str = ""


@dataclass(frozen=True)
class NotChecked:
    """Outcome of a check that could not run: the reason, and the missing argument."""

    reason: str
    code: str = ""
    title: str = ""


Outcome = Finding | Fine | NotChecked


@dataclass(frozen=True)
class Check:
    """Registered check, from the context to an outcome (see `register_check`)."""

    code: str
    title: str
    function: Callable[[Context], Outcome] = field(compare=False)
    seconds: float = 0.1
    information: bool = False


_CHECKS: dict[str, Check] = {}


def register_check(
    code: str, *, title: str, seconds: float = 0.1, information: bool = False
) -> Callable[[Callable[[Context], Outcome]], Callable[[Context], Outcome]]:
    """Register the decorated function as a check.

    Args:
        code: "GS" and three digits, the first for the kind: 1 data, 2 network, 3 training run, 4 trained network.
        title: Noun phrase for the finding.
        seconds: Rough time for 500 samples and a small network; checks run in this order.
        information: Whether it is information only, because its evaluation on planted faults did not support it.
    """

    def register(function: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        other = _CHECKS.get(code)
        if other is not None and other.function.__module__ != function.__module__:
            raise InvalidInput(f"A check with the code {code!r} is registered already. Choose another code.")
        _CHECKS[code] = Check(code, title, function, seconds, information)
        return function

    return register


def list_checks() -> dict[str, Check]:
    """Return all checks by code."""
    import_all("gapscope.checks")
    return dict(sorted(_CHECKS.items()))


def get_checks(codes: tuple[str, ...] | list[str]) -> list[Check]:
    """Return checks by code."""
    checks = list_checks()
    for code in codes:
        if code not in checks:
            raise InvalidInput(f"Got check {code!r}; known are {', '.join(checks)}.{did_you_mean(code, checks)}")
    return [checks[code] for code in codes]
