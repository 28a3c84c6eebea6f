"""Result of `forecast_accuracy`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gapscope.results.answer import Answer
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.formatting import describe_repeats
from gapscope.results.result import axes_or_new, to_builtin, to_html
from gapscope.statistics.baselines import LooRow
from gapscope.statistics.kernel_ridge import ClassScores

if TYPE_CHECKING:
    import pandas


def describe_duplicates(duplicates: int, samples: int, other: str = "") -> str:
    """Return a sentence on samples that repeat an earlier one."""
    return f"{describe_repeats(duplicates, samples, other)}. Leave-one-out predicts them from their copies."


@dataclass(frozen=True)
class LearningCurvePoint:
    """Mean score at one number of samples, or an extrapolation by a power law.

    Attributes:
        samples: Number of training samples.
        score: Leave-one-out accuracy in [0, 1], or R^2 for regression.
        extrapolated: Whether the score was extrapolated, not computed.
    """

    samples: int
    score: float
    extrapolated: bool = False


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class AccuracyForecast(Answer):
    """Forecast of `forecast_accuracy`: an `Answer` with its leave-one-out rows.

    Without an interval for other tasks than one class label per sample, for which none was judged.

    Attributes:
        task: "classification", "multi-label", "positions" or "regression".
        score: Mean leave-one-out score of the combined rows: accuracy in [0, 1], or R^2 for regression; NaN without an
            answer.
        samples: Number of training samples n.
        low: Lower end of its 90 % interval; NaN without one.
        high: Upper end; NaN without one.
        level: Nominal coverage of the interval.
        score_name: "accuracy" or "R^2", with the unit that it counts if that is not the sample.
        abstained_because: Why there is no forecast; empty if there is one.
        notes: Sentences about the data, approximations, and what was omitted to keep the time budget.
        interrupted: Whether Ctrl-C ended it, so that rows are missing.
        combined: Names of the rows whose mean is the forecast.
        rows: Leave-one-out rows, those that need no network first.
        network_gain: Score of the NTK row minus the RBF row's, with a paired 95 % interval; None without both.
        curve: Scores at a quarter, a half and all of the samples, and extrapolated to twice as many.
        duplicates: Number of samples that repeat an earlier one.
        contradicting_duplicates: Number of those with another label.
        unequal_classes: Balanced accuracy and area under the ROC curve, means of the combined rows, if the largest
            class has twice the samples of the smallest or more; None otherwise.
        groups: Number of groups, if samples were predicted without their whole group; else None.
    """

    combined: tuple[str, ...]
    rows: tuple[LooRow, ...]
    network_gain: IntervalEstimate | None = None
    curve: tuple[LearningCurvePoint, ...] = ()
    duplicates: int = 0
    contradicting_duplicates: int = 0
    unequal_classes: ClassScores | None = None
    groups: int | None = None

    _title = "Forecast"

    def row(self, method: str) -> LooRow | None:
        """Return the row of a method, None if there is none.

        Args:
            method: Name of the method without its setting, such as "RBF ridge" or "nearest neighbours".
        """
        return next((row for row in self.rows if row.name == method), None)

    @property
    def gain_from_doubling_data(self) -> float:
        """Extrapolated score at twice the samples minus the forecast (NaN without a curve)."""
        if self.curve:
            return self.curve[-1].score - self.score
        return float("nan")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows: method, score, and what it uses."""
        import pandas

        return pandas.DataFrame(
            {"method": row.method, self._column: row.score, "uses": row.uses} for row in self.rows
        )

    def _content(self) -> dict[str, Any]:
        """Return all but the per-sample predictions."""
        return to_builtin(replace(self, rows=())) | {"rows": self.to_pandas().to_dict("records")}

    @property
    def _column(self) -> str:
        if self.task == "regression":
            return "R^2"
        return "accuracy"

    @property
    def _repeats(self) -> tuple[int, str]:
        other = f", {self.contradicting_duplicates} of them with another target" * bool(
            self.contradicting_duplicates
        )
        return self.duplicates, describe_duplicates(self.duplicates, self.samples, other)

    @property
    def _scope(self) -> str:
        if self.groups is not None:
            return f" on new groups like these {self.groups}, with the same label noise"
        if self.task == "classification":
            return " on new data with the same label noise"
        scope = f" on new data like these {self.samples} samples"
        if self.task == "regression":
            return scope
        return f"{scope}, with the same label noise (no interval was judged for this task)"

    @property
    def _details(self) -> tuple[str, ...]:
        if self.abstained_because:
            return ()
        lines: list[str] = []
        gain = self.network_gain
        unequal = self.unequal_classes
        if gain is not None:
            points = f"{gain.value:+.3f} of R^2 (95 % CI {gain.low:.3f} to {gain.high:.3f})"
            if self.task != "regression":
                points = f"{100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
            what = "adds nothing significant to"
            if gain.high < 0:
                what = "is worse than"
            elif gain.low > 0:
                what = "adds to"
            lines.append(f"The network's NTK {what} the RBF kernel of the inputs: {points}.")
        if self.combined == ("last hidden features",):
            lines.append("The last hidden features carry the forecast, as for a linear probe.")
        if unequal is not None:
            lines.append(
                f"Classes are unequal (the largest has {self._format(unequal.largest)} of the samples): balanced "
                f"accuracy {self._format(unequal.balanced_accuracy)}, area under the ROC curve {unequal.auc:.3f}."
            )
        if self.curve:
            lines.append(f"Twice the data: about {self._format(self.curve[-1].score)}.")
        return tuple(lines)

    @property
    def _table(self) -> str:
        width = max(len(row.method) for row in self.rows)
        table = [f"  {'method':{width}}  {self._column:>8}  uses"]
        table += [
            f"  {row.method:{width}}  {self._format(row.score):>8}  {row.uses}" for row in self.rows
        ]
        return "\n".join(table)

    def _repr_html_(self) -> str:
        return to_html(self, self.sentences, index=False)

    def plot(self, axes: Any = None) -> Any:
        """Plot the score of every row, the forecast and its interval, and return the axes.

        Args:
            axes: Matplotlib axes; None for a new figure.
        """
        rows = self.rows[::-1]
        axes = axes_or_new(axes, height=1 + 0.35 * len(rows))
        colours = {"labels": "tab:gray", "inputs": "tab:blue", "network": "tab:orange"}
        axes.barh(
            [row.method for row in rows],
            [row.score for row in rows],
            color=[colours[row.uses] for row in rows],
        )
        if not self.abstained_because:
            axes.axvline(self.score, color="black", label="forecast")
            if self.interval is not None:
                axes.axvspan(*self.interval, color="black", alpha=0.1, label="90 % interval")
            axes.legend(fontsize=8)
        axes.set_xlabel(f"leave-one-out {self._column}")
        return axes
