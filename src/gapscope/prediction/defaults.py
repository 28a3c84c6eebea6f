"""Default gap estimator: its readings, and which of them enter by their logarithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gapscope.base.errors import InvalidInput
from gapscope.prediction.columns import complete_rows, reading_columns, reading_directions
from gapscope.results.records import Record

if TYPE_CHECKING:
    import pandas

    from gapscope.prediction.gap_estimator import GapEstimator

WIDE = 10.0
# what the kernel of gradients tells of the data before training, whether neighbours agree after it, and the fit: on the
# 40 networks of the demo these erred by a third of what the sensitivities below did
FROM_THE_KERNEL = ("kernel_leave_one_out.initial.accuracy", "gradient_neighbours.agreement", "accuracy")
# with tens of networks these, with the median margins and the fit to the training data, err least on networks that were
# left out of the fit (study zhao2022, part "worth")
SENSITIVITIES = ("output_sensitivity", "input_jacobian_norm", "ntk_trace")
FIT = ("loss", "accuracy")
FAMILIES = ("network.name", "network.options.batch_norm", "network.options.normalization")


def spans_a_decade(values: Sequence[float]) -> bool:
    """Return whether all values are positive, the largest ten times the smallest or more."""
    return min(values) > 0 and max(values) >= WIDE * min(values)


def wide_columns(table: pandas.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return those of the columns that are positive and span at least a factor of ten.

    >>> import pandas
    >>> wide_columns(pandas.DataFrame({"norm": [1.0, 50.0], "share": [0.2, 0.4], "log": [-1.0, 80.0]}),
    ...              ["norm", "share", "log"])
    ['norm']
    """
    return [name for name in columns if spans_a_decade(table[name].tolist())]


def default_readings(names: Sequence[str]) -> list[str]:
    """Return the readings of the default: of the kernel, or sensitivities, margins and fit.

    >>> default_readings(["ntk_trace", *FROM_THE_KERNEL])
    ['kernel_leave_one_out.initial.accuracy', 'gradient_neighbours.agreement', 'accuracy']
    >>> default_readings(["accuracy", "margin_signature.h1.median", "ntk_trace", "unit_sparsity.zeta"])
    ['ntk_trace', 'margin_signature.h1.median', 'accuracy']
    >>> default_readings(["accuracy", "unit_sparsity.zeta"])
    []
    """
    if all(name in names for name in FROM_THE_KERNEL):
        return list(FROM_THE_KERNEL)
    margins = [name for name in names if name.startswith("margin_signature.") and name.endswith(".median")]
    telling = [*(name for name in SENSITIVITIES if name in names), *margins]
    return [*telling, *(name for name in FIT if name in names)] if telling else []


def suggest_estimator(
    records: Sequence[Record], *, features: Sequence[str] | None = None, kind: str | None = None
) -> GapEstimator:
    """Return an unfitted GapEstimator for the readings of these records.

    Left-out accuracy at the initial weights, the neighbours' vote and the training accuracy are used where all finished
    networks have them (measures `kernel_leave_one_out` and `gradient_neighbours`), by a Gaussian process. Otherwise
    output sensitivity, input Jacobian norm, NTK trace, median margins, training loss and accuracy are used, as many of
    them as all finished networks have and as differ between them; without sensitivities and margins, all such readings
    are (or `features`). Those that are positive and span at least a factor of ten enter by their logarithm;
    architecture and normalization are the family.

    Args:
        records: Records of the networks to fit on.
        features: Names of the readings to use instead.
        kind: A kind of GapEstimator; None takes "gaussian_process" for the readings of the kernel, else "ridge".

    Returns:
        The estimator; fit it on `usable_rows(table, estimator.features)`.

    Raises:
        InvalidInput: No reading is there for every finished network.
    """
    from gapscope.prediction.gap_estimator import GapEstimator
    from gapscope.results.records import records_to_pandas

    finished = [record for record in records if record.status == "finished"]
    table = records_to_pandas(finished)
    if features is None:
        usable = [name for name in reading_columns(finished) if _finite(table, name)]
        features = default_readings(usable) or usable
    if not features:
        raise InvalidInput(
            f"At least one reading must be finite in every finished network; got none in {len(finished)} networks. "
            "Run the pool with measures = [...]."
        )
    table = complete_rows(table, features)
    directions = reading_directions(finished)
    shares = tuple(features) == FROM_THE_KERNEL
    return GapEstimator(
        kind=kind or ("gaussian_process" if shares else "ridge"),
        features=list(features),
        log_features=[] if shares else wide_columns(table, features),
        families=[name for name in FAMILIES if name in table.columns],
        directions={name: directions.get(name, "none") for name in features},
    )


def _finite(table: pandas.DataFrame, name: str) -> bool:
    import numpy

    return bool(numpy.isfinite(table[name].to_numpy(dtype=float)).all())
