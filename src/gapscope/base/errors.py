"""Errors that gapscope raises, and the checks that raise them.

A message has three parts: what was passed, what is needed, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, cast


class GapscopeError(Exception):
    """Base of all errors that gapscope raises on purpose."""


class InvalidInput(GapscopeError, ValueError):
    """Unusable argument, tensor or setting."""


class UnreadableFile(GapscopeError, ValueError):
    """File that is truncated, of another format, of a newer schema, or fails its checksum."""


class DamagedFile(UnreadableFile):
    """Truncated or corrupted file whose content can be recreated."""


class DamagedFileWarning(UserWarning):
    """Warning that a damaged file was skipped or recreated."""


class NotWritten(GapscopeError, OSError):
    """Failure to write a file, for example on a full disk (its old content is untouched)."""


class DataNotFound(GapscopeError, FileNotFoundError):
    """Missing files of a data set."""


class DeviceNotFound(GapscopeError, RuntimeError):
    """Torch device that this machine or this build of torch lacks."""


class NotMeasurable(GapscopeError, ValueError):
    """Measure without a value for this network and these data (such as no hidden layer)."""


class BudgetSpent(NotMeasurable):
    """Work that the budget of CPU seconds does not allow: ended because it was spent, or not begun."""


class NetworkFailed(GapscopeError, RuntimeError):
    """Network that raised an error of its own on some of the samples."""


class OutOfMemory(GapscopeError, MemoryError):
    """Work that needs more memory than there is."""


class MissingExtra(GapscopeError, ImportError):
    """Optional dependency that is not installed."""


class WorkerDied(GapscopeError, RuntimeError):
    """Worker process that ended twice on one job (killed, or out of memory)."""


class UnsupportedLayer(GapscopeError, NotImplementedError):
    """Layer for which a quantity cannot be computed."""


class NeverSupported(UnsupportedLayer):
    """Layer for which the quantity is undefined (for example because it mixes samples)."""


class NotYetSupported(UnsupportedLayer):
    """Layer without a rule for the quantity yet."""


class ReplaceLayer(UnsupportedLayer):
    """Layer to be replaced or configured differently, as the message explains."""


class SlowGradients(UserWarning):
    """Warning, once per network, that each sample needs its own backward pass."""


# of names, rows or classes in one message: more do not fit a line
MAX_NAMED = 10


def join_names(names: Iterable[object]) -> str:
    """Return the first names of a message, separated by commas.

    >>> join_names(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...'
    """
    words = [str(name) for name in names]
    return ", ".join([*words[:MAX_NAMED], *(["..."] if len(words) > MAX_NAMED else [])])


def describe_value(value: Any) -> str:
    """Return what a message says of an unusable value: its shape, its length if it is a tuple, or its type.

    >>> describe_value((1, 2)), describe_value("text")
    ('a tuple of 2', 'str')
    """
    if hasattr(value, "shape"):
        return str(list(value.shape))
    if isinstance(value, tuple):
        return f"a tuple of {len(cast('tuple[Any, ...]', value))}"
    return type(value).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string.

    >>> did_you_mean("widht", ["width", "depth"])
    " Did you mean 'width'?"
    """
    by_folded = {each.casefold(): each for each in reversed([*known])}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    if matches:
        return f" Did you mean '{by_folded[matches[0]]}'?"
    return ""


def check_choice(parameter: str, value: str, choices: Iterable[str]) -> None:
    """Raise InvalidInput with the nearest choice unless `value` is one of `choices`."""
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise InvalidInput(
            f"{parameter} must be one of {listed}; got {value!r}.{did_you_mean(str(value), choices)}"
        )


def check_range(
    parameter: str,
    value: float | int,
    low: float | int | None = None,
    high: float | int | None = None,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> None:
    """Raise InvalidInput unless a value is in the interval (NaN never is)."""
    try:
        above = low is None or (value > low if low_open else value >= low)
        below = high is None or (value < high if high_open else value <= high)
    except TypeError:
        raise InvalidInput(f"{parameter} must be a number; got {value!r}.") from None
    if above and below and value == value:
        return
    left = "(-inf"
    if low is not None:
        left = f"{'(' if low_open else '['}{_shorten(low)}"
    needed = f"be {'greater than' if low_open else 'at least'} {left[1:]}"
    if high is not None:
        needed = f"lie in {left}, {_shorten(high)}{')' if high_open else ']'}"
    raise InvalidInput(f"{parameter} must {needed}; got {value}.")


def _shorten(value: float | int) -> str:
    """Return a number with four decimals if it has more and they suffice."""
    text = str(value)
    rounded = f"{value:.4f}"
    if len(text) > len(rounded) and float(rounded):
        return rounded
    return text


def check_same_length(first: str, n_first: int, second: str, n_second: int) -> None:
    """Raise InvalidInput unless two sequences have the same length."""
    if n_first != n_second:
        raise InvalidInput(
            f"{first} and {second} must have the same length; got {n_first} and {n_second}. "
            "Pass one target for each input."
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 160 characters."""
    return (str(error).strip().splitlines() or ["no message"])[0][:160]


def call_user_code(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of the user returns; what it raises becomes one message.

    Args:
        name: What the message calls the function, such as "train_fn".
        function: The function.
        *arguments: Its arguments.

    Raises:
        GapscopeError: The function raised an exception, which is the cause. Errors of gapscope pass as they are.
    """
    try:
        return function(*arguments)
    except GapscopeError:
        raise
    except Exception as error:
        raise GapscopeError(f"{name} raised {type(error).__name__}: {first_line(error)}") from error


def require_extra(module: str, extra: str) -> None:
    """Raise MissingExtra with the install command if `module` is missing."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise MissingExtra(
            f"This needs the package '{module}', which is not installed; run: pip install 'gapscope[{extra}]'."
        )
