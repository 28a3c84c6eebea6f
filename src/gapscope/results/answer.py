"""Base class of results that answer with one score: forecasts, estimates, curves, held-out and validated accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gapscope.results.estimate import IntervalEstimate, percent
from gapscope.results.result import Result

# Repeated samples that are at most this fraction of the interval's width, by judgment: they move a score by at most
# their own fraction. Without an interval the width of a typical one.
SMALL_MOVE, TYPICAL_WIDTH = 0.1, 0.1


def is_accuracy(score_name: str) -> bool:
    """Return whether a score is an accuracy, of samples or of another unit ("accuracy per label").

    Args:
        score_name: Name of the score.
    """
    return score_name.startswith("accuracy")


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class Answer(Result):
    """A score on new data with its interval, or the reason why there is none.

    Attributes:
        task: "classification", "multi-label", "positions", "regression" or "own metric".
        score: The score. If there is no answer, that of the finished part, or NaN.
        samples: Number of samples that it was computed from.
        low: Lower end of its interval; NaN without one.
        high: Upper end.
        level: Nominal coverage of the interval.
        score_name: "accuracy", "R^2", or the name of the user's score.
        abstained_because: Why there is no answer; empty if there is one.
        notes: Sentences about the data, approximations, and what was omitted.
        interrupted: Whether Ctrl-C ended it, so that a part is missing.
    """

    task: str
    score: float
    samples: int
    low: float = math.nan
    high: float = math.nan
    level: float = 0.9
    score_name: str = "accuracy"
    abstained_because: str = ""
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    _title: ClassVar[str]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval; None without one."""
        if math.isnan(self.low):
            return None
        return self.low, self.high

    @property
    def estimate(self) -> IntervalEstimate | None:
        """The score with the ends of its interval; None without an answer or an interval."""
        if self.abstained_because or self.interval is None:
            return None
        return IntervalEstimate(self.score, self.low, self.high)

    @property
    def headline(self) -> str:
        """The answer with its interval, or why there is none, in one sentence."""
        if self.abstained_because:
            return f"No answer: {self.abstained_because.removesuffix('.')}."
        answer = f"{self._title} {self.score_name}{self._subject}: {self._format(self.score)}"
        if self.interval is not None:
            answer += f" ({percent(self.level)} interval {self._format_ends(self.low, self.high)})"
        return answer + self._scope

    @property
    def warning(self) -> str:
        """A sentence on repeated samples that may move the score; empty if there are none or few."""
        repeated, sentence = self._repeats
        if not repeated or self._are_few(repeated):
            return ""
        return f"{sentence} Remove them before using these numbers."

    @property
    def _repeats(self) -> tuple[int, str]:
        """Number of samples that repeat another one, and a sentence on them."""
        return 0, ""

    def _are_few(self, repeated: int) -> bool:
        """Return whether so many samples cannot move the score by a tenth of its interval."""
        width = TYPICAL_WIDTH if math.isnan(self.low) else self.high - self.low
        return repeated <= SMALL_MOVE * width * self.samples

    @property
    def _all_notes(self) -> tuple[str, ...]:
        """Notes, and one on repeated samples that are too few for a warning."""
        repeated, sentence = self._repeats
        if not repeated or self.warning:
            return self.notes
        return *self.notes, f"{sentence} They are too few to move the score."

    @property
    def sentences(self) -> tuple[str, ...]:
        """Warning, headline, details and notes, one sentence each."""
        lines = (self.warning, self.headline, *self._details, *self._all_notes)
        return tuple(line for line in lines if line)

    @property
    def _subject(self) -> str:
        """What the score is of, between its name and the number."""
        return ""

    @property
    def _scope(self) -> str:
        """What the score applies to, after the interval."""
        return ""

    @property
    def _details(self) -> tuple[str, ...]:
        return ()

    @property
    def _table(self) -> str:
        """The printed table; empty for none."""
        return ""

    @property
    def _is_fraction(self) -> bool:
        return is_accuracy(self.score_name)

    def _format(self, score: float) -> str:
        if self._is_fraction:
            return percent(score, 1)
        return f"{score:.3f}"

    def _format_ends(self, low: float, high: float) -> str:
        if self._is_fraction:
            return f"{100 * low:.1f} to {percent(high, 1)}"
        return f"{low:.3f} to {high:.3f}"

    def _format_estimate(self, estimate: IntervalEstimate) -> str:
        return f"{self._format(estimate.value)} ({self._format_ends(estimate.low, estimate.high)})"

    def __repr__(self) -> str:
        lines = (self.warning, self.headline, self._table, *self._details, *self._all_notes)
        return "\n".join(line for line in lines if line)
