"""Claims of the paper against our numbers: paired differences over seeds with t intervals, and what they decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gapscope_studies.kit.statistics import t_interval

if TYPE_CHECKING:
    import pandas

HELD, OPPOSITE, OPEN = "held", "not held", "open"


def in_words(values: Sequence[float], digits: int = 3) -> str:
    """Mean and interval, "0.123 [0.100, 0.146]"; the mean alone for a single value."""
    mean = f"{np.mean(values):.{digits}f}" if len(values) else "none"
    low, high = t_interval(values)
    return f"{mean} [{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) else mean


@dataclass(frozen=True)
class Claim:
    """One statement of the paper about a sign or a range, with our numbers.

    Attributes:
        source: Figure or section.
        statement: What the paper says.
        quantity: What is compared, as "A minus B" or "A over B".
        values: Its value for each seed.
        above: The claim is that the mean is above this ...
        below: ... and below this.
    """

    source: str
    statement: str
    quantity: str
    values: tuple[float, ...]
    above: float = -math.inf
    below: float = math.inf

    @property
    def outcome(self) -> str:
        """Answer by the interval: "held" where all of it is claimed, "not held" where none of it is, else "open"."""
        low, high = t_interval(self.values)
        if low > self.above and high < self.below:
            return HELD
        return OPPOSITE if high <= self.above or low >= self.below else OPEN

    def row(self) -> dict[str, Any]:
        """The claim as one row of a table."""
        low, high = t_interval(self.values)
        return {
            "source": self.source,
            "the paper says": self.statement,
            "quantity": self.quantity,
            "ours": float(np.mean(self.values)) if self.values else math.nan,
            "low": low,
            "high": high,
            "seeds": len(self.values),
            "outcome": self.outcome,
        }


def claim_table(rows: Sequence[dict[str, Any]]) -> pandas.DataFrame:
    """Rows of claims with their interval in one column."""
    import pandas

    table = pandas.DataFrame(rows)
    interval = [f"[{float(low):.3g}, {float(high):.3g}]" for low, high in zip(table["low"], table["high"], strict=True)]
    return table.drop(columns=["low", "high"]).assign(**{"95 % interval": interval})


def claims_in_words(claims: Sequence[Claim]) -> str:
    """One sentence an outcome: its claims, each with mean and interval of what the table names."""
    sentences = []
    for outcome in (HELD, OPPOSITE, OPEN):
        chosen = [f"{claim.statement} ({in_words(claim.values)})" for claim in claims if claim.outcome == outcome]
        if chosen:
            sentences.append(f"{outcome.capitalize()} ({len(chosen)} of {len(claims)}): {'; '.join(chosen)}.")
    return " ".join(sentences)
