"""Comparison of networks: rows, votes of the measures, and verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.results.estimate import percent
from gapscope.results.formatting import pluralize
from gapscope.results.readings import BASELINE, Direction, missing_lines
from gapscope.results.result import StoredRows, numbers_of, panels
from gapscope.statistics.correlations import ranks_of

if TYPE_CHECKING:
    import pandas


EVIDENCE = "evidence"
PREFIX = "m."
# lines on estimates and on missing values, by judgment
MAX_NOTES = 4
# measure without which the verdict cannot tell whether gaps are comparable
ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True)
class MeasureEvidence:
    """Evidence of a leaderboard about one measure.

    Attributes:
        role: "measure", "size" or "random".
        verdict: "evidence" or "no evidence" that it predicts the gap beyond the hyperparameters.
        r: Correlation with the gap given the hyperparameters.
        low: Lower end of its 95 % bootstrap interval.
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
    """Evidence of a leaderboard by reading, and its networks.

    Attributes:
        source: Table or pool that the leaderboard was made from.
        networks: Number of its networks.
        by_measure: Name of a reading -> its evidence.
    """

    source: str = ""
    networks: int = 0
    by_measure: Mapping[str, MeasureEvidence] = field(default_factory=dict[str, MeasureEvidence])

    @classmethod
    def of(cls, board: Any) -> LeaderboardEvidence:
        """Return the evidence of a leaderboard.

        Args:
            board: Result of `rank_measures`.

        Raises:
            InvalidInput: The object is no leaderboard.
        """
        try:
            by_measure = {
                row.measure.removeprefix(PREFIX): MeasureEvidence(
                    role=row.role,
                    verdict=row.verdict,
                    r=row.partial.value,
                    low=row.partial.low,
                    high=row.partial.high,
                    p=row.partial.p,
                )
                for row in board
            }
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
        """Evidence about the baselines, size and random measure, as text."""
        by_role = {item.role: item for item in self.by_measure.values()}
        titles = {"size": "the size", "random": "a random measure"}
        return "; ".join(
            f"{title}: {by_role[role]}" for role, title in titles.items() if role in by_role
        )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LeaderboardEvidence:
        """Build from the result of `to_dict`.

        Args:
            content: JSON-serializable values; non-finite numbers may be strings.
        """
        by_measure = {
            name: MeasureEvidence(**numbers_of(MeasureEvidence, item))
            for name, item in content["by_measure"].items()
        }
        return cls(content["source"], content["networks"], by_measure)


