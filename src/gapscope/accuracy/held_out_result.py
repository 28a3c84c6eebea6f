"""Result of out-of-sample predictions: probabilities, their accuracy and calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gapscope.base.arrays import tensor_of
from gapscope.base.columns import column_names
from gapscope.base.foreign_data import as_frame
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.labels.prediction_columns import GIVEN, free_name, given_names
from gapscope.results.answer import Answer
from gapscope.results.estimate import percent
from gapscope.results.result import axes_or_new, to_builtin
from gapscope.statistics.calibration import (
    Calibration,
    ReliabilityCurve,
    cross_entropy,
    reliability_curve,
)

if TYPE_CHECKING:
    import pandas


def target_names(data: Any) -> tuple[str, ...]:
    """Return the names of the columns of the targets in a pair (x, y); empty for numbers and without names.

    Args:
        data: Data as passed.
    """
    targets = as_frame(data[1]) if is_list_or_tuple(data) and len(data) == 2 else None
    name = getattr(targets, "name", None)
    names = column_names(targets) or (() if name is None else (str(name),))
    return () if names == tuple(map(str, range(len(names)))) else names


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class HeldOutPredictions(Answer):
    """Predictions of every training sample by a model that was fitted without it, from `out_of_sample`.

    `numpy.asarray(result)` returns the predictions, so that other libraries accept the result itself.

    Attributes:
        task: "classification", "multi-label", "positions" or "regression".
        score: Accuracy of the most probable class in [0, 1] (mean over labels for several labels), or R^2.
        samples: Number of samples n that were predicted.
        low: Lower end of its interval; NaN without one.
        high: Upper end; NaN without one.
        level: Nominal coverage of the interval.
        score_name: "accuracy" or "R^2", with the unit that it counts if that is not the sample.
        abstained_because: Why the predictions must not be used; empty if they may.
        notes: Sentences about the data, approximations, and omitted rows.
        interrupted: Whether Ctrl-C ended it, so that a part is missing.
        predictions: Probabilities [n, K] of the classes (rows sum to 1) or of each of K labels, or predicted targets
            [n, K]; float64. For positions one row for each of m labelled positions, [m, K].
        targets: Class numbers [n], labels 0 and 1 [n, K], or regression targets [n, K]; of positions [m].
        classes: Names or values of the K classes, in the order of the columns; empty for regression.
        method: How they were made.
        cost: Training runs that it took, in multiples of one on all samples.
        calibration: Map from held-out scores to probabilities, fitted to them; None for probabilities that were taken
            as they are.
        target_names: Names of the K columns of regression targets; empty if they have none.
        groups: Number of groups that were held out together; None if every sample was held out alone or in a random
            fold.
        rows: Row number of each sample in the data that were passed, if rows were omitted; else None.
        positions: For positions the row number of the sample and the index within it (token, or row and column of the
            pixel) of each prediction, [m, 2] or [m, 3]; else None.
    """

    predictions: np.ndarray
    targets: np.ndarray
    classes: tuple[Any, ...]
    method: str
    cost: float
    calibration: Calibration | None = None
    target_names: tuple[str, ...] = ()
    groups: int | None = None
    rows: np.ndarray | None = None
    positions: np.ndarray | None = None

    _title = "Held-out"

    def __len__(self) -> int:
        return len(self.predictions)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the predictions as a NumPy array."""
        return np.array(self.predictions, dtype=dtype, copy=copy)

    @property
    def is_held_out(self) -> bool:
        """True: functions that take predictions of any model need not ask whether these have seen the labels."""
        return True

    @property
    def reliability(self) -> ReliabilityCurve | None:
        """Stated and observed accuracy in bins of equal numbers of samples; None for regression."""
        if self.task == "regression":
            return None
        return reliability_curve(tensor_of(self.predictions), tensor_of(self.targets))

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the predicted class, or over all labels (NaN for regression)."""
        if self.reliability is None:
            return math.nan
        return self.reliability.error

    @property
    def cross_entropy(self) -> float:
        """Mean cross-entropy of the targets in nats (NaN for regression)."""
        if self.task == "regression":
            return math.nan
        return cross_entropy(tensor_of(self.predictions), tensor_of(self.targets))

    def to_numpy(self) -> np.ndarray:
        """Return a copy of the predictions [n, K], in the order of the data (without omitted rows)."""
        return self.predictions.copy()

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per sample: a column per class or target, and the given label or targets.

        The index has the row numbers of the data that were passed. A column of the table whose name a class has as well
        gets a number, such as "given label (2)".
        """
        import pandas

        names = [str(name) for name in self.classes or self.target_names] or [
            f"target {i}" for i in range(self.predictions.shape[1])
        ]
        table = pandas.DataFrame(self.predictions, columns=names, index=self.rows)
        if self.positions is not None:
            if self.positions.shape[1] == 2:
                places = ["position"]
            else:
                places = ["row", "column"]
            for number, name in enumerate(["sample", *places]):
                table.insert(number, free_name(name, names), self.positions[:, number])
        if self.task in ("classification", "positions"):
            labels = [self.classes[number] for number in self.targets]
            table.insert(table.shape[1], free_name(GIVEN, list(table)), labels)
            return table
        given = pandas.DataFrame(self.targets, columns=given_names(names), index=self.rows)
        return pandas.concat([table, given], axis=1)

    def _content(self) -> dict[str, Any]:
        """Return all but the predictions and targets of single samples."""
        content = to_builtin(
            replace(self, predictions=np.empty(0), targets=np.empty(0), positions=None)
        )
        del content["predictions"], content["targets"], content["positions"]
        return content | {"calibration_error": self.calibration_error}

    @property
    def _subject(self) -> str:
        if self.positions is None:
            return f" of {len(self):,} samples"
        return f" of {len(self):,} positions in {self.samples:,} samples"

    @property
    def _details(self) -> tuple[str, ...]:
        held_out = ""
        if self.groups is not None and (self.positions is None or self.groups != self.samples):
            held_out = f", {self.groups} groups held out"
        method = f"  method       {self.method}{held_out}; cost {self.cost:.2f} training runs"
        if self.task == "regression":
            return (method,)
        error = percent(self.calibration_error, 1)
        entropy = self.cross_entropy
        return method, f"  calibration  error {error}, cross-entropy {entropy:.3f} nats"

    def plot(self, axes: Any = None) -> Any:
        """Plot stated against observed accuracy, or predicted against given targets, and return the axes.

        Args:
            axes: Matplotlib axes; None for a new figure.
        """
        axes = axes_or_new(axes, height=4.5)
        curve = self.reliability
        if curve is None:
            axes.plot(self.targets.ravel(), self.predictions.ravel(), ".", markersize=3)
            axes.axline((float(self.targets.mean()),) * 2, slope=1, color="tab:gray", linewidth=1)
            axes.set(xlabel="given target", ylabel="held-out prediction")
            return axes
        axes.axline((0, 0), slope=1, color="tab:gray", linewidth=1)
        error = np.sqrt(curve.observed * (1 - curve.observed) / curve.counts)
        axes.errorbar(
            curve.stated,
            curve.observed,
            yerr=1.645 * error,
            fmt="o",
            capsize=3,
            label="90 % interval",
        )
        axes.set(xlabel="stated probability", ylabel="observed fraction", xlim=(0, 1), ylim=(0, 1))
        axes.legend(fontsize=8)
        return axes
