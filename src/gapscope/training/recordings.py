"""Recordings of a monitor, their cost, and the sinks that receive them."""

from __future__ import annotations

import hashlib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import UnreadableFile
from gapscope.base.files import read_json, write_output
from gapscope.base.user_warnings import warn_user
from gapscope.inspection.outputs import inspection_mode
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize
from gapscope.results.result import Result, plot_lines

if TYPE_CHECKING:
    import pandas


class Recordings(Result):
    """Recorded numbers of a training run, one row per recording (without the monitor's data).

    Args:
        epochs: Epoch of each recording.
        rows: Name -> number of each recording.

    >>> Recordings([1, 2], [{"loss": 0.5}, {"loss": 0.25}]).to_pandas()["loss"].to_dict()
    {1: 0.5, 2: 0.25}
    """

    def __init__(self, epochs: Iterable[int], rows: Iterable[Mapping[str, float]]) -> None:
        # integers of NumPy cannot be stored as JSON
        self.epochs = [operator.index(epoch) for epoch in epochs]
        self.rows = [dict(row) for row in rows]

    _is_read_again = True

    def _content(self) -> dict[str, Any]:
        """Return the list "rows" with one dictionary per recording."""
        return {
            "rows": [
                {"epoch": epoch} | row for epoch, row in zip(self.epochs, self.rows, strict=True)
            ]
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per recording, indexed by epoch, and one column per number."""
        import pandas

        return pandas.DataFrame(self.rows, index=pandas.Index(self.epochs, name="epoch"))

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write the recordings to a JSON file for `load`, atomically.

        Args:
            path: File to write; its folder must exist.
        """
        write_output(path, self.to_json(indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Recordings:
        """Read the recordings from a file.

        Args:
            path: File that `save` wrote.

        Raises:
            UnreadableFile: The file holds no recordings.
        """
        content = read_json(Path(path))
        try:
            # others than those of `save` are errors of Python here
            rows = [dict(row) for row in content["rows"]]
            epochs = [operator.index(row.pop("epoch")) for row in rows]
            numbers = [{name: float(value) for name, value in row.items()} for row in rows]
        except (TypeError, ValueError, KeyError) as error:
            raise UnreadableFile(
                f"{path} must hold recordings: rows with an integer 'epoch' and numbers; it does not ({error}). Pass a "
                "file that Monitor.save wrote."
            ) from None
        return Recordings(epochs, numbers)

    def plot(self) -> list[Any]:
        """Plot every number over the epochs, and return the matplotlib axes."""
        columns = {
            name: [row[name] for row in self.rows] for name in (self.rows[0] if self.rows else ())
        }
        return plot_lines(self.epochs, columns, marked={})


class FixedMode(nn.Module):
    """Network that ignores changes of its mode, such as those by measures."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def train(self, mode: bool = True) -> Self:
        """Leave the mode as it is."""
        return self

    def forward(self, x: Any) -> Any:
        """Return the outputs of the network."""
        return self.network(x)


def digest_of(*tensors: Tensor | None) -> str:
    """Return a hash of the types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            values = tensor.detach().cpu().contiguous().flatten()
            digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


Sink = Callable[[int, Mapping[str, float]], None]
# An unreachable tracker may block each call until its own timeout.
MAX_FAILURES = 3


class GuardedSink:
    """Sink that warns instead of raising, and stops after `MAX_FAILURES` in a row."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.failures = 0
        self.warned = False

    def __call__(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Pass the numbers to the sink."""
        if self.failures >= MAX_FAILURES:
            return
        try:
            # restores random states and modes that a tracker changes
            with inspection_mode(nn.Identity()):
                self.sink(epoch, numbers)
            self.failures = 0
        except Exception as error:  # an error of a tracker must not end training
            self.failures += 1
            if not self.warned:
                self.warned = True
                warn_or_print(
                    f"{type(self.sink).__name__} failed on the readings of epoch {epoch} ({type(error).__name__}: "
                    f"{error}). Training continues and the monitor keeps the readings; this warning appears once, and "
                    f"after {MAX_FAILURES} failures in a row the sink is not called again."
                )


def warn_or_print(text: str) -> None:
    """Warn, or write to standard error if warnings are errors."""
    try:
        warn_user(text)
    except Warning:
        print(text, file=sys.stderr)


class Failures:
    """What could not be recorded: each part causes one warning, and no error but those of the first recording."""

    def __init__(self) -> None:
        self.parts: set[str] = set()

    @contextmanager
    def attempt(self, part: str, *, epoch: int, is_first: bool) -> Iterator[None]:
        """Warn of an error in the body, which ends no training after the first recording.

        Args:
            part: Part of the recording that the body computes.
            epoch: Epoch of the recording.
            is_first: Whether an error is raised, because no recording has succeeded yet.
        """
        try:
            yield
        except Exception as error:  # nothing in a monitor may end the training
            if is_first:
                raise
            self.warn(part, epoch, f"{type(error).__name__}: {error}")

    def warn(self, part: str, epoch: int, reason: str) -> None:
        """Warn once of a part.

        Args:
            part: Part of the recording.
            epoch: Epoch of the recording.
            reason: Why it failed.
        """
        if part in self.parts:
            return
        self.parts.add(part)
        warn_or_print(
            f"Epoch {epoch}: {part} could not be recorded ({reason}). Training continues, and what fails is NaN; this "
            "warning appears once."
        )


# CPU seconds that recordings may always take, spread over the run: short training runs are recorded completely.
FREE_SECONDS = 2.0


@dataclass(frozen=True)
class Cost:
    """CPU time of a monitor's recordings, sinks included, since training started or resumed.

    Attributes:
        recordings: Number of recordings.
        seconds: CPU seconds of all of them.
        share: Fraction of the CPU time after the first recording; NaN before the second.
        loaded: Number of earlier recordings, which were loaded and have no time.
    """

    recordings: int
    seconds: float
    share: float
    loaded: int = 0

    @property
    def seconds_per_recording(self) -> float:
        """Mean seconds per recording, NaN before the first."""
        if self.recordings:
            return self.seconds / self.recordings
        return math.nan

    def __str__(self) -> str:
        loaded = ""
        if self.loaded:
            loaded = f"{pluralize(self.loaded + self.recordings, 'recording')}; since loading "
        if not self.recordings:
            return f"{loaded}no recordings"
        recordings = pluralize(self.recordings, "recording")
        text = f"{loaded}{recordings} of {self.seconds_per_recording:.3g} s each"
        if not math.isnan(self.share):
            text += f", {percent(self.share, 1)} of the time between them"
        return text


def is_affordable(
    fraction: float | None,
    spans: Sequence[tuple[float, float]],
    start: float | None,
    now: float,
    *,
    epoch: int,
    last_epoch: int,
    epochs: int | None,
) -> bool:
    """Return whether a recording as long as the last is affordable at this epoch.

    It is if all recordings stay below the fraction of the time so far. Beyond that, two seconds are spread
    geometrically over the epochs: the m recordings that they pay for are at least a factor $N^{1/m}$ apart in a run of
    N epochs, so that the first epochs do not use them up.

    Args:
        fraction: Largest fraction of the CPU time; None for no limit.
        spans: CPU seconds at the start and the end of the recordings so far.
        start: CPU seconds at the start of training; None for that of the first recording.
        now: CPU seconds now.
        epoch: Number of this epoch.
        last_epoch: Epoch of the last recording.
        epochs: Planned number of epochs; None for an unknown number.
    """
    if fraction is None or not spans:
        return True
    seconds = [end - begin for begin, end in spans]
    elapsed = now - (spans[0][0] if start is None else start)
    total = sum(seconds) + seconds[-1]
    if total <= fraction * (elapsed + seconds[-1]):
        return True
    if total > FREE_SECONDS:
        return False
    affordable = FREE_SECONDS * len(seconds) / max(sum(seconds), 1e-9)
    # the free seconds are spread over so many epochs if their number is unknown
    horizon = 100 if epochs is None else epochs
    return affordable >= horizon or epoch >= last_epoch * horizon ** (1 / affordable)


ON_EPOCH: ContextVar[Any] = ContextVar("ON_EPOCH", default=None)
"""What `gapscope.train` calls after its epochs, while it does."""


def warn_if_hidden(monitor: Any) -> None:
    """Say at the first recording that `gapscope.train` does not know an alarm whose monitor a function calls.

    Args:
        monitor: The monitor.
    """
    called = ON_EPOCH.get()
    if called is None or monitor.alarm is None or monitor.epochs:
        return
    if getattr(called, "alarm", None) is not monitor.alarm:
        warn_or_print(
            "A function that gapscope.train calls after its epochs calls a Monitor, whose alarm it does not know: the "
            "alarm has not seen the untrained network, canaries stay in the labels after it, and checkpoints do not "
            "hold it. Pass on_epoch=monitor, and what else is to be done as its sinks."
        )
