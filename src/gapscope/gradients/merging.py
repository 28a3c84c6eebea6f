"""Sum of several uses of one parameter: repeated calls, tied weights, several forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from gapscope.gradients.contributions import Contribution, DenseJacobian


def _joined(uses: Sequence[Contribution]) -> Contribution | None:
    """Merge several uses of the same parameters in their common form (None if they have none)."""
    first = uses[0]
    if len(uses) == 1:
        return first
    if isinstance(first, DenseJacobian) or not all(use.has_form_of(first) for use in uses):
        return None
    return type(first).merge_uses(uses)  # type: ignore[attr-defined]


def merge_contributions(contributions: Sequence[Contribution]) -> dict[tuple[int, ...], Contribution]:
    """Add all uses of the same parameters, so that squares may be summed.

    Returns one contribution per key. No parameter is in two of them.
    """
    by_key: dict[tuple[int, ...], list[Contribution]] = {}
    for contribution in contributions:
        by_key.setdefault(contribution.key, []).append(contribution)
    # A weight may be used with its bias here and without it there, and so stand in two keys: then neither can be
    # contracted for itself, and the Jacobians of all its uses are added entry by entry.
    keys_of = Counter(parameter for key in by_key for parameter in key)
    result, apart = {}, []
    for key, uses in by_key.items():
        alone = all(keys_of[parameter] == 1 for parameter in key)
        joined = _joined(uses) if alone else None
        if joined is None:
            apart += uses
        else:
            result[key] = joined
    return result | densely_combined(apart)


def densely_combined(contributions: Sequence[Contribution]) -> dict[tuple[int, ...], Contribution]:
    """Return the sum of the dense Jacobians, one contribution per parameter."""
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    for contribution in contributions:
        for parameter, values in zip(contribution.parameters, contribution.dense(), strict=True):
            values = values.reshape(*values.shape[:2], -1)  # also that of a number, which has no dimension to flatten
            before = sums.get(id(parameter))
            sums[id(parameter)] = (parameter, values if before is None else before[1] + values)
    return {(key,): DenseJacobian((parameter,), values) for key, (parameter, values) in sums.items()}
