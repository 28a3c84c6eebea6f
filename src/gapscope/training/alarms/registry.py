"""Registry of alarms: decorator and look-up by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.base.importing import import_all
from gapscope.base.options import check_known
from gapscope.training.alarms.base import Alarm

AnyAlarm = TypeVar("AnyAlarm", bound=Alarm)

_ALARMS: dict[str, type[Alarm]] = {}


def register_alarm(name: str) -> Callable[[type[AnyAlarm]], type[AnyAlarm]]:
    """Register the decorated class as an alarm that a monitor can name."""

    def register(cls: type[AnyAlarm]) -> type[AnyAlarm]:
        _ALARMS[name] = cls
        return cls

    return register


def alarms() -> dict[str, type[Alarm]]:
    """Return all registered alarms by name, sorted, importing those of gapscope first."""
    import_all("gapscope.training.alarms")
    return dict(sorted(_ALARMS.items()))


def make_alarm(name: str, **settings: Any) -> Alarm:
    """Build an alarm from its registered name and the keyword settings of its class.

    Raises:
        InvalidInput: The name or a setting is unknown; the nearest is named.
    """
    known = alarms()
    if name not in known:
        raise InvalidInput(f"There is no alarm {name!r}; known are {', '.join(known)}.{did_you_mean(name, known)}")
    check_known(f"Alarm {name!r}", settings, inspect.signature(known[name]).parameters, noun="setting")
    return known[name](**settings)
