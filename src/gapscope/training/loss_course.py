"""What the losses of a training say of its learning rate: by their level and their whole course, not one slope."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Fall of the loss, over the last fifth of the recordings, below which it has stopped; chosen on seeds 0 and 1 of the
# planted faults (results/checks/planted_faults.json), as the margin of GS302.
MIN_FALL = 0.02
# The constants below were chosen on trainings of small networks on three public data sets, of which another learning
# rate raises the accuracy by eight points or more, and judged on four others (results/checks/loss_course.json).
# Near chance: at least this part of the loss of the best constant, and at most this multiple of log K.
NEAR_LOW, NEAR_HIGH = 0.8, 1.15
# A whole course that falls by less than this part has not begun.
MIN_TOTAL = 0.1
# Rise between neighbours, as a part of the loss (of that of the best constant, where this is larger), above which the
# steps are too large: near chance, where dropout makes up to 0.07, and elsewhere.
MAX_RISE_NEAR, MAX_RISE = 0.1, 0.5
# standard deviation of outputs over samples below which they are one constant; those of GS201
MIN_SPREAD = 1e-3


@dataclass(frozen=True)
class Advice:
    """What to do about a training that has not converged.

    Attributes:
        reason: What the losses do, for the evidence; empty if the fall at the end says it.
        action: What to do.
        fixes: Names of fixes, best first.
    """

    reason: str
    action: str
    fixes: tuple[str, ...]


LOWER_IT = "lower the learning rate tenfold"
LOWER = ("learning rate / 10", "learning rate / 3", "learning rate / 100", "standardize inputs")
RAISE = ("learning rate x 10", "learning rate x 100", "learning rate x 3")
LONGER = Advice("", "train longer", ("twice the epochs", "learning rate x 3"))
FLAT = Advice(
    "",
    "lower the learning rate or the weight decay; if the loss is smooth, use a wider network",
    ("learning rate / 3", "less weight decay", "wider"),
)


def recent_fall(losses: Sequence[float]) -> float:
    """Return the relative fall of the loss over its last fifth (NaN for fewer than four values)."""
    if len(losses) < 4:
        return math.nan
    k = max(2, len(losses) // 5)
    before = sum(losses[-2 * k : -k]) / k
    after = sum(losses[-k:]) / k
    return (before - after) / max(abs(before), 1e-12)


def _largest_rise(losses: Sequence[float], floor: float) -> float:
    """Return the largest rise between neighbours, relative to the loss; the first step is part of the beginning."""
    pairs = pairwise(losses[1:])
    return max(((after - before) / max(before, floor, 1e-12) for before, after in pairs), default=0)


def _risen(first: float, last: float) -> Advice:
    return Advice(f"the loss rose from {first:.3g} to {last:.3g}", LOWER_IT, LOWER)


def _without_losses(spread: float) -> Advice:
    """Return the advice of a training whose losses are not known, by the spread of its outputs."""
    hint = "; pass history= to learn the direction (four epochs or more)"
    if spread < MIN_SPREAD:
        return Advice(
            "all samples have the same outputs",
            f"lower the learning rate tenfold and standardize the inputs, or raise it tenfold{hint}",
            ("learning rate / 10", "standardize inputs", "learning rate x 10"),
        )
    return Advice(
        "",
        f"tune the learning rate and the number of epochs{hint}",
        ("learning rate / 3", "twice the epochs", "learning rate x 3", "learning rate x 10"),
    )


def read_course(losses: Sequence[float], constant: float, uniform: float, spread: float) -> Advice:
    """Return what to do about a training that has not converged.

    Args:
        losses: Finite training losses, one per recording.
        constant: Cross-entropy of the best constant: the entropy of the labels.
        uniform: Cross-entropy of equal probabilities: log K.
        spread: Standard deviation of the outputs over samples, mean of the outputs.
    """
    fall = recent_fall(losses)
    ceiling = NEAR_HIGH * uniform
    if math.isnan(fall):
        # a training that ended early, as one that diverges does
        if losses and losses[-1] > max(losses[0], ceiling):
            return _risen(losses[0], losses[-1])
        return _without_losses(spread)
    first = losses[0]
    k = max(2, len(losses) // 5)
    last = sum(losses[-k:]) / k
    total = (first - last) / max(abs(first), 1e-12)
    has_not_begun = abs(total) < MIN_TOTAL
    is_near = has_not_begun or NEAR_LOW * constant < last < ceiling
    is_constant = spread < MIN_SPREAD
    if _largest_rise(losses, constant) > (MAX_RISE_NEAR if is_near else MAX_RISE):
        return Advice("the loss jumps up between epochs", LOWER_IT, LOWER)
    if last > max(first, ceiling):
        return _risen(first, last)
    # losses of another kind, such as sums, may all be above that of chance
    was_above = max(losses) > ceiling and not has_not_begun
    if was_above and (is_near or is_constant):
        reason = f"the loss began at {first:.3g}, above that of guessing, {uniform:.3g}, and is {last:.3g}"
        if is_constant:
            reason += "; all samples have the same outputs"
        return Advice(reason, LOWER_IT, LOWER)
    if is_near:
        reason = f"the loss has hardly begun to fall: {first:.4g} to {last:.4g}, by guessing {uniform:.3g}"
        if is_constant:
            return Advice(
                f"{reason}; all samples have the same outputs",
                "raise the learning rate tenfold or more; if there is weight decay, lower it",
                ("learning rate x 10", "less weight decay", "learning rate x 100", LOWER[0]),
            )
        return Advice(
            reason,
            "raise the learning rate tenfold or more, then train longer",
            (*RAISE, "less weight decay"),
        )
    return LONGER if fall > MIN_FALL else FLAT
