"""Result of a comparison of networks, and the evidence from a pool that supports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.results.estimate import percent
from gapscope.results.readings import BASELINE, Direction
from gapscope.results.result import StoredRows, panels

if TYPE_CHECKING:
    import pandas


EVIDENCE = "evidence"
PREFIX = "m."


@dataclass(frozen=True, kw_only=True)
class MeasureEvidence:
    """Evidence of the leaderboard about one measure."""

    role: str  # "measure", "size" or "random"
    verdict: str  # "evidence" or "no evidence" that it predicts the gap beyond the hyperparameters
    r: float  # correlation with the gap given the hyperparameters, with its 95 % bootstrap interval
    low: float
    high: float
    p: float  # permutation p-value, corrected over all measures

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
    def baselines(self) -> str:
        """Describe the baselines, size and random measure, in words."""
        baselines = {own.role: own for own in self.by_measure.values() if own.role != "measure"}
        words = {"size": "the size", "random": "a random measure"}
        return "; ".join(f"{words[role]}: {own}" for role, own in sorted(baselines.items(), reverse=True))

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


# training accuracies that differ by more than this make measures hard to compare
LIKE_FIT = 0.02
NUMBERS = ("value", "standard_error", "low", "high", "rank")


@dataclass(frozen=True, kw_only=True)
class ComparedReading:
    """One number of one network, with its interval."""

    measure: str  # such as "ntk_trace" or "unit_sparsity.zeta"
    network: str
    value: float
    standard_error: float  # over samples; NaN where it is not known
    low: float
    high: float
    direction: Direction
    rank: float  # 1 for the network that goes with the smallest gap; NaN where no direction is known
    note: str = ""  # method of the estimate, or why there is no number


@dataclass(frozen=True)
class _Vote:
    """Network that one measure ranks first, and whether its intervals separate it."""

    measure: str
    ranks: Mapping[str, float]
    first: str | None
    settled: bool


def _vote(measure: str, numbers: Sequence[Sequence[ComparedReading]]) -> _Vote:
    """Return one vote per measure, by the mean rank of its numbers."""
    networks = [row.network for row in numbers[0]]
    ranks = {name: fmean(row.rank for rows in numbers for row in rows if row.network == name) for name in networks}
    firsts = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    if len(firsts) > 1:
        return _Vote(measure, ranks, None, False)
    settled = True  # if the interval of the first network overlaps no other
    for rows in numbers:
        best = next(row for row in rows if row.network == firsts[0])
        others = [row for row in rows if row is not best]
        settled &= all(row.high < best.low or row.low > best.high for row in others)
    return _Vote(measure, ranks, firsts[0], settled)


class Comparison(StoredRows[ComparedReading]):
    """Networks compared on the same samples, the best first.

    Each measure has one vote, however many numbers it yields; margins vote by their medians, and the number of
    parameters, the baseline, does not vote. With a leaderboard of networks of known gap only numbers with evidence
    vote, in the direction that they have there.

    Attributes:
        level: Nominal coverage of the intervals.
        unmeasured: Network -> measure -> why it has no value.
        evidence: Evidence of that leaderboard; None without one.
    """

    _kind, _keys = "a comparison", frozenset({"verdict", "unmeasured"})
    level: float
    unmeasured: dict[str, dict[str, str]]
    evidence: LeaderboardEvidence | None

    def __new__(
        cls,
        rows: Iterable[ComparedReading] = (),
        level: float = 0.95,
        unmeasured: Mapping[str, Mapping[str, str]] | None = None,
        evidence: LeaderboardEvidence | None = None,
    ) -> Comparison:
        """Collect the rows."""
        reasons = {name: dict(each) for name, each in (unmeasured or {}).items()}
        return super().__new__(cls, rows, level=level, unmeasured=reasons, evidence=evidence)

    @property
    def networks(self) -> list[str]:
        """Names of the networks, in the order in which they were given."""
        return list(dict.fromkeys(row.network for row in sorted(self, key=lambda row: row.measure != BASELINE)))

    def of(self, measure: str) -> list[ComparedReading]:
        """Rows of one number, by rank."""
        return [row for row in self if row.measure == measure]

    @property
    def trusted(self) -> dict[str, MeasureEvidence]:
        """Numbers of all networks that have evidence, the strongest first."""
        trusted = {} if self.evidence is None else self.evidence.trusted
        return {name: item for name, item in trusted.items() if len(self.of(name)) == len(self.networks)}

    def votes(self) -> list[_Vote]:
        """Return the network that each number with evidence or a direction ranks first."""
        if self.trusted:
            votes: list[_Vote] = []
            for name, own in self.trusted.items():
                # ranked in the direction that the evidence gives the measure
                signed = {row.network: math.copysign(1.0, own.r) * row.value for row in self.of(name)}
                ranks = {network: 1.0 + sum(v < value for v in signed.values()) for network, value in signed.items()}
                votes.append(_vote(name, [[replace(row, rank=ranks[row.network]) for row in self.of(name)]]))
            return votes
        families: dict[str, list[str]] = {}
        for name in dict.fromkeys(row.measure for row in self):
            rows = self.of(name)
            usable = all(row.rank == row.rank for row in rows) and len(rows) == len(self.networks)
            if usable and name != BASELINE:
                families.setdefault(name.split(".")[0], []).append(name)
        voting: list[_Vote] = []
        for family, names in families.items():
            medians = [name for name in names if name.endswith(".median")]
            voting.append(_vote(family, [self.of(name) for name in (medians or names)]))
        return voting

    def order(self) -> list[str]:
        """Names of the networks by mean rank, the one expected to generalize best first."""
        votes = self.votes()
        return sorted(self.networks, key=lambda name: fmean(vote.ranks[name] for vote in votes) if votes else 0.0)

    @property
    def verdict(self) -> tuple[str, ...]:
        """Conclusions in sentences."""
        lines = [*self._about_evidence(), self._about_the_best()]
        rows, values = self.of(BASELINE), [row.value for row in self.of("accuracy")]
        smallest = [row.network for row in rows if row.rank == 1]
        if rows:
            same = len(smallest) == len(rows)
            lines.append("All have the same size." if same else f"By size alone it would be {' or '.join(smallest)}.")
        if values and max(values) - min(values) > LIKE_FIT:
            lines.append(
                f"Training accuracies differ ({min(values):.3f} to {max(values):.3f}): a small gap is easy for a "
                "network that fits little, so read this with care."
            )
        for name, whys in self.unmeasured.items():
            if whys:
                lines.append(f"Not measured of {name}: {', '.join(whys)}; reasons: .unmeasured.")
        if self.evidence is None and self.votes():
            lines.append(
                "No evidence was passed that these measures rank networks; pass evidence=gs.rank_measures(POOL)."
            )
        return tuple(lines)

    def _about_evidence(self) -> list[str]:
        """Return the evidence and baselines of measures at equal hyperparameters."""
        if self.evidence is None:
            return []
        where, baselines = f"{self.evidence.networks} networks whose gap is known", self.evidence.baselines
        if not self.trusted:
            measured = {row.measure for row in self} & set(self.evidence.by_measure)
            return [
                f"No evidence: in {where}, none of the {len(measured)} numbers measured here predicts the gap better "
                f"than the hyperparameters ({baselines}). The lines below follow the stated direction of each measure."
            ]
        named = "; ".join(f"{name}: {own}" for name, own in list(self.trusted.items())[:4])
        more = f"; and {len(self.trusted) - 4} more" if len(self.trusted) > 4 else ""
        return [f"Evidence at equal hyperparameters in {where}: {named}{more}. Baselines: {baselines}."]

    def _about_the_best(self) -> str:
        votes = self.votes()
        if not votes:
            return "No measure with a stated direction was computed for all networks, so they cannot be ranked."
        firsts = {name: [vote for vote in votes if vote.first == name] for name in self.order()}
        best = max(firsts, key=lambda name: len(firsts[name]))
        own, settled = firsts[best], [vote for vote in firsts[best] if vote.settled]
        count = f"{len(own)} of {len(votes)} measures put it first"
        if 2 * len(own) <= len(votes):
            tied = [name for name, given in firsts.items() if given] or self.order()[:2]
            return f"{' and '.join(tied)} are tied: none is put first by more than half of the {len(votes)} measures."
        if not settled:
            return f"{best} is ahead, but within the intervals: {count}, none beyond them. Take more samples."
        names = ", ".join(vote.measure for vote in settled)
        beyond = f"beyond the {percent(self.level)} intervals by {names}"
        return f"{best} is expected to have the smallest gap: {count}, {beyond}."

    def to_dict(self) -> dict[str, Any]:
        """Return rows, verdict, level and reasons as JSON-serializable values."""
        return {**super().to_dict(), "verdict": list(self.verdict)}

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Comparison:
        def read(row: dict[str, Any]) -> ComparedReading:
            values: dict[str, Any] = {**row, **{name: float(row[name]) for name in NUMBERS}}
            return ComparedReading(**values)

        rows = [read(row) for row in content["rows"]]
        evidence = LeaderboardEvidence.from_dict(content["evidence"]) if content.get("evidence") else None
        return cls(rows, content["level"], content["unmeasured"], evidence)

    def summary(self) -> pandas.DataFrame:
        """Return one row per network: first places, mean rank, size and training fit."""
        import pandas

        votes = self.votes()
        rows: list[dict[str, Any]] = []
        for name in self.order():
            row: dict[str, Any] = {
                "network": name,
                "first by": f"{sum(vote.first == name for vote in votes)} of {len(votes)}",
                "mean rank": fmean(vote.ranks[name] for vote in votes) if votes else math.nan,
            }
            shown = [vote.measure for vote in votes if len(self.of(vote.measure)) > 0][:4]
            for measure in ["accuracy", BASELINE, *shown]:
                value = next((item.value for item in self.of(measure) if item.network == name), None)
                if value is not None:
                    row[measure] = value
            rows.append(row)
        return pandas.DataFrame(rows).set_index("network")

    def __repr__(self) -> str:
        table = self.summary().to_string(float_format="{:.4g}".format)
        return "\n".join([table, *self.verdict])

    def plot(self) -> list[Any]:
        """Plot each network's values with intervals, one panel per measure that ranks."""
        known = list(dict.fromkeys(row.measure for row in self))
        chosen = [name for name in known if not name.startswith("margin_") or name.endswith(".median")]
        names = [name for name in chosen if self.of(name)[0].rank == 1]
        drawn = panels(names, sharex=False)
        for axes, name in zip(drawn, names, strict=True):
            for row in self.of(name):
                below, above = max(0.0, row.value - row.low), max(0.0, row.high - row.value)
                axes.errorbar([row.value], [row.network], xerr=[[below], [above]], fmt="o")
        return drawn
