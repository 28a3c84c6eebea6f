"""False-discovery rate of a set of decisions (Benjamini and Hochberg 1995)."""

from __future__ import annotations

from collections.abc import Sequence


def false_discoveries(pairs: Sequence[tuple[float, bool]]) -> tuple[int, float, int]:
    """Count decided rows, their false-discovery rate, and adjusted p-values over 5 %.

    The rate is the largest adjusted p-value of a decided row among all rows that were tested, decided or not.

    >>> false_discoveries([(0.001, True), (0.03, True), (0.5, False)])
    (2, 0.045, 0)
    """
    ordered = sorted(pairs)
    adjusted, least = [1.0] * len(ordered), 1.0
    for place in range(len(ordered) - 1, -1, -1):
        least = min(least, ordered[place][0] * len(ordered) / (place + 1))
        adjusted[place] = least
    rates = [rate for rate, (_, decided) in zip(adjusted, ordered, strict=True) if decided]
    return len(rates), round(max(rates, default=0.0), 4), sum(rate > 0.05 for rate in rates)
