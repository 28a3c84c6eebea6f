"""Result of a comparison of networks, and the evidence from a pool that supports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.results.readings import BASELINE, Direction
from gapscope.results.result import StoredRows

if TYPE_CHECKING:
    import pandas


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
    def baselines(self) -> str:
        """Describe the baselines, size and random measure, in words."""
        baselines = {own.role: own for own in self.by_measure.values() if own.role != "measure"}
        words = {"size": "the size", "random": "a random measure"}
        return "; ".join(f"{words[role]}: {own}" for role, own in sorted(baselines.items(), reverse=True))

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


# training accuracies that differ by more than this make measures hard to compare
LIKE_FIT = 0.02
NUMBERS = ("value", "standard_error", "low", "high", "rank")


@dataclass(frozen=True, kw_only=True)
class ComparedReading:
    """One number of one network.

    Attributes:
        measure: Name of the number, such as "ntk_trace" or "unit_sparsity.zeta".
        network: Name of the network.
        value: The number.
        standard_error: Its standard error over samples; NaN where it is not known.
        low: Lower end of its interval.
        high: Upper end.
        direction: Which direction goes with a smaller generalization gap.
        rank: 1 for the network that goes with the smallest gap; NaN where no direction is known.
        note: Method of the estimate, or the reason why there is no number.
    """

    measure: str
    network: str
    value: float
    standard_error: float
    low: float
    high: float
    direction: Direction
    rank: float
    note: str = ""


@dataclass(frozen=True)
class _Vote:
    """Network that one measure ranks first, and whether its intervals separate it."""

    measure: str
    ranks: Mapping[str, float]
    first: str | None
    settled: bool


def _is_separated(rows: Sequence[ComparedReading], first: str) -> bool:
    """True if the first network's interval overlaps no other."""
    best = next(row for row in rows if row.network == first)
    return all(row.high < best.low or row.low > best.high for row in rows if row.network != first)


def _ranked(rows: Sequence[ComparedReading], r: float) -> list[ComparedReading]:
    """Return the rows with ranks in the direction that the evidence gives the measure."""
    signed = {row.network: math.copysign(1.0, r) * row.value for row in rows}
    return [replace(row, rank=1.0 + sum(other < signed[row.network] for other in signed.values())) for row in rows]


def _vote(measure: str, numbers: Sequence[Sequence[ComparedReading]]) -> _Vote:
    """Return one vote per measure, by the mean rank of its numbers."""
    networks = [row.network for row in numbers[0]]
    ranks = {
        name: fmean(row.rank for rows in numbers for row in rows if row.network == name) for name in networks
    }  # fmt: skip
    best = min(ranks.values())
    firsts = [name for name, rank in ranks.items() if rank == best]
    if len(firsts) > 1:
        return _Vote(measure, ranks, None, False)
    return _Vote(measure, ranks, firsts[0], all(_is_separated(rows, firsts[0]) for rows in numbers))


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
        result = super().__new__(cls, tuple(rows))
        result.level, result.evidence = level, evidence
        result.unmeasured = {name: dict(reasons) for name, reasons in (unmeasured or {}).items()}
        return result

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
        """Return the network that each number with evidence, or with a known direction, puts first."""
        if self.trusted:
            return [_vote(name, [_ranked(self.of(name), own.r)]) for name, own in self.trusted.items()]
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
        return (
            *self._about_evidence(),
            *self._about_the_best(),
            *self._about_size(),
            *self._about_the_fit(),
            *self._about_reasons(),
            *self._about_no_evidence(),
        )

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

    def _about_no_evidence(self) -> list[str]:
        if self.evidence is not None or not self.votes():
            return []
        return ["No evidence was passed that these measures rank networks; pass evidence=gs.rank_measures(POOL)."]

    def _about_the_best(self) -> list[str]:
        votes = self.votes()
        if not votes:
            return ["No measure with a stated direction was computed for all networks, so they cannot be ranked."]
        firsts = {name: [vote for vote in votes if vote.first == name] for name in self.order()}
        best = max(firsts, key=lambda name: len(firsts[name]))
        own, settled = firsts[best], [vote for vote in firsts[best] if vote.settled]
        count = f"{len(own)} of {len(votes)} measures put it first"
        if 2 * len(own) <= len(votes):
            tied = [name for name, given in firsts.items() if given] or self.order()[:2]
            return [f"{' and '.join(tied)} are tied: none is put first by more than half of the {len(votes)} measures."]
        if not settled:
            return [f"{best} is ahead, but within the intervals: {count}, none beyond them. Take more samples."]
        names = ", ".join(vote.measure for vote in settled)
        return [
            f"{best} is expected to have the smallest gap: {count}, beyond the {self.level:.0%} intervals by {names}."
        ]

    def _about_size(self) -> list[str]:
        rows = self.of(BASELINE)
        smallest = [row.network for row in rows if row.rank == 1]
        if not rows or len(smallest) == len(rows):
            return ["All have the same size."] if rows else []
        return [f"By size alone it would be {' or '.join(smallest)}."]

    def _about_the_fit(self) -> list[str]:
        values = [row.value for row in self.of("accuracy")]
        if not values or max(values) - min(values) <= LIKE_FIT:
            return []
        return [
            f"Training accuracies differ ({min(values):.3f} to {max(values):.3f}): a small gap is easy for a network "
            "that fits little, so read this with care."
        ]

    def _about_reasons(self) -> list[str]:
        lines: list[str] = []
        for name, whys in self.unmeasured.items():
            if whys:
                lines.append(f"Not measured of {name}: {', '.join(whys)}; reasons: .unmeasured.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return rows, verdict, level and reasons as JSON-serializable values."""
        return {
            **super().to_dict(),
            "verdict": list(self.verdict),
            "level": self.level,
            "unmeasured": self.unmeasured,
            "evidence": None if self.evidence is None else self.evidence.to_dict(),
        }

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

    def _repr_html_(self) -> str:
        from gapscope.results.result import to_html

        return to_html(self, self.verdict, self.summary())

    def plot(self, measures: Sequence[str] | None = None) -> list[Any]:
        """Plot each network's values with intervals, one panel per measure; return the axes.

        Args:
            measures: Names of numbers; None takes those that vote, margins by their medians.
        """
        from gapscope.results.result import panels

        known = list(dict.fromkeys(row.measure for row in self))
        chosen = [name for name in known if not name.startswith("margin_") or name.endswith(".median")]
        names = list(measures) if measures is not None else [n for n in chosen if self.of(n)[0].rank == 1]
        drawn = panels(names, sharex=False)
        for axes, name in zip(drawn, names, strict=True):
            for row in self.of(name):
                below, above = max(0.0, row.value - row.low), max(0.0, row.high - row.value)
                axes.errorbar([row.value], [row.network], xerr=[[below], [above]], fmt="o")
        return drawn
