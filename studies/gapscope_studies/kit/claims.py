"""Claims as data: what a paper says beside our number, and the one place that decides whether it held.

A claim is "held" or "not held" only if the guard (`kit.guard`) has no doubts and the interval holds one answer alone.
Else it is "open", with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from gapscope_studies.kit.guard import MIN_UNITS, REACH, ComparisonArm, doubts, downsample_curve, finished
from gapscope_studies.kit.statistics import Interval, Values, bootstrap, mean

__all__ = [
    "BOTH_ANSWERS",
    "CANNOT",
    "HELD",
    "MIN_UNITS",
    "NOT_HELD",
    "NOT_RUN",
    "OPEN",
    "OUTCOMES",
    "Claim",
    "ComparisonArm",
    "cannot_run",
    "claim",
    "computed",
    "counts",
    "downsample_curve",
    "finished",
    "measured",
    "not_run",
    "relation",
]  # fmt: skip

HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT = "held", "not held", "open", "not run", "cannot be run here"
OUTCOMES = (HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT)
BOTH_ANSWERS = "the interval holds both answers"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement about a number, with ours. Made by `claim`, `relation`, `computed`, `not_run` or `cannot_run`."""

    source: str  # figure, table, section or equation
    statement: str  # what the paper says, as a clause: "validation loss grows with the batch size"
    quantity: str = ""  # what is compared, as "A minus B" or "A over B"
    value: float = math.nan
    low: float = -math.inf  # of the 95 % interval over independent units
    high: float = math.inf
    units: int = 0
    unit: str = "seeds"
    values: tuple[float, ...] = ()  # one per unit, where it has one
    above: float = -math.inf  # the claim is that the number lies between these
    below: float = math.inf
    paper: float | None = None  # size is judged together with sign: held needs ours within a factor of it
    within: float = 2.0
    compared: tuple[ComparisonArm, ...] = ()  # networks, for the guard
    untrained: str = ""  # where none is compared, what stands behind the number; the guard asks for one of the two
    reach: float = REACH  # largest difference of training accuracies, and of losses in nats
    loss_reach: float = REACH
    unequal: str = ""  # why training may be unequal, needed where there is no limit
    ours: bool = False  # the statement is not the paper's (a control, a method of ours)
    exact: bool = False  # a formula gives the number, not runs: it has no units to count
    status: str = ""  # "not run" or "cannot be run here"
    why: str = ""  # reason of the status

    @property
    def outcome(self) -> str:
        """One of OUTCOMES."""
        return self.evaluate[0]

    @property
    def evaluate(self) -> tuple[str, str]:
        """Outcome and its reason."""
        if self.status:
            return self.status, self.why
        reasons = self.doubts
        if reasons:
            return OPEN, "; ".join(reasons)
        if math.isnan(self.value):
            return OPEN, "no value"
        above, below = self.bounds
        if self.high <= above or self.low >= below:
            return NOT_HELD, "the opposite, or out of the claimed range"
        if self.low <= above or self.high >= below:
            return OPEN, BOTH_ANSWERS
        return (HELD, "") if self.paper is None else _size(self.interval, self.paper, self.within)

    @property
    def doubts(self) -> list[str]:
        """Return why the guard allows no verdict. Empty if it does."""
        return doubts(self)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return what is claimed of the number. Where only the paper's number is given, its sign."""
        if self.paper and math.isinf(self.above) and math.isinf(self.below):
            return (0.0, math.inf) if self.paper > 0 else (-math.inf, 0.0)
        return self.above, self.below

    @property
    def interval(self) -> Interval:
        """Our number with its interval."""
        return Interval(self.value, self.low, self.high, self.units)

    @property
    def sentence(self) -> str:
        """The claim in words: what the paper says, our number, what it decides and why."""
        outcome, reason = self.evaluate
        because = f" ({reason})" if reason else ""
        if self.status:
            return f"{self.source}: {self.statement}: {outcome}{because}."
        number = f"{self.value:.3g}" if self.exact else f"{self.interval}"
        count = "" if self.exact else f", {self.units} {self.unit}"
        paper = "" if self.paper is None else f"; the paper {self.paper:.3g}"
        return f"{self.source}: {self.statement}: {outcome}{because}; {self.quantity} {number}{count}{paper}."

    def to_dict(self) -> dict[str, Any]:
        """Plain values with the outcome and its reason. `from_dict` reads them back, and judges again."""
        outcome, reason = self.evaluate
        content = asdict(self) | {"outcome": outcome, "reason": reason}
        content["compared"] = [arm.to_dict() for arm in self.compared]
        content["says"] = content.pop("statement")  # the key of all stored results
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read a claim from a result's JSON."""
        content = {**content, "statement": content["says"]}
        known: dict[str, Any] = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        for name in ("value", "low", "high", "above", "below"):
            known[name] = float(content[name])  # JSON writes infinities as strings
        for name in ("reach", "loss_reach"):
            known[name] = float(known.get(name) or REACH)
        known["values"] = tuple(float(value) for value in content["values"])
        known["compared"] = tuple(ComparisonArm.from_dict(item) for item in content["compared"])
        return cls(**known)


