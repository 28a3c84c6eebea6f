"""Time accounting of a monitor, and its limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# recordings that take less than this in total are never skipped: short training runs are recorded completely
FREE_SECONDS = 2.0


@dataclass(frozen=True)
class Cost:
    """Wall time of a monitor's recordings.

    Attributes:
        recordings: Number of recordings.
        seconds: Total time, sinks included.
        share: Fraction of the time between the first and the last recording that was spent recording, the last one
            included; NaN before the second recording.
    """

    recordings: int
    seconds: float
    share: float

    @property
    def seconds_per_recording(self) -> float:
        """Mean seconds per recording, NaN before the first."""
        return self.seconds / self.recordings if self.recordings else math.nan

    def __str__(self) -> str:
        share = "" if math.isnan(self.share) else f", {self.share:.1%} of the time between them"
        return f"{self.recordings} recordings of {self.seconds_per_recording:.3g} s each{share}"


def would_exceed(fraction: float | None, spans: Sequence[tuple[float, float]], begun: float | None, now: float) -> bool:
    """Return True if one more recording would exceed the allowed fraction of the time (None for no limit).

    `spans` are start and end of the recordings so far. `begun` is the start of the training; without it the start of
    the first recording counts. Never True before the first recording, nor below `FREE_SECONDS` in total.
    """
    if fraction is None or not spans:
        return False
    seconds = [end - start for start, end in spans]
    elapsed = now - (spans[0][0] if begun is None else begun)
    return sum(seconds) + seconds[-1] > max(FREE_SECONDS, fraction * (elapsed + seconds[-1]))
