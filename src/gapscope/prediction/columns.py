"""Columns of a pool's table, and default columns of the gap estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Bool, Float

from gapscope.base.errors import InvalidInput, did_you_mean
from gapscope.results.records import Record, records_to_pandas

if TYPE_CHECKING:
    import pandas

    from gapscope.prediction.gap_estimator import GapEstimator


Array = numpy.ndarray
SETTINGS = ("data.", "network.", "training.", "hp.")


def check_columns(table: pandas.DataFrame, columns: Iterable[str]) -> None:
    """Raise InvalidInput, naming the nearest column, unless the table has all `columns`."""
    known = [str(column) for column in table.columns]
    for column in columns:
        if column not in table.columns:
            raise InvalidInput(
                f"The table must have a column {column!r}; it has {', '.join(known) or 'none'}."
                f"{did_you_mean(column, known)}"
            )


def reading_columns(records: Iterable[Record]) -> list[str]:
    """Return the names of the readings that a gap may be estimated from, as measured.

    They take two values or more among the finished networks; settings, scores, the gap and standard errors are none.
    """
    values: dict[str, set[float]] = {}
    for record in records:
        if record.status == "finished":
            for reading in record.readings:
                values.setdefault(reading.name, set()).add(reading.value)
    return [name for name, seen in values.items() if len(seen) > 1]


def hyperparameter_columns(table: pandas.DataFrame) -> list[str]:
    """Return the columns of settings (and the seed) that take two values or more.

    A missing setting counts as a value of its own.
    """
    settings = [column for column in table.columns if column == "seed" or str(column).startswith(SETTINGS)]
    return [column for column in settings if takes_several(table[column])]


def takes_several(column: Any) -> bool:
    """Return whether a column holds two different texts or more (missing is a text)."""
    # numbers of one kind that are equal are written alike, and the different ones are few
    values = column if column.dtype == object else column.unique()
    return len({str(value) for value in values}) > 1


def finite_rows(numbers: Float[Array, "n p"]) -> Bool[Array, " n"]:
    """Return a mask of the rows that hold finite numbers only."""
    return numpy.all(numpy.isfinite(numbers), axis=1)


def complete_rows(table: pandas.DataFrame, columns: Sequence[str] = (), *, target: str = "gap") -> pandas.DataFrame:
    """Return the rows of finished networks whose target and `columns` are finite, in order.

    Raises:
        InvalidInput: A column is missing, or no row is left.
    """
    check_columns(table, [*columns, target])
    keep = finite_rows(table[[*columns, target]].to_numpy(dtype=float))
    if "status" in table.columns:
        keep &= (table["status"] == "finished").to_numpy()
    if not keep.any():
        raise InvalidInput(
            f"At least one network must be finished and have finite {', '.join([*columns, target])}; got none of "
            f"{len(table)}. Leave out the readings that are missing."
        )
    return table.loc[keep]


def as_texts(column: Any) -> Any:
    """Return a column as sortable texts ("nan" if missing, unlike `astype(str)`)."""
    return numpy.array([str(value) for value in column])


def log_transform(
    shown: Float[Array, "n p"], names: Sequence[str], logarithm: Sequence[str], *, finite: bool
) -> Float[Array, "n p"]:
    """Return the readings with the natural logarithm in place of some."""
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


WIDE = 10.0
# what the kernel of gradients predicts before training, whether neighbours agree after it, and the fit: on the 40
# networks of the demo their error was a third of that of the sensitivities below
FROM_THE_KERNEL = ("kernel_leave_one_out.initial.accuracy", "gradient_neighbours.agreement", "accuracy")
# with tens of networks these, with the median margins and the fit to the training data, err least on networks that were
# held out of the fit
SENSITIVITIES = ("output_sensitivity", "input_jacobian_norm", "ntk_trace")
FIT = ("loss", "accuracy")
FAMILIES = ("network.name", "network.options.batch_norm", "network.options.normalization")


def spans_a_decade(values: Sequence[float]) -> bool:
    """Return whether all values are positive, the largest ten times the smallest or more."""
    return min(values) > 0 and max(values) >= WIDE * min(values)


def default_readings(names: Sequence[str]) -> list[str]:
    """Return the default readings: of the kernel, else sensitivities, margins and fit."""
    if all(name in names for name in FROM_THE_KERNEL):
        return list(FROM_THE_KERNEL)
    margins = [name for name in names if name.startswith("margin_signature.") and name.endswith(".median")]
    telling = [*(name for name in SENSITIVITIES if name in names), *margins]
    return [*telling, *(name for name in FIT if name in names)] if telling else []


def suggest_estimator(
    records: Sequence[Record], *, features: Sequence[str] | None = None, kind: str | None = None
) -> GapEstimator:
    """Return an unfitted GapEstimator for the readings of these records.

    The default readings are left-out accuracy at the initial weights, the neighbours' vote and the training accuracy,
    by a Gaussian process, where all finished networks have them (measures `kernel_leave_one_out` and
    `gradient_neighbours`). Otherwise they are output sensitivity, input Jacobian norm, NTK trace, median margins,
    training loss and accuracy, as many of them as all finished networks have and as differ between them; without
    sensitivities and margins, all such readings. Those that are positive and span at least a factor of ten enter by
    their logarithm; architecture and normalization are the family. Fit the estimator on
    `complete_rows(table, estimator.features)`.

    Args:
        features: Names of the readings to use instead.
        kind: A kind of GapEstimator; None takes "gaussian_process" for the readings of the kernel, else "ridge".

    Raises:
        InvalidInput: No reading is there for every finished network.
    """
    from gapscope.prediction.gap_estimator import GapEstimator

    finished = [record for record in records if record.status == "finished"]
    table = records_to_pandas(finished)
    if features is None:
        names = reading_columns(finished)
        usable = [name for name in names if numpy.isfinite(table[name].to_numpy(dtype=float)).all()]
        features = default_readings(usable) or usable
    if not features:
        raise InvalidInput(
            f"At least one reading must be finite in every finished network; got none in {len(finished)} networks. "
            "Run the pool with measures = [...]."
        )
    table = complete_rows(table, features)
    shares = tuple(features) == FROM_THE_KERNEL
    return GapEstimator(
        kind=kind or ("gaussian_process" if shares else "ridge"),
        features=list(features),
        log_features=[] if shares else [name for name in features if spans_a_decade(table[name].tolist())],
        families=[name for name in FAMILIES if name in table.columns],
    )
