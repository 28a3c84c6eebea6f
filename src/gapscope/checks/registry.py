"""Registry of checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapscope.base.environment import import_all
from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.base.options import as_codes
from gapscope.results.catalogue import Catalogue
from gapscope.results.outcomes import Finding as Finding
from gapscope.results.outcomes import Fine as Fine
from gapscope.results.outcomes import NotChecked as NotChecked
from gapscope.results.outcomes import Outcome as Outcome

if TYPE_CHECKING:
    from gapscope.checks.context import Context


@dataclass(frozen=True)
class Check:
    """Registered check (see `register_check`).

    Attributes:
        code: "GS" and three digits.
        title: Noun phrase for the finding.
        function: Function from the context to an outcome.
        seconds: Rough time for 500 samples and a small network; checks run in this order.
        information: Whether it is information only.
        generalization: Whether it judges the accuracy on new data.
        during_training: Whether a `Monitor` can run it as well.
        min_cost: Smallest cost that it reports.
    """

    code: str
    title: str
    function: Callable[[Context], Outcome] = field(compare=False)
    seconds: float = 0.1
    information: bool = False
    generalization: bool = False
    during_training: bool = False
    min_cost: float = 0.0

    @property
    def needs_network(self) -> bool:
        """True unless the check is one of the data alone (GS1xx)."""
        return not self.code.startswith("GS1")


_CHECKS: dict[str, Check] = {}


def register_check(
    code: str,
    *,
    title: str,
    seconds: float = 0.1,
    information: bool = False,
    generalization: bool = False,
    during_training: bool = False,
    min_cost: float = 0.0,
) -> Callable[[Callable[[Context], Outcome]], Callable[[Context], Outcome]]:
    """Register the decorated function as a check.

    Args:
        code: "GS" and three digits, the first for the kind: 1 data, 2 network, 3 training run, 4 trained network. Only
            checks of the data (1) run without a network.
        title: Noun phrase for the finding.
        seconds: Rough time for 500 samples and a small network; checks run in this order.
        information: Whether it is information only, because its evaluation on planted faults did not support it.
        generalization: Whether it judges the accuracy on new data. Without an answer of such a check, a result never
            says that nothing was found.
        during_training: Whether a `Monitor` can run it as well, by the same rule (`gapscope.training.run_checks`).
        min_cost: Smallest cost that it reports: a finding that can cost less only, because less is missing on new data,
            is fine.

    Raises:
        InvalidInput: The code is registered already.
    """

    def register(function: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        other = _CHECKS.get(code)
        if other is not None and other.function.__module__ != function.__module__:
            raise InvalidInput(
                f"A check with the code {code!r} is registered already. Choose another code."
            )
        _CHECKS[code] = Check(
            code,
            title,
            function,
            seconds,
            information,
            generalization,
            during_training,
            min_cost,
        )
        return function

    return register


def list_checks() -> Catalogue[Check]:
    """Return all checks by code (printed as a table)."""
    import_all("gapscope.checks")
    return Catalogue(dict(sorted(_CHECKS.items())), lambda check: {"title": check.title})


def get_checks(codes: Sequence[str] | str) -> list[Check]:
    """Return checks by code, or raise InvalidInput for unknown ones."""
    codes = as_codes(codes)
    checks = list_checks()
    for code in codes:
        if code not in checks:
            raise InvalidInput(
                f"Got check {code!r}; known are {', '.join(checks)}.{did_you_mean(code, checks)}"
            )
    return [checks[code] for code in codes]


def is_information(code: str) -> bool:
    """Return whether a check is information only."""
    return code in list_checks() and list_checks()[code].information
