"""Claims as data: the paper's statement, our number, and the one place for the verdict.

A claim is "held" or "not held" only if the guard has no doubts and the interval holds one answer alone: networks that
are compared learned, equally well, to the end, and there are enough of them. Else it is "open", with the reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from scipy import stats

from gapscope_studies.kit.statistics import Clusters, Interval, Values, bootstrap, mean

HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT = "held", "not held", "open", "not run", "cannot be run here"
OUTCOMES = (HELD, NOT_HELD, OPEN, NOT_RUN, CANNOT)
BOTH_ANSWERS = "the interval holds both answers"

ABOVE_CHANCE = 0.05
MIN_UNITS = 6
LAST_PART, RISE = 0.2, 0.05
# A loss that starts in the thousands of nats falls within a twentieth of its range for long: it must also stop falling
# in proportion. A tenth per fifth of the epochs is about where 300 more epochs would leave the order of networks.
FALL = 0.1
# Training is finished at a twentieth of the loss of guessing (0.115 nats for ten classes: the geometric mean of the
# probabilities of the labels is 0.89), whatever the slope: further epochs lower the loss in proportion for ever.
FITTED_LOSS = 0.05
CURVE_DIGITS = 3  # of a stored curve
# largest difference of training accuracies, and of training losses in nats, between the networks that are compared
REACH = 0.1
FITTED = 0.97  # smallest training accuracy at which the samples count as fitted
# fields of claims about penalties and dropout: they allow unequal training, with the reason
REGULARIZED: dict[str, Any] = {
    "reach": math.inf,
    "loss_reach": math.inf,
    "unequal": "a regularizer acts by limiting what is fitted",
}


@dataclass(frozen=True, kw_only=True)
class ComparisonArm:
    """Side of the comparison in a claim, with the training fit that the guard evaluates."""

    name: str
    # median over networks at the end of training (R^2 for regression, whose chance is 0). None: not stored; then the
    # guard evaluates the loss
    train_accuracy: float | None
    chance: float
    train_loss: float | None = None
    curve: tuple[float, ...] = ()  # the compared score along training (see `downsample_curve`)
    falling: bool = False  # smaller scores are better
    loss_curve: tuple[
        float, ...
    ] = ()  # training loss, from which `done` is decided if it is stored
    finished: bool | None = (
        None  # without a curve: True if a stop rule ended training, False if it was cut off
    )
    failed: str = ""  # scenarios in which it learned nothing: "in 2 of 40 scenarios"

    @property
    def done(self) -> bool | None:
        """True if training was finished, by its loss if that is stored (None: unknown)."""
        if self.finished is not None:
            return self.finished
        if self.loss_curve:
            # chance 0 is regression, whose loss of guessing is not stored
            fitted = FITTED_LOSS * -math.log(self.chance) if self.chance > 0 else 0.0
            return self.loss_curve[-1] <= fitted or has_flattened((self.loss_curve,), falling=True)
        if not self.curve:
            return None
        # a loss that rises says nothing of the end of training unless the training samples are fitted
        if self.falling and self.curve[-1] > min(self.curve) + RISE * float(np.ptp(self.curve)):
            return True if (self.train_accuracy or 0.0) >= FITTED else None
        return has_flattened((self.curve,), falling=self.falling)

    def to_dict(self) -> dict[str, Any]:
        """Return the values that differ from their default, without curves that are not read."""
        unused: tuple[str, ...] = ("curve", "falling") if self.loss_curve else ()
        if self.finished is not None:
            unused = ("curve", "falling", "loss_curve")
        content = {
            name: value
            for name, value in vars(self).items()
            if name not in unused and value != _DEFAULTS[name]
        }
        if "loss_curve" in content:
            content["loss_curve"] = tuple(
                float(f"{value:.{CURVE_DIGITS}g}") for value in self.loss_curve
            )
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ComparisonArm:
        """Read an arm from a result's JSON, which stores infinities and NaN as strings."""
        curves = {
            name: tuple(map(float, content.get(name, ()))) for name in ("curve", "loss_curve")
        }
        numbers = {name: content.get(name) for name in ("train_accuracy", "train_loss")}
        return cls(
            **{
                **content,
                **curves,
                **{k: None if v is None else float(v) for k, v in numbers.items()},
            }
        )


