"""Every error gapscope raises on purpose, and the small checks that raise them.

A message has three parts in one sentence: what must hold, what was given, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GapscopeError(Exception):
    """Base of all errors that gapscope raises on purpose."""


class InvalidInput(GapscopeError, ValueError):
    """An argument, a tensor or a setting that cannot be used as given."""


class UnreadableFile(GapscopeError, ValueError):
    """A file that is truncated, of another format, of a newer schema, or fails its checksum."""


class DamagedFile(UnreadableFile):
    """A file that is truncated or corrupted; what it held can be recreated."""


class DamagedFileWarning(UserWarning):
    """A damaged file was passed over, or what it held is recreated."""


class NotWritten(GapscopeError, OSError):
    """A file that could not be written, for example because the disk is full; its old content is untouched."""


class DataNotFound(GapscopeError, FileNotFoundError):
    """A data set whose files are not on this machine."""


class DeviceNotFound(GapscopeError, RuntimeError):
    """A torch device that this machine does not have, or that this build of torch cannot use."""


class NotMeasurable(GapscopeError, ValueError):
    """A measure that has no value for this network and these data (for example a layer that does not exist)."""


class MissingExtra(GapscopeError, ImportError):
    """An optional dependency that is not installed."""


class WorkerDied(GapscopeError, RuntimeError):
    """A worker process that ended, twice, on one job alone (killed from outside, or for lack of memory)."""


class UnsupportedLayer(GapscopeError, NotImplementedError):
    """A layer for which a quantity cannot be computed as asked."""


class NeverSupported(UnsupportedLayer):
    """The quantity is undefined for this layer (for example samples are mixed)."""


class NotYetSupported(UnsupportedLayer):
    """The quantity exists, gapscope has no rule for it yet."""


class ReplaceLayer(UnsupportedLayer):
    """The layer must be replaced or set differently; the message says by what."""


class SlowGradients(UserWarning):
    """Gradients of individual samples are right, but computed by one backward pass per sample; said once a network."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the known name nearest to `given`, or an empty string.

    >>> did_you_mean("widht", ["width", "depth"])
    " Did you mean 'width'?"
    """
    matches = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def check_choice(parameter: str, given: str, choices: Iterable[str]) -> None:
    """Raise InvalidInput, naming the nearest right choice, unless `given` is one of `choices`.

    Args:
        parameter: Name of the parameter, for the message.
        given: What the caller passed.
        choices: What is allowed.

    Raises:
        InvalidInput: `given` is none of `choices`.
    """
    choices = list(choices)
    if given not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInput(f"{parameter} must be one of {listed}; got {given!r}.{did_you_mean(str(given), choices)}")


def check_range(
    parameter: str,
    given: float | int,
    low: float | int | None = None,
    high: float | int | None = None,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Raise InvalidInput unless `given` lies in the interval (NaN never does).

    Args:
        parameter: Name of the parameter, for the message.
        given: What the caller passed.
        low: Smallest allowed value, None for no bound.
        high: Largest allowed value, None for no bound.
        low_open: Whether `low` itself is excluded.
        high_open: Whether `high` itself is excluded.

    Raises:
        InvalidInput: `given` is outside the interval.
    """
    try:
        above = low is None or (given > low if low_open else given >= low)
        below = high is None or (given < high if high_open else given <= high)
    except TypeError:
        raise InvalidInput(f"{parameter} must be a number; got {given!r}.") from None
    if above and below and given == given:
        return
    left = "(-inf" if low is None else f"{'(' if low_open else '['}{low}"
    right = "inf)" if high is None else f"{high}{')' if high_open else ']'}"
    raise InvalidInput(f"{parameter} must lie in {left}, {right}; got {given}.")


def check_same_length(first: str, n_first: int, second: str, n_second: int) -> None:
    """Raise InvalidInput unless two things that go together have the same length."""
    if n_first != n_second:
        raise InvalidInput(
            f"{first} and {second} must have the same length; got {n_first} and {n_second}. "
            "Pass one target for each input."
        )


def require_extra(module: str, extra: str) -> None:
    """Raise MissingExtra, with the install command, when `module` cannot be found.

    Args:
        module: Import name of the optional dependency.
        extra: The gapscope extra that brings it.

    Raises:
        MissingExtra: The module is not installed.
    """
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"This needs the package '{module}', which is not installed; "
            f"run: pip install -c constraints.txt 'gapscope[{extra}]'."
        )