def _size(ours: Interval, paper: float, within: float) -> tuple[str, str]:
    """Return whether our number lies between the paper's over and times `within`. Its sign is known to be right."""
    least, most = sorted((paper / within, paper * within))
    if ours.high < least or ours.low > most:
        return NOT_HELD, f"the sign is right, the size {ours.value / paper:.2g} of the paper's"
    if least <= ours.value <= most:
        return HELD, ""
    return OPEN, "the sign is right, the interval of the size holds both answers"


def claim(
    source: str,
    says: str,
    quantity: str,
    values: Values,
    *,
    compared: Sequence[ComparisonArm],
    clusters: Sequence[Hashable] | None = None,
    **more: Any,
) -> Claim:
    """A claim about the mean of values, one a run. Runs of one cluster count once. `more` are fields of Claim."""
    each = tuple(float(value) for value in values)
    return measured(source, says, quantity, mean(values, clusters), compared=compared, values=each, **more)


def relation(
    source: str,
    says: str,
    quantity: str,
    coefficient: Callable[[np.ndarray, np.ndarray], float],
    x: Values,
    y: Values,
    *,
    compared: Sequence[ComparisonArm],
    clusters: Sequence[Hashable] | None = None,
    **more: Any,
) -> Claim:
    """A claim about a correlation of pairs, with a bootstrap interval over clusters."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    result = bootstrap(lambda rows: coefficient(a[rows], b[rows]), len(a), clusters).within(-1.0, 1.0)
    unit = "networks" if clusters is None else "clusters"
    return measured(source, says, quantity, result, compared=compared, **{"unit": unit, **more})


def measured(
    source: str, says: str, quantity: str, found: Interval, *, compared: Sequence[ComparisonArm], **more: Any
) -> Claim:
    """A claim about a number whose interval is known."""
    return Claim(
        source=source, statement=says, quantity=quantity, value=found.value, low=found.low, high=found.high,
        units=found.units, compared=tuple(compared), **more,
    )  # fmt: skip


def computed(source: str, says: str, quantity: str, value: float, **more: Any) -> Claim:
    """A claim about a number that a formula gives. Never a count of runs or the best of a grid."""
    facts = {"untrained": "" if more.get("compared") else "a formula, computed", "compared": (), "exact": True}
    return measured(source, says, quantity, Interval(value, value, value, 0), **facts | more)


def not_run(source: str, says: str, why: str) -> Claim:
    """A claim that no part tests."""
    return Claim(source=source, statement=says, status=NOT_RUN, why=why)


def cannot_run(source: str, says: str, why: str) -> Claim:
    """A claim that cannot be tested here, for want of data or machine."""
    return Claim(source=source, statement=says, status=CANNOT, why=why)


def counts(claims: Sequence[Claim]) -> str:
    """Return how many claims came out how, the paper's and ours apart."""
    texts = []
    for whose, chosen in (
        ("of the paper's", [c for c in claims if not c.ours]),
        ("of ours", [c for c in claims if c.ours]),
    ):
        result = Counter(c.outcome for c in chosen)
        if result:
            texts.append(f"{whose} {len(chosen)}: " + ", ".join(f"{result[o]} {o}" for o in OUTCOMES if result[o]))
    return "; ".join(texts)
