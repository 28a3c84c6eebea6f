"""What the columns of a table are to an estimator: readings, families, clusters, expected errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from jaxtyping import Float, Int

from gapscope.base.errors import InvalidInput
from gapscope.prediction.columns import check_columns
from gapscope.prediction.region import family_name

Array = numpy.ndarray


@dataclass(frozen=True)
class ColumnRoles:
    """Columns of a table of networks by what they are for.

    Attributes:
        features: The readings; None takes all columns that have no other role.
        families: What kind of network it is.
        clusters: Columns whose equal values make networks of one kind.
        spread: The error that each network is expected to have; "" where there is none.
    """

    features: Sequence[str] | None
    families: Sequence[str]
    clusters: Sequence[str]
    spread: str

    def readings(self, X: Any, *, fitting: bool) -> Any:
        """The readings among the columns of a table (an array holds nothing else).

        Args:
            X: The table, one row per network.
            fitting: Whether families and clusters must be there as well.

        Returns:
            A table or an array of them.

        Raises:
            InvalidInput: A column is missing, or columns are named and X has no names.
        """
        beside = [*self.families, *self.clusters, *([self.spread] if self.spread else [])]
        if not hasattr(X, "columns"):
            if self.features or beside:
                raise InvalidInput(
                    f"X must be a table with named columns, because features, families, clusters or spread name some; "
                    f"got {type(X).__name__}. Pass a pandas DataFrame."
                )
            return numpy.zeros((len(X), 0)) if self.features is not None else X
        check_columns(X, [*(self.features or ()), *(beside if fitting else [self.spread] if self.spread else ())])
        if self.features is not None:
            return X[list(self.features)] if len(self.features) else numpy.zeros((len(X), 0))
        return X.drop(columns=[name for name in beside if name in X.columns])

    def families_of(self, X: Any) -> dict[str, list[str]]:
        """Values of the family columns; a setting that a network does not have is "absent"."""
        return {
            column: [family_name(value) for value in X[column]] if column in X.columns else ["absent"] * len(X)
            for column in self.families
        }

    def clusters_of(self, X: Any, n: int) -> Int[Array, " n"]:
        """Number of each network's cluster; each is one of its own where no column names them.

        Args:
            X: The table, one row per network.
            n: How many networks it has.

        Returns:
            The numbers, counted from 0 in the order of the table.

        Raises:
            InvalidInput: All networks are of one cluster.
        """
        if not len(self.clusters):
            return numpy.arange(n)
        names = [tuple(family_name(X[column].iloc[i]) for column in self.clusters) for i in range(n)]
        kinds = numpy.array([list(dict.fromkeys(names)).index(name) for name in names])
        if kinds.max() == 0:
            raise InvalidInput(
                f"clusters must separate the networks into two kinds or more; {', '.join(self.clusters)} has one "
                "value. Leave clusters out."
            )
        return kinds

    def spread_of(self, X: Any) -> Float[Array, " n"]:
        """The column of expected errors, which must be positive.

        Args:
            X: The table, one row per network.

        Returns:
            One number per network.

        Raises:
            InvalidInput: One is zero, negative or missing.
        """
        found = X[self.spread].to_numpy(dtype=float)
        if not (found > 0).all():
            raise InvalidInput(
                f"The column of spread must hold positive numbers; column {self.spread!r} holds {found.min():.4g}."
            )
        return found


def log_transform(
    shown: Float[Array, "n p"], names: Sequence[str], logarithm: Sequence[str], *, finite: bool
) -> Float[Array, "n p"]:
    """Readings with the natural logarithm in place of some.

    Args:
        shown: The readings as given.
        names: Their names.
        logarithm: Which of them enter by their logarithm.
        finite: Whether one that has none is refused; else its place holds NaN.

    Returns:
        The readings as they enter a fit.

    Raises:
        InvalidInput: A name is unknown, or a reading is not positive.
    """
    readings = shown.copy()
    for name in logarithm:
        if name not in names:
            raise InvalidInput(f"logarithm must name readings among {', '.join(names)}; got {name!r}.")
        k = list(names).index(name)
        positive = shown[:, k] > 0
        if finite and not positive.all():
            raise InvalidInput(
                f"{name} must be positive to enter by its logarithm; got {shown[:, k].min():.4g}. "
                "Take it out of logarithm."
            )
        readings[:, k] = numpy.log(numpy.where(positive, shown[:, k], numpy.nan))
    return readings
