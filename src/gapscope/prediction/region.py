r"""Region of readings that an estimator was fitted on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from jaxtyping import Float

from gapscope.base.type_guards import is_list, is_mapping

Array = numpy.ndarray
LEAST_SLACK, MOST_SLACK = 0.1, 0.5
SHARE_INSIDE = 0.95


def listed_reasons(reasons: Sequence[str]) -> str:
    """Return the first two reasons, and the number of further ones."""
    more = len(reasons) - 2
    return "; ".join(reasons[:2]) + (f"; and {more} more reason{'s' if more > 1 else ''}" if more > 0 else "")


def _without_itself(x: Float[Array, "n p"], end: Float[Array, " p"], next_end: Float[Array, " p"]) -> Array:
    """Return the end of the range of all others, for each network."""
    return numpy.where(x == end, next_end, end)


def _slack(x: Float[Array, "n p"]) -> float:
    """Return the 95 % point of how far a network is outside the range of the others."""
    n, p = x.shape
    if n < 3 or p == 0:
        return LEAST_SLACK
    rising = numpy.sort(x, axis=0)
    low, high = _without_itself(x, rising[0], rising[1]), _without_itself(x, rising[-1], rising[-2])
    beyond = numpy.maximum(low - x, x - high)
    width = high - low
    shares = numpy.where(beyond > 0, beyond / numpy.where(width > 0, width, numpy.inf), 0.0)
    shares[(beyond > 0) & (width == 0)] = numpy.inf
    worst = numpy.sort(shares.max(axis=1))
    return float(numpy.clip(worst[min(math.ceil(SHARE_INSIDE * (n + 1)), n) - 1], LEAST_SLACK, MOST_SLACK))


@dataclass(frozen=True, kw_only=True)
class ApplicabilityDomain:
    r"""Region of the fitted networks: ranges of readings, leverages and families.

    The leverage of a network is $h(x) = 1/n + (x - \bar x)^\top (X_c^\top X_c)^{+} (x - \bar x)$, the squared
    Mahalanobis distance from the fitted networks up to constants; the variance of a linear prediction grows as
    $1 + h(x)$. A fitted network has $h_i / (1 - h_i)$ with respect to the others; a new one is refused where
    its leverage exceeds the largest of these, which happens to about one in n + 1 networks that are like the fitted.

    It is also refused where a reading leaves the fitted range by more than `slack` times that range. The slack is so
    wide that 95 % of the fitted networks would pass with respect to the others, but at least a tenth and at most a
    half.
    """

    names: tuple[str, ...]
    low: Float[Array, " p"]
    high: Float[Array, " p"]
    slack: float  # in units of the range
    centre: Float[Array, " p"]
    scale: Float[Array, " p"]  # standard deviations, 1 for constant readings
    precision: Float[Array, "p p"]  # pseudo-inverse of the scaled sum of squares
    span: Float[Array, "p r"]  # orthonormal directions in which the scaled readings vary
    n: int
    largest_leverage: float  # of h_i / (1 - h_i); infinite if one network alone spans a direction
    families: Mapping[str, Sequence[str]]  # known values of each family column

    @classmethod
    def fit(
        cls, x: Float[Array, "n p"], names: Sequence[str], families: Mapping[str, Sequence[str]]
    ) -> ApplicabilityDomain:
        """Return the region of fitted networks with finite readings x."""
        n, p = x.shape
        centre, scale = x.mean(0), x.std(0)
        scale[scale <= 1e-12 * numpy.abs(centre)] = 1.0
        scaled = (x - centre) / scale
        left, singular, right = numpy.linalg.svd(scaled, full_matrices=False)
        kept = singular > (singular.max(initial=0.0) * 1e-10 or 1.0)
        left, singular, span = left[:, kept], singular[kept], right[kept].T
        leverages = 1 / n + (left**2).sum(1)
        rest = 1 - leverages
        others = numpy.where(rest > 1e-9, leverages / numpy.where(rest > 1e-9, rest, 1.0), numpy.inf)
        return cls(
            names=tuple(names),
            low=x.min(0),
            high=x.max(0),
            slack=_slack(x),
            centre=centre,
            scale=scale,
            precision=(span / singular**2) @ span.T if p else numpy.zeros((0, 0)),
            span=span,
            n=n,
            largest_leverage=float(others.max()),
            families=families,
        )

    def leverages(self, x: Float[Array, "m p"]) -> Float[Array, " m"]:
        """Return the leverage h(x) of each network, infinite in a new direction."""
        scaled = (x - self.centre) / self.scale
        outside = numpy.abs(scaled - scaled @ self.span @ self.span.T).max(axis=1, initial=0.0)
        inside = 1 / self.n + ((scaled @ self.precision) * scaled).sum(1)
        return numpy.where(outside > 1e-6 * (1 + numpy.abs(scaled).max(axis=1, initial=0.0)), numpy.inf, inside)

    def out_of_domain_reasons(
        self, x: Float[Array, "m p"], shown: Float[Array, "m p"], families: Mapping[str, Sequence[str]]
    ) -> list[list[str]]:
        """Return a list of reasons per network why it is outside."""
        reasons: list[list[str]] = [[] for _ in range(len(x))]
        for column, values in families.items():
            for i, value in enumerate(values):
                if value not in self.families[column]:
                    reasons[i].append(f"{column} is {value}; fitted on {', '.join(self.families[column])}")
        slack = self.slack * (self.high - self.low) + 1e-9 * numpy.abs(self.centre)
        finite = numpy.isfinite(x)
        for i, k in numpy.argwhere(~finite).tolist():
            reasons[i].append(f"{self.names[k]} is {shown[i, k]:.4g}, which cannot be used")
        for i, k in numpy.argwhere(finite & ((x < self.low - slack) | (x > self.high + slack))).tolist():
            side = "below" if x[i, k] < self.low[k] else "above"
            reasons[i].append(f"{self.names[k]} is {shown[i, k]:.4g}, {side} every fitted network")
        leverages = self.leverages(numpy.where(finite, x, self.centre))
        for i in numpy.nonzero(leverages > self.largest_leverage * (1 + 1e-9))[0]:
            if not reasons[i]:
                reasons[i].append(
                    f"its readings together are unlike the fitted ones (leverage {leverages[i]:.2g}, "
                    f"largest fitted {self.largest_leverage:.2g})"
                )
        return reasons

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ApplicabilityDomain:
        """Build from plain JSON, or raise ValueError."""
        names, families = content["names"], content["families"]
        p = len(names)
        arrays = {key: numpy.array(content[key], dtype=float) for key in ("low", "high", "centre", "scale")}
        if any(array.shape != (p,) or not numpy.isfinite(array).all() for array in arrays.values()):
            raise ValueError(f"the region must have {p} finite numbers in {', '.join(arrays)}")
        if not is_mapping(families) or not all(is_list(known) for known in families.values()):
            raise ValueError("families must name the known values of each column")
        return cls(
            names=tuple(names),
            **arrays,
            slack=float(content["slack"]),
            precision=numpy.array(content["precision"], dtype=float).reshape(p, p),
            span=numpy.array(content["span"], dtype=float).reshape(p, -1) if p else numpy.zeros((0, 0)),
            n=int(content["n"]),
            largest_leverage=float(content["largest_leverage"]),
            families=dict(families),
        )
