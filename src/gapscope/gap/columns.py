"""Columns of a pool's table, and default columns of the gap estimator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
from jaxtyping import Bool, Float, Int

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput
from gapscope.base.tables import SETTINGS, check_columns, check_comparable, with_numbers
from gapscope.results.records import Record, as_records, records_to_pandas
from gapscope.statistics.intervals import configuration_ids

if TYPE_CHECKING:
    import pandas

    from gapscope.gap.gap_estimator import GapEstimator


Array = numpy.ndarray
FAMILY = "network.name"
PASSED = "hp."  # settings that were passed with networks trained elsewhere
GRID_SETTINGS = ("network.options.", "training.", "data.")


@check_arguments
def reading_columns(records: str | Path | Iterable[Record]) -> list[str]:
    """Return the names of the readings that a gap may be estimated from, as measured.

    Readings with two values or more among the finished networks, without their standard errors.

    Args:
        records: Records of networks; a pool, or its folder.
    """
    values: dict[str, set[float]] = {}
    for record in as_records(records):
        if record.status == "finished":
            for reading in record.readings:
                values.setdefault(reading.name, set()).add(reading.value)
    return [name for name, distinct in values.items() if len(distinct) > 1]


@check_arguments
def hyperparameter_columns(table: pandas.DataFrame) -> list[str]:
    """Return the columns of settings (and the seed) that take two values or more.

    A missing setting counts as a value of its own, except where it is unknown: a setting of a grid, of networks that
    were trained elsewhere; a setting that was passed with these, of the networks of a grid.

    Args:
        table: One row per network, as from `records_to_pandas`.
    """
    added = _is_added(table)
    settings = [
        column for column in table.columns if column == "seed" or str(column).startswith(SETTINGS)
    ]
    varied: list[str] = []
    for column in settings:
        known = table[column]
        if str(column).startswith(PASSED) and added.any():
            known = known[added]
        elif column != FAMILY:
            known = known[~added]
        if is_varied(known):
            varied.append(column)
    return varied


def full_name(table: pandas.DataFrame, name: str, prefixes: Sequence[str] = SETTINGS) -> str:
    """Return the name of a column that may be given without its prefix.

    >>> import pandas
    >>> full_name(pandas.DataFrame({"hp.width": [1]}), "width")
    'hp.width'
    """
    columns = [prefix + name for prefix in prefixes if prefix + name in table.columns]
    if name in table.columns or len(columns) != 1:
        return name
    return columns[0]


def merge_passed_settings(table: pandas.DataFrame) -> tuple[pandas.DataFrame, list[str]]:
    """Return a table in which settings that were passed fill the setting of a grid of that name, and the filled ones.

    >>> import pandas
    >>> table = pandas.DataFrame({"network.options.width": [8, None], "hp.width": [None, 24]})
    >>> merge_passed_settings(table)[0]["network.options.width"].tolist()
    [8.0, 24.0]
    """
    filled: list[str] = []
    for passed in [str(name) for name in table.columns if str(name).startswith(PASSED)]:
        name = full_name(table, passed.removeprefix(PASSED), GRID_SETTINGS)
        if name in table.columns and not (table[name].notna() & table[passed].notna()).any():
            merged = table[name].where(table[name].notna(), table[passed])
            table = table.assign(**{name: merged}).drop(columns=passed)
            filled.append(name)
    return table, filled


def has_unknown_settings(table: pandas.DataFrame) -> Bool[Array, " n"]:
    """Return a mask of the networks of which no setting is known, except the family and the seed.

    Networks trained elsewhere have no settings unless they were passed. Their hyperparameters are missing, not equal.
    In other networks, a missing setting is one that does not apply, such as the width of a network without layers.
    """
    return _lack_all(table, SETTINGS)


def _lack_all(table: pandas.DataFrame, prefixes: tuple[str, ...]) -> Bool[Array, " n"]:
    """Return a mask of the networks without a setting of these prefixes, except the family and the seed."""
    names = [
        name
        for name in map(str, table.columns)
        if name.startswith(prefixes) and name != FAMILY and not name.endswith(".seed")
    ]
    return numpy.all(table[names].isna().to_numpy(), axis=1)


def _is_added(table: pandas.DataFrame) -> Bool[Array, " n"]:
    """Return a mask of the networks trained elsewhere, beside others: no setting is known that was not passed."""
    added = _lack_all(table, tuple(prefix for prefix in SETTINGS if prefix != PASSED))
    return added & ~added.all()


def training_configurations(
    table: pandas.DataFrame, hyperparameters: Sequence[str]
) -> Int[Array, " n"]:
    """Number the training configurations; networks without known settings are one each (see `configuration_ids`)."""
    numbers = configuration_ids(table, hyperparameters)
    unknown = has_unknown_settings(table)
    numbers = numpy.where(unknown, len(table) + numpy.arange(len(table)), numbers)
    return numpy.unique(numbers, return_inverse=True)[1]


def is_varied(column: Any) -> bool:
    """Return whether a column holds two different texts or more (missing is a text)."""
    # equal numbers of one dtype have equal texts, so that only distinct numbers are formatted
    values = column if column.dtype == object else column.unique()
    return len({str(value) for value in values}) > 1


def finite_rows(numbers: Float[Array, "n p"]) -> Bool[Array, " n"]:
    """Return a mask of the rows that hold finite numbers only."""
    return numpy.all(numpy.isfinite(numbers), axis=1)


@check_arguments
def complete_rows(
    table: pandas.DataFrame, columns: Sequence[str] = (), *, target: str = "gap"
) -> pandas.DataFrame:
    """Return the rows of finished networks with finite target and `columns`, in order.

    Args:
        table: One row per network, as from `records_to_pandas`.
        columns: Columns that must be finite, such as the features of an estimator.
        target: Column that is estimated.

    Raises:
        InvalidInput: A column is missing or holds no numbers, no row is left, or the gaps cannot be compared (see
            `check_comparable`).
    """
    if not len(table):
        raise InvalidInput(
            "At least one network is needed; got none. Run `gapscope pool run` or `gapscope pool add` first."
        )
    check_columns(table, [*columns, target])
    table = with_numbers(table, [*columns, target])
    finished = numpy.ones(len(table), dtype=bool)
    if "status" in table.columns:
        finished = (table["status"] == "finished").to_numpy()
    has_target = finished & finite_rows(table[[target]].to_numpy(dtype=float))
    complete = has_target & finite_rows(table[list(columns)].to_numpy(dtype=float))
    if not complete.any():
        advice = "Exclude the readings that are missing."
        if not finished.any():
            advice = "Correct what made the networks fail, and run them again."
        elif not has_target.any():
            advice = (
                f"Pass test data (test=, --test) when networks are added: {target!r} needs them."
            )
        raise InvalidInput(
            f"At least one network must be finished and have finite {', '.join([*columns, target])}; got none of "
            f"{len(table)}. {advice}"
        )
    table = table.loc[complete]
    check_comparable(table, target)
    return table


def as_texts(column: Any) -> Any:
    """Return a column as sortable texts ("nan" if missing, unlike `astype(str)`)."""
    return numpy.array([str(value) for value in column])


def log_transform(
    readings: Float[Array, "n p"],
    names: Sequence[str],
    log_features: Sequence[str],
    *,
    finite: bool,
) -> Float[Array, "n p"]:
    """Return the readings with `log_features` replaced by their natural logarithms."""
    transformed = readings.copy()
    for name in log_features:
        if name not in names:
            raise InvalidInput(
                f"log_features must name readings among {', '.join(names)}; got {name!r}."
            )
        k = list(names).index(name)
        positive = readings[:, k] > 0
        if finite and not positive.all():
            raise InvalidInput(
                f"{name} must be positive to enter by its logarithm; got {readings[:, k].min():.4g}. "
                "Take it out of log_features."
            )
        transformed[:, k] = numpy.log(numpy.where(positive, readings[:, k], numpy.nan))
    return transformed


# leave-one-out accuracy before training, agreement of neighbours after it, and the fit: on the 40 networks of the demo
# their error is a third of that of the sensitivities below
FROM_THE_KERNEL = (
    "kernel_leave_one_out.initial.accuracy",
    "gradient_neighbours.agreement",
    "accuracy",
)
# for tens of networks: with the median margins and the training fit they have the least error on held-out networks
SENSITIVITIES = ("output_sensitivity", "input_jacobian_norm", "ntk_trace")
FIT = ("loss", "accuracy")
FAMILIES = (
    "network.name",
    "network.options.batch_norm",
    "network.options.normalization",
    "gap_kind",  # no estimate for a network whose gap is of another kind
)


def spans_a_decade(values: Sequence[float]) -> bool:
    """Return whether all values are positive, the largest ten times the smallest or more."""
    return min(values) > 0 and max(values) >= 10.0 * min(values)


def default_readings(names: Sequence[str]) -> list[str]:
    """Return the default readings: of the kernel, else sensitivities, margins and fit."""
    if all(name in names for name in FROM_THE_KERNEL):
        return list(FROM_THE_KERNEL)
    margins = [
        name for name in names if name.startswith("margin_signature.") and name.endswith(".median")
    ]
    informative = [*(name for name in SENSITIVITIES if name in names), *margins]
    if informative:
        return [*informative, *(name for name in FIT if name in names)]
    return []


@check_arguments
def suggest_estimator(
    records: str | Path | Iterable[Record],
    *,
    features: Sequence[str] | None = None,
    kind: str | None = None,
) -> GapEstimator:
    """Return an unfitted GapEstimator for the readings of these records.

    The default readings are the leave-one-out accuracy at the initial weights, the neighbours' vote and the training
    accuracy, by a Gaussian process, if all finished networks have them (measures `kernel_leave_one_out` and
    `gradient_neighbours`). Otherwise they are output sensitivity, input Jacobian norm, NTK trace, median margins,
    training loss and accuracy, those of them that all finished networks have and that differ; without sensitivities
    and margins, all such readings. Positive readings that span at least a factor of ten enter by their logarithm.
    Architecture and normalization are the family. Fit the estimator on
    `complete_rows(table, estimator.features)`.

    Args:
        records: Records of networks; a pool, or its folder.
        features: Names of the readings to use instead.
        kind: A kind of GapEstimator; None takes "gaussian_process" for the readings of the kernel, else "ridge".

    Raises:
        InvalidInput: No reading is finite in every finished network.
    """
    from gapscope.gap.gap_estimator import GapEstimator

    finished = [record for record in as_records(records) if record.status == "finished"]
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
    from_kernel = tuple(features) == FROM_THE_KERNEL
    return GapEstimator(
        kind=kind or ("gaussian_process" if from_kernel else "ridge"),
        features=list(features),
        log_features=[]
        if from_kernel
        else [name for name in features if spans_a_decade(table[name].tolist())],
        families=[name for name in FAMILIES if name in table.columns],
    )
