"""Risk of the verdicts (p-values) and cost of open rows (units, hours)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from gapscope_studies.kit.claims import BOTH_ANSWERS, HELD, NOT_HELD, OPEN, Claim

# units that give the present effect an 80 % chance at 5 %, over those whose interval would just exclude the bound
FOR_80_PERCENT = ((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) / stats.norm.ppf(0.975)) ** 2
MAX_UNITS = 1000


def _nearest(claim: Claim) -> list[float]:
    """Return the bound that decides the verdict, or all finite ones of a claim that held."""
    above, below = claim.bounds
    bounds = [bound for bound in (above, below) if math.isfinite(bound)]
    if claim.outcome == HELD:
        return bounds
    if claim.paper is not None and claim.outcome == NOT_HELD and above < claim.value < below:
        bounds = [claim.paper / claim.within, claim.paper * claim.within]
    return [min(bounds, key=lambda bound: abs(bound - claim.value))] if bounds else []


def _error(claim: Claim, bound: float) -> float:
    """Standard error towards a bound, from that end of the interval."""
    end = claim.low if bound < claim.value else claim.high
    return abs(claim.value - end) / float(stats.t.ppf(0.975, claim.units - 1))


def p_value(claim: Claim) -> float | None:
    """Return the two-sided p-value (Student's t) against the nearest bound, or None."""
    if claim.exact or claim.units < 2 or not math.isfinite(claim.low) or not math.isfinite(claim.high):
        return None
    values = []
    for bound in _nearest(claim):
        error = _error(claim, bound)
        if error <= 0 or not math.isfinite(error):
            return None
        values.append(2 * float(stats.t.sf(abs(claim.value - bound) / error, claim.units - 1)))
    return max(values, default=None)  # a claim that held between two bounds excludes both


def p_values(claims: Sequence[Claim]) -> list[tuple[float, bool]]:
    """Return the p-values of the claims without doubts, and whether each is decided."""
    allowed = [c for c in claims if not c.status and not c.doubts and c.outcome in (HELD, NOT_HELD, OPEN)]
    pairs = [(p_value(claim), claim.outcome != OPEN) for claim in allowed]
    return [(p, decided) for p, decided in pairs if p is not None]


def units_needed(claim: Claim) -> int | None:
    """Return the units for a power of 80 % at this effect, at most MAX_UNITS + 1 (or None)."""
    if claim.outcome != OPEN or claim.verdict[1] != BOTH_ANSWERS or not math.isfinite(claim.low):
        return None
    inside = [bound for bound in claim.bounds if claim.low <= bound <= claim.high]
    if not inside or claim.units < 2:  # more units would decide nothing
        return None
    needed = 0.0
    for bound in inside:
        distance = abs(claim.value - bound)
        half = _error(claim, bound) * float(stats.norm.ppf(0.975))  # shrinks with the root of the number of units
        needed = max(needed, claim.units * FOR_80_PERCENT * (half / distance) ** 2 if distance else math.inf)
    return min(max(math.ceil(needed), claim.units + 1), MAX_UNITS + 1) if math.isfinite(needed) else MAX_UNITS + 1


def hours_needed(claim: Claim, facts: Mapping[str, Any]) -> float | None:
    """Return the CPU hours of the missing units at the cost of the stored ones, or None."""
    units, seconds = units_needed(claim), facts.get("seconds_of_runs")
    if units is None or not seconds:
        return None
    return (units - claim.units) * float(seconds) / claim.units / 3600
