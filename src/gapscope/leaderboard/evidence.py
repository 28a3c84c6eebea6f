"""Evidence for measures from networks of known gap, for the comparison of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gapscope.base.errors import InvalidInput

EVIDENCE = "evidence"
PREFIX = "m."


@dataclass(frozen=True, kw_only=True)
class MeasureEvidence:
    """Evidence of the leaderboard about one measure.

    Attributes:
        role: "measure", "size" or "random".
        verdict: "evidence" or "no evidence" that it predicts the gap beyond the hyperparameters.
        r: Correlation with the gap given the hyperparameters.
        low: Lower end of its 95 % bootstrap interval over training configurations.
        high: Upper end.
        p: Permutation p-value, corrected over all measures.
    """

    role: str
    verdict: str
    r: float
    low: float
    high: float
    p: float

    @property
    def trusted(self) -> bool:
        """True for a measure with evidence."""
        return self.role == "measure" and self.verdict == EVIDENCE

    def __str__(self) -> str:
        if math.isnan(self.r):
            return "fixed by the hyperparameters"
        return f"r {self.r:.2f} [{self.low:.2f}, {self.high:.2f}], p {self.p:.3f}"


@dataclass(frozen=True)
class LeaderboardEvidence:
    """Evidence of a leaderboard by reading, and its networks."""

    source: str = ""
    networks: int = 0
    by_measure: Mapping[str, MeasureEvidence] = field(default_factory=dict[str, MeasureEvidence])

    @classmethod
    def of(cls, board: Any) -> LeaderboardEvidence:
        """Read a leaderboard, or raise InvalidInput for anything else."""
        try:
            by_measure = {
                row.measure.removeprefix(PREFIX): MeasureEvidence(
                    role=row.role, verdict=row.verdict, r=row.partial.value, low=row.partial.low,
                    high=row.partial.high, p=row.partial.p,
                )
                for row in board
            }  # fmt: skip
            return cls(board.source, board.networks, by_measure)
        except (AttributeError, TypeError):
            raise InvalidInput(
                f"evidence must be a leaderboard; got {type(board).__name__}. Pass gs.rank_measures(POOL), of "
                "networks whose gap is known."
            ) from None

    @property
    def trusted(self) -> dict[str, MeasureEvidence]:
        """Measures with evidence, the strongest first."""
        trusted = {name: item for name, item in self.by_measure.items() if item.trusted}
        return dict(sorted(trusted.items(), key=lambda pair: -abs(pair[1].r)))

    @property
    def rivals(self) -> str:
        """Describe the baselines, size and random measure, in words."""
        rivals = {own.role: own for own in self.by_measure.values() if own.role != "measure"}
        words = {"size": "the size", "random": "a random measure"}
        return "; ".join(f"{words[role]}: {own}" for role, own in sorted(rivals.items(), reverse=True))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LeaderboardEvidence:
        """Build from what `to_dict` returned (numbers that are not finite arrive as strings)."""
        numbers = ("r", "low", "high", "p")
        values: dict[str, dict[str, Any]] = {
            name: {**own, **{key: float(own[key]) for key in numbers}} for name, own in content["by_measure"].items()
        }
        return cls(
            content["source"], content["networks"], {name: MeasureEvidence(**own) for name, own in values.items()}
        )