_DEFAULTS = {item.name: item.default for item in fields(ComparisonArm)}


def downsample_curve(curves: Sequence[Sequence[float]], most: int = 40) -> tuple[float, ...]:
    """Return the mean curve over runs at `most` evenly spread epochs with the last one.

    >>> downsample_curve([[0.0, 0.5, 1.0], [0.0, 0.7]])
    (0.0, 0.6)
    """
    shortest = min((len(curve) for curve in curves), default=0)
    epochs = (
        np.unique(np.linspace(0, shortest - 1, min(most, shortest)).round().astype(int))
        if shortest
        else []
    )
    return tuple(round(float(np.mean([curve[epoch] for curve in curves])), 5) for epoch in epochs)


def has_flattened(curves: Sequence[Sequence[float]], *, falling: bool = False) -> bool:
    """Return whether the mean score over runs stopped improving in the last fifth of epochs.

    The straight line through these epochs then gains at most two of its standard errors, or at most a twentieth of the
    range of the score. A loss (`falling`) must also fall by at most a tenth of itself, or not significantly, on the
    logarithmic scale. Fewer than five epochs do not suffice.

    >>> has_flattened([[0.1, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]])
    True
    >>> has_flattened([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    False
    >>> has_flattened([[1e5, 1e4, 1e3, 500.0, 250.0, 125.0, 62.0, 31.0]], falling=True)
    False
    """
    shortest = min((len(curve) for curve in curves), default=0)
    if shortest < 5:
        return False
    score = np.mean([curve[:shortest] for curve in curves], axis=0)
    if not np.isfinite(score).all():
        return True
    n_last = max(5, math.ceil(LAST_PART * shortest))
    if not falling:
        return _gain(score[-n_last:]) <= RISE * float(np.ptp(score))
    of_range = _gain(-score[-n_last:]) <= RISE * float(np.ptp(score))
    positive = score[-n_last:].clip(min=np.finfo(float).tiny)
    return of_range and _gain(-np.log(positive)) <= -math.log(1 - FALL)


def _gain(values: np.ndarray) -> float:
    """Return the rise of the straight line through the values, 0 if it is not significant."""
    line: Any = stats.linregress(np.arange(len(values)), values)
    return 0.0 if line.slope <= 2 * line.stderr else float(line.slope) * (len(values) - 1)


