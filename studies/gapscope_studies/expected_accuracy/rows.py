"""Rows of this study's tables, for a reader and for the JSON, and the error that all of them give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gapscope_studies.kit.statistics import Interval


def root_mean_square(values: Any) -> float:
    """Square root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def shown(row: Mapping[str, Any]) -> dict[str, str]:
    """The row with three digits."""
    return {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in row.items()}


def plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with intervals as [value, low, high]."""
    return {
        name: [value.value, value.low, value.high] if isinstance(value, Interval) else value
        for name, value in row.items()
    }
