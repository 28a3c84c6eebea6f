"""What networks of known accuracy teach the shipped estimate about data of your own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gapscope.base.errors import InvalidInput
from gapscope.prediction.accuracy_after_training import estimate_accuracy
from gapscope.prediction.accuracy_estimator import NEEDED, AccuracyEstimator, load_default
from gapscope.prediction.columns import check_columns

if TYPE_CHECKING:
    import pandas

ACCURACY = "accuracy"


def fit_accuracy_estimator(
    known: pandas.DataFrame | Iterable[tuple[Any, ...]],
    *,
    target: str = "like_training",
    estimator: AccuracyEstimator | None = None,
) -> AccuracyEstimator:
    r"""Fit the accuracy estimate to data of your own, from networks whose accuracy on new data is known.

    The mean error $\bar r$ on the k known networks shifts every further answer by $\bar r \, k / (k + w^2 / b^2)$ (see
    `gapscope.prediction.accuracy_estimator`): a few networks move it a little, many nearly by all of their mean error.
    On the 141 networks of the shipped fit, with their data set left out of it, the root mean squared error went from
    .056 to .053 with 4 known networks and to .052 with 8: most of the error is one network's own. Intervals keep their
    widths. Networks may come from anywhere; no gapscope spec or pool is needed.

    Args:
        known: Tuples (network, training data, accuracy), with the initial state dictionary as a fourth where it is
            known; or a table of the readings `estimate_accuracy(...).readings` and `accuracy`, a row per network.
        target: Which accuracy is known: "like_training" (a hold-out of the same, wrong labels) or "clean".
        estimator: What is fitted; None for the one that comes with the package.

    Returns:
        An estimator for `estimate_accuracy(..., estimator=)`; `save` keeps it.

    Raises:
        InvalidInput: No network is known, one is no such tuple, a column is missing, or an accuracy is not in [0, 1].
    """
    import pandas

    table = known if isinstance(known, pandas.DataFrame) else pandas.DataFrame([_row(each) for each in known])
    if not len(table):
        raise InvalidInput("known must hold one network or more; got none. Pass [(network, data, accuracy), ...].")
    check_columns(table, [*NEEDED, ACCURACY])
    return (estimator or load_default()).recalibrate(table, table[ACCURACY].tolist(), target)


def _row(known: Any) -> Mapping[str, float]:
    if not isinstance(known, tuple) or len(known) not in (3, 4):
        raise InvalidInput(
            "Every known network must be a tuple (network, training data, accuracy) or (network, training data, "
            f"accuracy, initial state dictionary); got {type(known).__name__}."
        )
    network, data, accuracy, *initial = known
    state = initial[0] if initial else None
    readings = estimate_accuracy(network, data, initial_state=state, label_noise=0.0).readings
    return {**readings, ACCURACY: float(accuracy)}
