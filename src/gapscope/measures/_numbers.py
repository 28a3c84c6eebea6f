"""Named scalars of one measure."""

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
    """Named scalars of one measure (missing ones are NaN, with a reason).

    Attributes:
        values: Name -> number.
        reasons: Name -> reason of a missing number.
    """

    values: Mapping[str, float]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {**self.values, **dict.fromkeys(self.reasons, math.nan)}

    def missing(self) -> dict[str, str]:
        """Return the reasons of NaN by name."""
        return dict(self.reasons)

    def __getitem__(self, name: str) -> float:
        """Return the number called `name`."""
        return self.scalars()[name]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per number."""
        import pandas

        return pandas.DataFrame({"value": self.scalars()})
