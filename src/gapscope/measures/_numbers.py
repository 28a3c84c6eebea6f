"""Several numbers of one measure, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Scalars(Result):
    """Several numbers of one measure; one that has no value here is NaN, with its reason.

    Attributes:
        values: Name -> number.
        reasons: Name -> why there is no number.
    """

    values: Mapping[str, float]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {**self.values, **dict.fromkeys(self.reasons, math.nan)}

    def missing(self) -> dict[str, str]:
        """Return why numbers are NaN, by their name."""
        return dict(self.reasons)

    def __getitem__(self, name: str) -> float:
        """Return the number called `name`."""
        return self.scalars()[name]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row a number."""
        import pandas

        return pandas.DataFrame({"value": self.scalars()})
