"""Uneven label errors in data sets that were opened last: tables of R packages, other photographs and texts.

The addition to the upper end for errors that crowd together (`hidden_errors`) was chosen on `CHOSEN_ON`, also with one
of its classes against the rest, and committed before one of these was opened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gapscope_studies.labels.uneven import SUBSETS, run_cell, summarize
from gapscope_studies.labels.uneven_data import EVALUATED_LAST

__all__ = ["jobs", "summarize"]


def jobs() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the cells by name."""
    return {
        f"uneven last {name} {k}": partial(run_cell, name, k)
        for k in SUBSETS
        for name in EVALUATED_LAST
    }