@dataclass(frozen=True, kw_only=True)
class ComparedReading:
    """One number of one network, with its interval.

    Attributes:
        measure: Name of the number, such as "ntk_trace" or "unit_sparsity.zeta".
        network: Name of the network.
        value: The number, in the units of the measure.
        standard_error: Its standard error over samples; NaN if unknown.
        low: Lower end of its interval.
        high: Upper end.
        direction: Direction that predicts a smaller gap: "lower", "higher" or "none".
        rank: 1 for the network with the smallest predicted gap (ties share the better rank); NaN without a direction.
        note: Method of the estimate, or why there is no number.
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
    """Ranking by one measure, and the network that it ranks first."""

    measure: str
    ranks: Mapping[str, float]
    firsts: Sequence[str]  # several for a tie
    is_separated: bool  # whether the interval of the first network overlaps no other

    @property
    def first(self) -> str | None:
        """The network that is ranked first, None for a tie."""
        if len(self.firsts) > 1:
            return None
        return self.firsts[0]


def _vote(measure: str, numbers: Sequence[Sequence[ComparedReading]]) -> _Vote:
    """Return the vote of a measure, by the mean rank of its numbers."""
    networks = [row.network for row in numbers[0]]
    ranks = {
        name: fmean(row.rank for rows in numbers for row in rows if row.network == name)
        for name in networks
    }
    firsts = [name for name, rank in ranks.items() if rank == min(ranks.values())]
    if len(firsts) > 1:
        return _Vote(measure, ranks, firsts, False)
    is_separated = True
    for rows in numbers:
        best = next(row for row in rows if row.network == firsts[0])
        is_separated &= all(
            row.high < best.low or row.low > best.high for row in rows if row is not best
        )
    return _Vote(measure, ranks, firsts, is_separated)


class Comparison(StoredRows[ComparedReading]):
    """Networks compared on the same samples, the best first.

    Each measure has one vote, however many numbers it yields; margins vote by their medians, and the parameter count,
    the baseline, does not vote. With evidence from a leaderboard, only numbers with evidence vote, in the direction
    that they have there.

    Attributes:
        rows: One `ComparedReading` per number and network.
        level: Nominal coverage of the intervals.
        unmeasured: Network -> measure -> why it has no value.
        evidence: Evidence of the leaderboard; None without one.
        notes: Remarks on the networks and the data, one sentence each.
        interrupted: Whether Ctrl-C ended it; networks that were not finished are missing.
    """

    _kind, _keys = "a comparison", frozenset({"verdict", "unmeasured"})
    level: float
    unmeasured: dict[str, dict[str, str]]
    evidence: LeaderboardEvidence | None
    notes: tuple[str, ...]
    interrupted: bool

    def __new__(
        cls,
        rows: Iterable[ComparedReading] = (),
        level: float = 0.95,
        unmeasured: Mapping[str, Mapping[str, str]] | None = None,
        evidence: LeaderboardEvidence | None = None,
        *,
        notes: Iterable[str] = (),
        interrupted: bool = False,
    ) -> Comparison:
        """Collect the rows."""
        reasons = {name: dict(each) for name, each in (unmeasured or {}).items()}
        return super().__new__(
            cls,
            rows,
            level=level,
            unmeasured=reasons,
            evidence=evidence,
            notes=tuple(notes),
            interrupted=interrupted,
        )

    @property
    def networks(self) -> list[str]:
        """Names of the networks, in the order of `compare`."""
        rows = sorted(self, key=lambda row: row.measure != BASELINE)
        return list(dict.fromkeys(row.network for row in rows))

    def of(self, measure: str) -> list[ComparedReading]:
        """Return the rows of one number, by rank.

        Args:
            measure: Name of a number, such as `"ntk_trace"`.
        """
        return [row for row in self if row.measure == measure]

    @property
    def trusted(self) -> dict[str, MeasureEvidence]:
        """Evidence about the numbers that all networks have, the strongest first."""
        if self.evidence is None:
            return {}
        return {
            name: item for name, item in self.evidence.trusted.items() if self._is_complete(name)
        }

    def _is_complete(self, measure: str) -> bool:
        """Return whether all networks have a value of this number."""
        values = [row.value for row in self.of(measure)]
        return len(values) == len(self.networks) and not any(map(math.isnan, values))

    def votes(self) -> list[_Vote]:
        """Return the votes of all measures with evidence, or else with a direction."""
        votes: list[_Vote] = []
        if self.trusted:
            for name, item in self.trusted.items():
                # smaller values rank first if they predict a smaller gap: r > 0
                sign = math.copysign(1.0, item.r)
                rows = {row.network: row for row in self.of(name)}
                ranks = ranks_of(
                    {network: sign * row.value for network, row in rows.items()},
                    {network: row.standard_error for network, row in rows.items()},
                )
                ranked = [replace(row, rank=ranks[network]) for network, row in rows.items()]
                votes.append(_vote(name, [ranked]))
            return votes
        families: dict[str, list[str]] = {}
        for name in dict.fromkeys(row.measure for row in self if row.direction != "none"):
            if name != BASELINE and self._is_complete(name):
                families.setdefault(name.split(".")[0], []).append(name)
        for family, names in families.items():
            medians = [name for name in names if name.endswith(".median")]
            votes.append(_vote(family, [self.of(name) for name in (medians or names)]))
        return votes

    def order(self) -> list[str]:
        """Return the names of the networks by mean rank, the smallest predicted gap first."""
        votes = self.votes()
        return sorted(
            self.networks,
            key=lambda name: fmean(vote.ranks[name] for vote in votes) if votes else 0.0,
        )

    @property
    def verdict(self) -> tuple[str, ...]:
        """Conclusions in sentences."""
        lines = [*self._about_evidence(), self._about_the_best()]
        rows = self.of(BASELINE)
        values = [row.value for row in self.of(ACCURACY)]
        smallest = [row.network for row in rows if row.rank == 1]
        if rows:
            if len(smallest) == len(rows):
                lines.append("All have the same size.")
            else:
                lines.append(f"By size alone it would be {' or '.join(smallest)}.")
        # by judgment: a larger difference of the training accuracies makes measures hard to compare
        if values and max(values) - min(values) > 0.02:
            lines.append(
                f"Training accuracies differ ({min(values):.3f} to {max(values):.3f}), so gaps are hard to compare: "
                "a network that fits little has a small gap."
            )
        missing = [each[ACCURACY] for each in self.unmeasured.values() if ACCURACY in each]
        # other targets have none
        if any(not why.startswith("needs") for why in missing):
            lines.append(
                "Training accuracies are missing, so whether gaps can be compared is unknown: a network that fits "
                "little has a small gap."
            )
        lines += self._about_samples()
        lines += self._about_missing()
        lines += self.notes
        if self.evidence is None and self.votes():
            lines.append(
                "Whether these measures rank such networks is unknown; pass evidence=gs.rank_measures(POOL)."
            )
        return tuple(lines)

    def _about_samples(self) -> list[str]:
        """Return a sentence on the measures that are estimates, from subsets or by probes."""
        measures: dict[str, list[str]] = {}
        for row in self:
            if row.note and not math.isnan(row.value):
                measures.setdefault(row.note, []).append(row.measure.split(".")[0])
        parts = [
            f"{', '.join(dict.fromkeys(names))}: {note}"
            for note, names in list(measures.items())[:MAX_NOTES]
        ]
        if len(measures) > MAX_NOTES:
            parts.append("more notes: .to_pandas()")
        return [f"{'; '.join(parts)}."] if parts else []

    def _about_missing(self) -> list[str]:
        """Return lines on networks and measures without values, with the reasons."""
        finished = self.networks
        unfinished = [name for name in self.unmeasured if name not in finished]
        lines: list[str] = []
        if self.interrupted:
            lines.append(f"Interrupted before {' and '.join(unfinished)} was finished.")
        by_reason: dict[tuple[str, str], list[str]] = {}
        for network in finished:
            for measure, reason in self.unmeasured.get(network, {}).items():
                by_reason.setdefault((measure, reason), []).append(network)
        reasons = {
            measure if len(names) == len(finished) else f"{measure} of {', '.join(names)}": reason
            for (measure, reason), names in by_reason.items()
        }
        return lines + missing_lines(reasons, MAX_NOTES)

    def _about_evidence(self) -> list[str]:
        """Return a sentence on the evidence for the measures, or on its absence."""
        if self.evidence is None:
            return []
        pool = f"{self.evidence.networks} networks whose gap is known"
        baselines = self.evidence.baselines
        if not self.trusted:
            measured = {row.measure for row in self} & set(self.evidence.by_measure)
            return [
                f"No evidence: in {pool}, none of the {len(measured)} numbers measured here predicts the gap better "
                f"than the hyperparameters ({baselines}). The lines below follow the stated direction of each measure."
            ]
        items = "; ".join(f"{name}: {item}" for name, item in list(self.trusted.items())[:4])
        more = ""
        if len(self.trusted) > 4:
            more = f"; and {len(self.trusted) - 4} more"
        return [
            f"Evidence at equal hyperparameters in {pool}: {items}{more}. Baselines: {baselines}."
        ]

    def _about_the_best(self) -> str:
        votes = self.votes()
        if not votes:
            return "No measure with a stated direction was computed for all networks, so they cannot be ranked."
        firsts = {name: [vote for vote in votes if vote.first == name] for name in self.order()}
        best = max(firsts, key=lambda name: len(firsts[name]))
        n_first = len(firsts[best])
        separated = [vote for vote in firsts[best] if vote.is_separated]
        count = f"{n_first} of {len(votes)} measures rank it first"
        if 2 * n_first <= len(votes):
            tied = {name for vote in votes for name in vote.firsts}
            names = " and ".join(name for name in firsts if name in tied)
            measures = pluralize(len(votes), "measure")
            return f"{names} are tied: none is ranked first by more than half of the {measures}."
        if not separated:
            return f"{best} is ahead, but no measure separates its interval from all others: {count}. Use more samples."
        names = ", ".join(vote.measure for vote in separated)
        intervals = f"with non-overlapping {percent(self.level)} intervals for {names}"
        return f"{best} is expected to have the smallest gap: {count}, {intervals}."

    def _content(self) -> dict[str, Any]:
        """Return rows, verdict, level and reasons as JSON-serializable values."""
        return {**super()._content(), "verdict": list(self.verdict)}

    @classmethod
    def _from(cls, content: Mapping[str, Any]) -> Comparison:
        rows = [ComparedReading(**numbers_of(ComparedReading, row)) for row in content["rows"]]
        evidence = None
        if content.get("evidence"):
            evidence = LeaderboardEvidence.from_dict(content["evidence"])
        return cls(
            rows,
            content["level"],
            content["unmeasured"],
            evidence,
            notes=content.get("notes", ()),
            interrupted=content.get("interrupted", False),
        )

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
            voters = [vote.measure for vote in votes if self.of(vote.measure)][:4]
            for measure in ["accuracy", BASELINE, *voters]:
                for item in self.of(measure):
                    if item.network == name:
                        row[measure] = item.value
            rows.append(row)
        return pandas.DataFrame(rows).set_index("network")

    def __repr__(self) -> str:
        table = self.summary().to_string(float_format="{:.4g}".format)
        return "\n".join([table, *self.verdict])

    def plot(self) -> list[Any]:
        """Plot each network's values with intervals, one panel per measure that ranks."""
        names = [
            name
            for name in dict.fromkeys(row.measure for row in self if row.rank == 1)
            if not name.startswith("margin_") or name.endswith(".median")
        ]
        all_axes = panels(names, sharex=False)
        for axes, name in zip(all_axes, names, strict=True):
            for row in self.of(name):
                below = max(0.0, row.value - row.low)
                above = max(0.0, row.high - row.value)
                axes.errorbar([row.value], [row.network], xerr=[[below], [above]], fmt="o")
        return all_axes