def _listed(names: Sequence[str]) -> str:
    """Join names, the first three of five or more."""
    return (
        ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Statement about a number, with our number. Built by the functions below."""

    source: str  # figure, table, section or equation
    statement: str  # what the paper says, as a clause: "validation loss grows with the batch size"
    quantity: str = ""  # what is compared, as "A minus B" or "A over B"
    value: float = math.nan
    low: float = -math.inf  # of the 95 % interval over independent units
    high: float = math.inf
    units: int = 0
    unit: str = "seeds"
    values: tuple[float, ...] = ()  # one per unit, where it has one
    above: float = -math.inf  # the claimed range of the number
    below: float = math.inf
    paper: float | None = (
        None  # number of the paper; a claim with it is held if ours is within a factor
    )
    within: float = 2.0
    compared: tuple[ComparisonArm, ...] = ()  # networks, for the guard
    untrained: str = (
        ""  # evidence behind the number if no network is compared; the guard needs one of the two
    )
    reach: float = REACH  # largest difference of training accuracies, and of losses in nats
    loss_reach: float = REACH
    unequal: str = ""  # reason for unequal training, needed without a limit
    ours: bool = False  # the statement is not the paper's (a control, a method of ours)
    exact: bool = False  # a formula gives the number, not runs: it has no units to count
    status: str = ""  # "not run" or "cannot be run here"
    why: str = ""  # reason of the status

    @property
    def outcome(self) -> str:
        """One of OUTCOMES."""
        return self.verdict[0]

    @property
    def verdict(self) -> tuple[str, str]:
        """Outcome with its reason."""
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
        """Every reason for which the guard allows no verdict."""
        if not self.compared and not self.untrained:
            return ["no networks are named for the guard"]
        reasons = _did_not_learn(self)
        cut_off = [arm.name for arm in self.compared if arm.done is False]
        unknown = [arm.name for arm in self.compared if arm.done is None]
        if cut_off:
            reasons.append(f"not finished: {_listed(cut_off)} still improving at the last epoch")
        if unknown:
            reasons.append(f"no curve of the training loss was kept of {_listed(unknown)}")
        if not self.exact and self.units < MIN_UNITS:
            reasons.append(f"{self.units} independent {self.unit}, fewer than {MIN_UNITS}")
        return reasons

    @property
    def bounds(self) -> tuple[float, float]:
        """Claimed range of the number, by default the sign of the paper's number."""
        if self.paper and math.isinf(self.above) and math.isinf(self.below):
            return (0.0, math.inf) if self.paper > 0 else (-math.inf, 0.0)
        return self.above, self.below

    @property
    def interval(self) -> Interval:
        """Our number with its interval."""
        return Interval(self.value, self.low, self.high, self.units)

    @property
    def number(self) -> str:
        """Our number as text, with its interval and units unless it is exact."""
        return f"{self.value:.3g}" if self.exact else f"{self.interval}, {self.units} {self.unit}"

    @property
    def sentence(self) -> str:
        """The claim as a sentence: statement, outcome with reason, both numbers."""
        outcome, reason = self.verdict
        because = f" ({reason})" if reason else ""
        if self.status:
            return f"{self.source}: {self.statement}: {outcome}{because}."
        paper = "" if self.paper is None else f"; the paper {self.paper:.3g}"
        return f"{self.source}: {self.statement}: {outcome}{because}; {self.quantity} {self.number}{paper}."

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serializable values with outcome and reason."""
        outcome, reason = self.verdict
        content = asdict(self) | {"outcome": outcome, "reason": reason}
        content["compared"] = [arm.to_dict() for arm in self.compared]
        content["says"] = content.pop("statement")  # the key of all stored results
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Claim:
        """Read a claim from a result's JSON. Its outcome is evaluated again."""
        names = {item.name for item in fields(cls)}
        values = {name: value for name, value in content.items() if name in names}
        for name in ("value", "low", "high", "above", "below", "reach", "loss_reach"):
            values[name] = float(values[name])  # JSON stores infinities as strings
        values["values"] = tuple(map(float, values["values"]))
        values["compared"] = tuple(map(ComparisonArm.from_dict, values["compared"]))
        if math.isfinite(values["low"]) and math.isfinite(values["high"]):
            least, most = span_of(values["quantity"])
            values |= {"low": max(values["low"], least), "high": min(values["high"], most)}
        return cls(statement=content["says"], **values)


def _did_not_learn(claim: Claim) -> list[str]:
    """Return the first doubt about training: not stored, at chance, or unequal."""
    unknown = [
        arm.name for arm in claim.compared if arm.train_accuracy is None and arm.train_loss is None
    ]
    if unknown:
        return [f"no training accuracy or loss was kept of {_listed(unknown)}"]
    at_chance = []
    for arm in claim.compared:
        if arm.train_accuracy is None:
            if not float(arm.train_loss or 0) < (1 - ABOVE_CHANCE) * -math.log(arm.chance):
                at_chance.append(f"{arm.name} (training loss {arm.train_loss:.2f})")
        elif not arm.train_accuracy > arm.chance + ABOVE_CHANCE:
            at_chance.append(f"{arm.name} (training accuracy {arm.train_accuracy:.2f})")
    at_chance = at_chance or [f"{arm.name} {arm.failed}" for arm in claim.compared if arm.failed]
    if at_chance:
        return [f"did not learn: {_listed(at_chance)}"]
    for score, reach, values in (
        ("accuracy", claim.reach, [(arm.train_accuracy, arm.name) for arm in claim.compared]),
        # the loss of regression, whose chance is 0, has the unit of its targets
        (
            "loss",
            claim.loss_reach,
            [(arm.train_loss, arm.name) for arm in claim.compared if arm.chance > 0],
        ),
    ):
        stored = [(float(value), name) for value, name in values if value is not None]
        if len(stored) < 2 or (math.isinf(reach) and claim.unequal):
            continue
        (low, first), (high, last) = min(stored), max(stored)
        if not high - low <= (reach if math.isfinite(reach) else REACH):
            return [
                f"did not learn alike: training {score} {low:.2g} ({first}) against {high:.2g} ({last})"
            ]
    return []


def _size(ours: Interval, paper: float, within: float) -> tuple[str, str]:
    """Compare sizes of the same sign: ours must be within a factor of the paper's."""
    low, high = sorted((paper / within, paper * within))
    if ours.high < low or ours.low > high:
        return NOT_HELD, f"the sign is right, the size {ours.value / paper:.2g} of the paper's"
    if low <= ours.value <= high:
        return HELD, ""
    return OPEN, "the sign is right, the interval of the size holds both answers"


# beginning of a quantity -> its range; that of a difference ("A minus B") is twice as wide
SPANS = {
    "share of": (0.0, 1.0),
    "fraction of": (0.0, 1.0),
    "Pearson": (-1.0, 1.0),
    "Spearman": (-1.0, 1.0),
    "Kendall": (-1.0, 1.0),
    "mean tau": (-1.0, 1.0),
}


def span_of(quantity: str) -> tuple[float, float]:
    """Return the range of a quantity by its name, infinite for one that has none.

    >>> span_of("share of runs"), span_of("Pearson of the logs after minus before"), span_of("validation loss")
    ((0.0, 1.0), (-2.0, 2.0), (-inf, inf))
    """
    low, high = next(
        (span for start, span in SPANS.items() if quantity.startswith(start)), (-math.inf, math.inf)
    )
    if " minus " in quantity:
        return low - high, high - low
    return low, high


Coefficient = Callable[[np.ndarray, np.ndarray], float]


def claim(
    source: str,
    says: str,
    quantity: str,
    values: Values,
    *,
    clusters: Clusters = None,
    **options: Any,
) -> Claim:
    """Return a claim about the mean of one value per run. Runs of one cluster count once."""
    return estimate(
        source, says, quantity, mean(values, clusters), values=tuple(map(float, values)), **options
    )


def relation(
    source: str,
    says: str,
    quantity: str,
    coefficient: Coefficient,
    x: Values,
    y: Values,
    clusters: Clusters = None,
    **options: Any,
) -> Claim:
    """Return a claim about a correlation of pairs, with a bootstrap interval over clusters."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    result = bootstrap(lambda rows: coefficient(a[rows], b[rows]), len(a), clusters).within(
        -1.0, 1.0
    )
    return estimate(
        source,
        says,
        quantity,
        result,
        **{"unit": "clusters" if clusters else "networks", **options},
    )


def estimate(
    source: str,
    says: str,
    quantity: str,
    number: Interval,
    *,
    compared: Sequence[ComparisonArm],
    **options: Any,
) -> Claim:
    """Return a claim about a number with its interval (`options`: further fields).

    Ends of the interval beyond the range of the quantity are clipped (see `span_of`): t intervals and widened
    percentiles do not know it. An infinite interval, of one unit, stays.
    """
    if math.isfinite(number.low) and math.isfinite(number.high):
        number = number.within(*span_of(quantity))
    return Claim(
        source=source, statement=says, quantity=quantity, value=number.value, low=number.low,
        high=number.high, units=number.units, compared=tuple(compared), **options,
    )  # fmt: skip


def identity(source: str, says: str, quantity: str, value: float, **options: Any) -> Claim:
    """Return a claim about the value of a formula (no count of runs, no best of a grid)."""
    defaults = {
        "untrained": "" if options.get("compared") else "a formula, computed",
        "compared": (),
        "exact": True,
    }
    return estimate(source, says, quantity, Interval(value, value, value, 0), **defaults | options)


def not_run(source: str, says: str, why: str) -> Claim:
    """Return a claim that no part tests."""
    return Claim(source=source, statement=says, status=NOT_RUN, why=why)


def cannot_run(source: str, says: str, why: str) -> Claim:
    """Return a claim that needs data or a machine that are missing here."""
    return Claim(source=source, statement=says, status=CANNOT, why=why)


def counts(claims: Sequence[Claim]) -> str:
    """Return the number of claims per outcome as text, the paper's and ours apart."""
    texts = []
    for name, ours in (("of the paper's", False), ("of ours", True)):
        n = Counter(claim.outcome for claim in claims if claim.ours == ours)
        if n:
            texts.append(
                f"{name} {n.total()}: "
                + ", ".join(f"{n[outcome]} {outcome}" for outcome in OUTCOMES if n[outcome])
            )
    return "; ".join(texts)
