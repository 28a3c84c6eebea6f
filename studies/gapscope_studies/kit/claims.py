"""Claims as data: what a paper says beside our number, and the one place that decides whether it held.

A claim is "held" or "not held" only if the guard lets it: every network compared learned, training was finished, there
are enough independent units, and the interval holds one answer alone. Else it is "open", with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from gapscope_studies.kit.statistics import Interval, Values, bootstrap, mean

HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT = "held", "not held", "open", "not run", "cannot be run here"
OUTCOMES = (HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT)
ABOVE_CHANCE = 0.05
FEWEST_UNITS = 6
LAST_PART, RISE = 0.2, 0.05


@dataclass(frozen=True, kw_only=True)
class ComparisonArm:
    """One of the things that a claim compares: how well its networks learned, so that the guard can judge it.

    Attributes:
        name: As in the claim.
        train_accuracy: Median over its networks at the end, so that one which learned does not speak for others at
            chance (for regression R^2, whose chance is 0); None: not kept.
        chance: What a network reaches that learned nothing.
        curve: The compared score along training, mean over its networks, in a few dozen steps (see `short`).
        falling: Whether a good score is a small one.
        finished: What is known without a curve: True where a stop rule ended training, False where it was cut off.
    """

    name: str
    train_accuracy: float | None
    chance: float
    curve: tuple[float, ...] = ()
    falling: bool = False
    finished: bool | None = None

    @property
    def done(self) -> bool | None:
        """Whether the score had stopped improving; None where neither a curve nor a stop rule says so."""
        if self.finished is not None or not self.curve:
            return self.finished
        return finished((self.curve,), falling=self.falling)


# of claims about numbers in which no trained networks are compared
NO_NETWORKS: tuple[ComparisonArm, ...] = ()


def downsample_curve(curves: Sequence[Sequence[float]], most: int = 40) -> tuple[float, ...]:
    """Mean over runs of a score along training, at no more than `most` epochs spread evenly, the last one included.

    >>> downsample_curve([[0.0, 0.5, 1.0], [0.0, 0.7]])
    (0.0, 0.6)
    """
    shortest = min((len(curve) for curve in curves), default=0)
    kept = np.unique(np.linspace(0, shortest - 1, min(most, shortest)).round().astype(int)) if shortest else []
    return tuple(round(float(np.mean([curve[epoch] for curve in curves])), 5) for epoch in kept)


def finished(curves: Sequence[Sequence[float]], *, falling: bool = False) -> bool:
    """Whether a score has stopped improving: over the last fifth of the epochs it gains no more than noise.

    The gain is that of the straight line through the mean over runs; it counts where it is larger than two of its
    standard errors and than a twentieth of the score's whole range. A run of fewer than five epochs has not.

    >>> finished([[0.1, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]]), finished([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    (True, False)
    """
    shortest = min((len(curve) for curve in curves), default=0)
    if shortest < 5:
        return False
    score = np.mean([curve[:shortest] for curve in curves], axis=0) * (-1 if falling else 1)
    last = score[-max(5, math.ceil(LAST_PART * shortest)) :]
    if not np.isfinite(score).all():
        return True
    epochs = np.arange(len(last)) - (len(last) - 1) / 2
    slope = float((epochs * last).sum() / (epochs**2).sum())
    rest = last - last.mean() - slope * epochs
    error = math.sqrt(float((rest**2).sum()) / (len(last) - 2) / float((epochs**2).sum()))
    return slope <= 2 * error or slope * (len(last) - 1) <= RISE * float(np.ptp(score))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement about a number, with ours; made by `claim`, `relation`, `computed`, `not_run` or `cannot_run`.

    Attributes:
        source: Figure, table, section or equation.
        statement: What the paper says, as a clause: "validation loss grows with the batch size".
        quantity: What is compared, as "A minus B" or "A over B".
        value: Our number ...
        low: ... with its 95 % interval
        high: over
        units: so many independent units,
        unit: which are these.
        values: The value of each unit, where it has one.
        above: The claim is that the number is above this ...
        below: ... and below this.
        paper: The paper's number; then size is judged together with sign: held needs ours within `within` of it.
        within: Largest factor between the paper's number and ours.
        compared: The networks that are compared, for the guard.
        reach: Largest difference of their training accuracies.
        ours: Whether the statement is not the paper's but ours (a control, a method of ours).
        exact: Whether the number is computed, not estimated from runs: then it has no units to count.
        status: "not run" or "cannot be run here".
        why: Reason of the status.
    """

    source: str
    statement: str
    quantity: str = ""
    value: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    units: int = 0
    unit: str = "seeds"
    values: tuple[float, ...] = ()
    above: float = -math.inf
    below: float = math.inf
    paper: float | None = None
    within: float = 2.0
    compared: tuple[ComparisonArm, ...] = ()
    reach: float | None = None
    ours: bool = False
    exact: bool = False
    status: str = ""
    why: str = ""

    @property
    def outcome(self) -> str:
        """One of OUTCOMES."""
        return self.evaluate[0]

    @property
    def evaluate(self) -> tuple[str, str]:
        """Outcome and its reason."""
        if self.status:
            return self.status, self.why
        doubts = [*_did_not_learn(self), *_not_finished(self), *_too_few(self)]
        if doubts:
            return OPEN, "; ".join(doubts)
        if math.isnan(self.value):
            return OPEN, "no value"
        above, below = self._range
        if self.high <= above or self.low >= below:
            return NOT_HELD, "the opposite, or out of the claimed range"
        if self.low <= above or self.high >= below:
            return OPEN, "the interval holds both answers"
        return (HELD, "") if self.paper is None else _size(self.interval, self.paper, self.within)

    @property
    def _range(self) -> tuple[float, float]:
        """What is claimed of the number; where only the paper's number is given, its sign."""
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
        """Plain values with the outcome and its reason; `from_dict` reads them back, and judges again."""
        outcome, reason = self.evaluate
        content = asdict(self) | {"outcome": outcome, "reason": reason}
        content["says"] = content.pop("statement")  # the key of all stored results
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read a claim from a result's JSON."""
        content = {**content, "statement": content["says"]}
        known: dict[str, Any] = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        for name in ("value", "low", "high", "above", "below"):
            known[name] = float(content[name])  # JSON writes infinities as strings
        known["values"] = tuple(float(value) for value in content["values"])
        known["compared"] = tuple(_compared_from(item) for item in content["compared"])
        return cls(**known)


def _compared_from(content: Mapping[str, Any]) -> ComparisonArm:
    curve = tuple(float(value) for value in content.get("curve", ()))
    reached = content["train_accuracy"]
    return ComparisonArm(**{**content, "train_accuracy": None if reached is None else float(reached), "curve": curve})


def _did_not_learn(given: Claim) -> list[str]:
    unknown = [c.name for c in given.compared if c.train_accuracy is None]
    if unknown:
        return [f"no training accuracy was kept of {_listed(unknown)}"]
    reached = [(float(c.train_accuracy or 0), c.name, c.chance) for c in given.compared]
    lazy = [
        f"{name} (training accuracy {value:.2f})"
        for value, name, chance in reached
        if not value > chance + ABOVE_CHANCE
    ]
    if lazy:
        return [f"did not learn: {_listed(lazy)}"]
    if given.reach is not None and reached:
        (low, least, _), (high, most, _) = min(reached), max(reached)
        if high - low > given.reach:
            return [f"did not learn alike: training accuracy {low:.2f} ({least}) against {high:.2f} ({most})"]
    return []


def _not_finished(given: Claim) -> list[str]:
    cut_off = [c.name for c in given.compared if c.done is False]
    unknown = [c.name for c in given.compared if c.done is None]
    doubts = [f"not finished: {_listed(cut_off)} still improving at the last epoch"] if cut_off else []
    return doubts + ([f"no learning curve was kept of {_listed(unknown)}"] if unknown else [])


def _listed(names: Sequence[str]) -> str:
    """The names, three of many.

    >>> _listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _too_few(given: Claim) -> list[str]:
    if given.exact or given.units >= FEWEST_UNITS:
        return []
    return [f"{given.units} independent {given.unit}, fewer than {FEWEST_UNITS}"]


def _size(ours: Interval, paper: float, within: float) -> tuple[str, str]:
    """Whether our number lies between the paper's over and times `within`; its sign is known to be right."""
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
    """A claim about the mean of values, one a run; runs of one cluster count once. `more` are fields of Claim.

    `compared` says how well every network learned that stands behind the values; NO_NETWORKS where none was trained.
    """
    found = mean(values, clusters)
    return Claim(
        source=source, statement=says, quantity=quantity, value=found.value, low=found.low, high=found.high,
        units=found.units, values=tuple(float(value) for value in values), compared=tuple(compared), **more,
    )  # fmt: skip


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
    """A claim about a coefficient of pairs (a correlation, a slope), with a bootstrap interval over clusters.

    `compared` as in `claim`.
    """
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    found = bootstrap(lambda rows: coefficient(a[rows], b[rows]), len(a), clusters)
    unit = "networks" if clusters is None else "clusters"
    return measured(source, says, quantity, found, **{"unit": unit, "compared": tuple(compared), **more})


def measured(source: str, says: str, quantity: str, found: Interval, **more: Any) -> Claim:
    """A claim about a number whose interval is known."""
    return Claim(
        source=source, statement=says, quantity=quantity, value=found.value, low=found.low, high=found.high,
        units=found.units, **more,
    )  # fmt: skip


def computed(source: str, says: str, quantity: str, value: float, **more: Any) -> Claim:
    """A claim about a number that is computed without sampling error."""
    return Claim(
        source=source, statement=says, quantity=quantity, value=value, low=value, high=value, exact=True, **more
    )


def not_run(source: str, says: str, why: str) -> Claim:
    """A claim that no part tests."""
    return Claim(source=source, statement=says, status=NOT_RUN, why=why)


def cannot_run(source: str, says: str, why: str) -> Claim:
    """A claim that cannot be tested here, for want of data or machine."""
    return Claim(source=source, statement=says, status=CANNOT, why=why)


def counts(claims: Sequence[Claim]) -> str:
    """How many claims came out how, the paper's and ours apart."""
    texts = []
    for whose, chosen in (
        ("of the paper's", [c for c in claims if not c.ours]),
        ("of ours", [c for c in claims if c.ours]),
    ):
        found = Counter(c.outcome for c in chosen)
        if found:
            texts.append(f"{whose} {len(chosen)}: " + ", ".join(f"{found[o]} {o}" for o in OUTCOMES if found[o]))
    return "; ".join(texts)
