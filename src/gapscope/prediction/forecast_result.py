"""Result of `forecast_accuracy`: the forecast, its rows and its learning curve, as text, table, HTML and plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gapscope.results.result import Result
from gapscope.statistics.baselines import LooRow

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LearningCurvePoint:
    """Score at one number of samples.

    Attributes:
        samples: Number of samples.
        score: Accuracy, or R^2 for regression; a mean over random subsets.
        extrapolated: Whether a power law through the smaller sizes gives it.
    """

    samples: int
    score: float
    extrapolated: bool = False


@dataclass(frozen=True)
class NetworkGain:
    """Score of the NTK row minus that of the RBF row, on the same samples.

    Attributes:
        value: The difference.
        low: Lower end of its 95 % confidence interval (paired, normal).
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class AccuracyForecast(Result):
    """Forecast of `forecast_accuracy`.

    Attributes:
        task: "classification" or "regression".
        samples: Number of training samples.
        score: The forecast: accuracy, or R^2 for regression.
        interval: 90 % interval; None for regression.
        combined: Names of the rows whose mean is the forecast.
        rows: Leave-one-out rows, those that need no network first.
        network_gain: What the network adds to the RBF row; None without both rows.
        curve: Scores at a quarter, a half and all of the samples, and extrapolated to twice as many.
        abstained_because: Why the forecast is not to be used; empty if it is.
        duplicates: Number of samples that repeat an earlier one.
        contradicting_duplicates: Number of those with another label.
        notes: Sentences about the data and about rows that are missing.
    """

    task: str
    samples: int
    score: float
    interval: tuple[float, float] | None
    combined: tuple[str, ...]
    rows: tuple[LooRow, ...]
    network_gain: NetworkGain | None
    curve: tuple[LearningCurvePoint, ...]
    abstained_because: str = ""
    duplicates: int = 0
    contradicting_duplicates: int = 0
    notes: tuple[str, ...] = ()

    def row(self, method: str) -> LooRow | None:
        """Return the row of a method ("nearest neighbours" without its number); None if there is none."""
        return next((row for row in self.rows if row.method.split(" (")[0] == method.split(" (")[0]), None)

    @property
    def gain_from_doubling_data(self) -> float:
        """Extrapolated score at twice as many samples minus the forecast; NaN without a learning curve."""
        return self.curve[-1].score - self.score if self.curve else float("nan")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows: method, score, and what it uses."""
        import pandas

        return pandas.DataFrame({"method": row.method, self._what: row.score, "uses": row.uses} for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the single predictions as JSON-serializable values."""
        return {
            "task": self.task,
            "samples": self.samples,
            "score": self.score,
            "interval": None if self.interval is None else list(self.interval),
            "combined": list(self.combined),
            "rows": self.to_pandas().to_dict("records"),
            "network_gain": None if self.network_gain is None else asdict(self.network_gain),
            "curve": [asdict(point) for point in self.curve],
            "abstained_because": self.abstained_because,
            "duplicates": self.duplicates,
            "contradicting_duplicates": self.contradicting_duplicates,
            "notes": list(self.notes),
        }

    @property
    def _what(self) -> str:
        return "accuracy" if self.task == "classification" else "R^2"

    def _show(self, score: float) -> str:
        return f"{score:.1%}".replace("%", " %") if self.task == "classification" else f"{score:.3f}"

    @property
    def headline(self) -> str:
        """The forecast in one sentence."""
        if self.abstained_because:
            return f"No forecast: {self.abstained_because}."
        if self.interval is None:
            return f"Forecast R^2: {self.score:.2f} on new data like these {self.samples} samples"
        low, high = self.interval
        return (
            f"Forecast accuracy: {self.score:.0%} (90 % interval {100 * low:.0f} to {100 * high:.0f} %) on new data with "
            "the same label noise"
        ).replace("%", " %").replace("  %", " %")  # fmt: skip

    @property
    def sentences(self) -> tuple[str, ...]:
        """What follows from the rows, one sentence each."""
        lines = []
        if self.duplicates:
            contradicting = self.contradicting_duplicates
            lines.append(
                f"{self.duplicates} of {self.samples} samples repeat an earlier one"
                + (f", {contradicting} of them with another label" if contradicting else "")
                + ": every number here is too high. Remove them first."
            )
        gain = self.network_gain
        if gain is not None and not self.abstained_because:
            points = f"{100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
            if gain.low > 0:
                lines.append(f"The network's NTK adds to the RBF kernel of the inputs: {points}.")
            elif gain.high < 0:
                lines.append(f"The network's NTK is worse than the RBF kernel of the inputs: {points}.")
            else:
                lines.append(f"The network's NTK adds nothing significant to the RBF kernel of the inputs: {points}.")
        if self.curve and not self.abstained_because:
            lines.append(f"Twice the data: about {self._show(self.curve[-1].score)}.")
        return (*lines, *self.notes)

    def __repr__(self) -> str:
        width = max(len(row.method) for row in self.rows)
        table = [f"  {'method':{width}}  {self._what:>8}  uses"]
        table += [f"  {row.method:{width}}  {self._show(row.score):>8}  {row.uses}" for row in self.rows]
        return "\n".join([self.headline, *table, *self.sentences])

    def _repr_html_(self) -> str:
        from html import escape

        table = self.to_pandas().to_html(index=False, float_format="{:.3f}".format)
        sentences = "".join(f"<p>{escape(line)}</p>" for line in self.sentences)
        return f"<p><strong>{escape(self.headline)}</strong></p>{table}{sentences}"
